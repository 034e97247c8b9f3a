"""`experiments.reproduce`: the smoke scale as a whole, kills, parts, and the cells of cb-DyBW."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cbdybw import theory
from cbdybw.clusters.launch import mpirun
from experiments import cells
from experiments.cb_dybw import cells as table
from experiments.cb_dybw import rates

ROOT = Path(__file__).parents[1]
COMMAND = [sys.executable, "-m", "experiments.reproduce", "--scale=smoke"]
GROUPS = ["laws", "learning", "mpi", "speedup", "topology"]


def reproduce(cwd, *flags, environment=None):
    """The binary, begun in the folder `cwd`."""
    return subprocess.run(
        [*COMMAND, *flags],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | (environment or {}),
        capture_output=True,
        text=True,
        timeout=250,
    )


def smoke(cluster=""):
    """Names of the smoke scale's runs."""
    runs = cells.runs_of(cells.load("cb_dybw"), "smoke")
    return sorted(str(run) for run in runs if cluster in ("", run.cell.cluster))


def collected(out):
    """Names of the runs whose rows are in OUT/*.jsonl."""
    lines = [line for path in out.glob("*.jsonl") for line in path.read_text().splitlines()]
    return sorted(f"{row['cell']}@{row['seed']}" for row in map(json.loads, lines))


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A folder in which the whole smoke scale has been run, and what was said."""
    folder = tmp_path_factory.mktemp("whole")
    return folder, reproduce(folder)


# The smoke scale


@pytest.mark.mpi
def test_one_command_runs_collects_draws_and_judges(whole):
    folder, done = whole
    assert done.returncode == 0, done.stderr
    out = folder / "runs" / "cb_dybw-smoke"
    assert sorted(path.stem for path in out.glob("*.jsonl")) == GROUPS
    assert collected(out) == smoke()
    rows = [json.loads(line) for line in (out / "mpi.jsonl").read_text().splitlines()]
    assert {row["result"]["cluster"] for row in rows} == {"mpi", "virtual"}
    assert {row["status"] for row in rows} == {"finished"}
    assert (out / "verdicts.json").exists()
    steps = ["Data", "Virtual cluster", "MPI ranks", "Figures", "Verdicts"]
    assert [line.split(" (")[0].split(" …")[0] for line in done.stderr.splitlines()] == steps


@pytest.mark.mpi
def test_a_second_call_runs_nothing_and_changes_no_row(whole):
    folder, _ = whole
    out = folder / "runs" / "cb_dybw-smoke"
    before = content(out), content(out / "raw")
    again = reproduce(folder)
    assert [line.split(" …")[0] for line in again.stderr.splitlines()] == ["Figures", "Verdicts"]
    assert (content(out), content(out / "raw")) == before


@pytest.mark.mpi
def test_figures_are_drawn_again_from_collected_rows_alone(whole, tmp_path):
    folder, _ = whole
    out = folder / "runs" / "cb_dybw-smoke"
    for group in GROUPS:
        (tmp_path / f"{group}.jsonl").write_bytes((out / f"{group}.jsonl").read_bytes())
    done = reproduce(tmp_path, "--figures_only", f"--out={tmp_path}")
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "raw").exists()
    if (out / "figures").exists():
        assert content(tmp_path / "figures") == content(out / "figures")
    assert (tmp_path / "verdicts.json").read_bytes() == (out / "verdicts.json").read_bytes()


def test_parts_share_the_runs_a_killed_one_goes_on_and_the_last_one_collects(tmp_path):
    flags = ["--cluster=virtual", "--jobs=1", "--out=out"]
    raw = tmp_path / "out" / "raw"
    first = subprocess.Popen(
        [*COMMAND, *flags, "--part=1/2"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    while len(list(raw.glob("*.json"))) < 2:
        assert first.poll() is None
        time.sleep(0.02)
    first.kill()
    assert first.wait() == -signal.SIGKILL
    killed = content(raw)
    half = len(smoke("virtual")) / 2
    assert len(killed) < half
    assert reproduce(tmp_path, *flags, "--part=1/2").returncode == 0
    first_part = content(raw)
    assert killed.items() <= first_part.items()
    assert (len(first_part), collected(tmp_path / "out")) == (half, [])
    slurm = {"SLURM_ARRAY_TASK_ID": "8", "SLURM_ARRAY_TASK_MIN": "7", "SLURM_ARRAY_TASK_COUNT": "2"}
    second = reproduce(tmp_path, *flags, environment=slurm)
    assert second.returncode == 0, second.stderr
    assert collected(tmp_path / "out") == smoke("virtual")
    assert first_part.items() <= content(raw).items()


@pytest.mark.mpi
def test_ranks_share_the_runs_of_the_virtual_cluster(whole, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(whole[0] / "runs" / "cb_dybw-smoke", out)
    for path in out.glob("*.jsonl"):
        path.unlink()
    for path in (out / "raw").iterdir():  # those without TensorFlow are done again
        if json.loads(path.read_text())["flags"].get("workload") in ("timing", "quadratic"):
            path.unlink()
    argv, environment = mpirun(2, [*COMMAND, "--cluster=virtual", "--jobs=mpi", "--out=out"])
    done = subprocess.run(
        argv,
        cwd=tmp_path,
        env=environment | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, done.stderr
    assert collected(out) == smoke()
    assert done.stderr.count("Virtual cluster") == 2


def test_a_run_that_fails_is_named_and_its_sweep_ends_with_1(tmp_path):
    (tmp_path / "data").write_text("no folder")
    done = reproduce(tmp_path, "--cluster=virtual", "--out=out")
    assert done.returncode == 1
    failures = [line for line in done.stderr.splitlines() if line.startswith("failed: ")]
    learnt = [n for n in smoke("virtual") if not re.search("timing|speedup", n)]
    assert sorted(line.split(": ")[1] for line in failures) == learnt
    assert all("--out=data/digits-" in line for line in failures)
    assert collected(tmp_path / "out") == sorted(set(smoke("virtual")) - set(learnt))


# Bad input


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--paper=dybw"], "--paper=dybw: not known; use adsp or cb_dybw"),
        (["--scale=huge"], "--scale=huge: not known; use smoke or short or paper or rates"),
        (["--cluster=cloud"], "--cluster=cloud: not known; use all or virtual or mpi"),
        (["--jobs=0"], "--jobs=0: use a number of processes from 1 up, or mpi"),
        (["--jobs=many"], "--jobs=many: use a number of processes from 1 up, or mpi"),
        (["--jobs=mpi"], "--jobs=mpi: is for ranks that share the virtual cluster's cells; "),
        (["--part=5/3"], "--part=5/3: no part; use i/n with i from 1 to n, such as 2/5"),
        (["--part=0/3"], "--part=0/3: no part; "),
        (["--part=half"], "--part=half: no part; "),
        (["--out=file"], "--out=file: "),
        (["--out=file/below"], "--out=file/below: "),
        (["--out=full"], "--out=full: holds other files than a sweep's; name a new folder"),
        (["--out=other"], "--out=other: holds the rows of cb_dybw at scale paper; name another"),
        (["--figures_only", "--out=full"], "--out=full: no rows there; leave out --figures_only"),
        (["--figures_only", "--out=gone"], "--out=gone: no rows there; "),
        (["--seed=1"], "Unknown command line flag 'seed'"),
        (["short"], "short: not a flag; write --name=value"),
    ],
)
def test_bad_flags_end_in_one_line_and_exit_code_2(tmp_path, flags, complaint):
    (tmp_path / "file").write_text("")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "sweep.json").write_text('{"paper": "cb_dybw", "scale": "paper"}')
    done = reproduce(tmp_path, *flags)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert complaint in line
    assert not (tmp_path / "runs").exists()


# The cells of cb-DyBW


def test_the_committed_cells_are_those_that_the_table_makes():
    made = table.files()
    there = {
        str(path.relative_to(table.FOLDER)): path.read_text(encoding="utf-8")
        for path in table.FOLDER.glob("*/*.flags")
    }
    assert there == made


def test_no_two_cells_are_the_same_run():
    known = cells.load("cb_dybw")
    assert len(known) == len(table.files())
    for scale in cells.SCALES:
        keys = [run.key for run in cells.runs_of(known, scale)]
        assert len(keys) == len(set(keys)) > 0


def test_rates_are_searched_on_seeds_that_no_result_is_taken_from():
    known = cells.load("cb_dybw")
    searched = cells.runs_of(known, "rates")
    assert {run.seed for run in searched} == set(rates.SEEDS)
    reported = [run for scale in ("short", "paper") for run in cells.runs_of(known, scale)]
    assert not {run.seed for run in reported} & set(rates.SEEDS)


def test_every_reported_workload_has_a_search_for_each_of_its_algorithms():
    searched = {re.sub(r"-[\d.]+$", "", row.name) for row in table.search()}
    assert len(searched) * 5 == len(list(table.search()))
    for row in table.learning():
        flags = row.flags
        non_iid = "" if flags["partition"] == "iid" else "-shards2"
        assert f"{flags['dataset']}-{flags['workload']}{non_iid}-{flags['algorithm']}" in searched
    for row in table.topology():
        if row.flags["workload"] == "lrm":
            assert f"mnist-lrm-b32-{row.flags['algorithm']}" in searched


def test_the_lowest_loss_on_the_worse_seed_decides_a_step_away_from_divergence():
    def row(eta0, loss, status="finished"):
        cell = f"rates/mnist-lrm-shards2-ad_psgd-{eta0:g}"
        return {"cell": cell, "status": status, "result": {"train_loss": loss}}

    def chosen(*found):
        (by_algorithm,) = rates.choose(list(found)).values()
        return by_algorithm["ad_psgd"]

    found = [row(0.3, 0.7), row(1, 0.4), row(10, 0.1, "diverged"), row(3, 0.3)]
    losses = {0.3: 0.7, 1.0: 0.4, 3.0: 0.3, 10.0: None}
    assert chosen(*found) == {"eta0": 1.0, "train_loss": losses}  # 3 is next to divergence
    assert chosen(*found, row(1, 0.9))["eta0"] == 0.3  # 1 is worse on another seed
    assert chosen(*found, row(10, 2.0))["train_loss"][10.0] is None
    assert chosen(row(1, 0.4), row(3, 0.3), row(10, 2.2))["eta0"] == 3.0
    assert chosen(row(1, 0.4), row(3, 0.3), row(10, 2.4))["eta0"] == 1.0  # guessing learns nothing
    assert chosen(row(1, None, "diverged"), row(3, None, "diverged"))["eta0"] == 1.0


def test_what_the_laws_expect_of_exponential_times_is_what_theory_says():
    full, carry, drop, _, paper = table.SHORTER["exponential"]
    assert full == float(theory.harmonic(6))
    exact = 100 * (1 - theory.dtur_exponential(6, "one").mean / full)
    assert (carry, drop, paper) == (pytest.approx(exact, abs=0.05),) * 3


def test_a_seed_of_a_cell_is_run_by_train_from_its_flag_file(tmp_path):
    cell = table.FOLDER / "speedup" / "smoke-n4-cb_dybw.flags"
    train = [sys.executable, "-m", "experiments.train", f"--flagfile={cell}", "--seed=3"]
    done = subprocess.run(
        train,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result["algorithm"], result["workers"], result["seed"]) == ("cb_dybw", 4, 3)
