"""Many runs by one command: which ones, in which folders, here and again. Slurm: tests/cluster."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cbdybw.errors import BadInput
from cbdybw.storage.run_directory import RunDirectory
from experiments import arrays
from tests.runs import ROOT, arguments, outcome, run

SHORT = "# a small run\n--workload=quadratic:dim=5\n--delay=exponential:mean=1\n--iterations=40\n"


def submit(*arguments: str, cwd: Path) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "experiments.submit", *arguments],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: subprocess.Popen) -> tuple[int, list[str], list[str]]:
    """Exit code, lines on stdout and on stderr."""
    try:
        out, err = process.communicate(timeout=100)
    finally:
        process.kill()
    return process.returncode, out.splitlines(), err.splitlines()


@pytest.fixture
def home(tmp_path) -> Path:
    """A folder with a flag file."""
    (tmp_path / "lrm.flags").write_text(SHORT)
    return tmp_path


@pytest.mark.parametrize(
    ("array", "seeds"),
    [
        ("seeds:0-4", [0, 1, 2, 3, 4]),
        ("seeds:7,0,3", [0, 3, 7]),
        ("seeds:0-2,2,9-10", [0, 1, 2, 9, 10]),
    ],
)
def test_an_array_names_seeds(array, seeds):
    assert arrays.seeds(array) == seeds


@pytest.mark.parametrize(
    "array",
    ["0-4", "seeds:", "seeds:4-0", "seeds:1,", "seeds:-1", "cells:a", "seeds:0-99999999999"],
)
def test_an_array_that_names_none_is_refused(array):
    with pytest.raises(BadInput, match=f"^--array={array}: .*(write|name fewer)"):
        arrays.seeds(array)


def test_tasks_are_flag_files_times_seeds_in_folders_of_their_own(home):
    other = home / "other.flags"
    other.write_text("--seed=8\n--cluster=mpi\n--algorithm=bsp\n--servers=2\n--checkpoint_every=5")
    files = arrays.found([str(home / "*.flags")])
    assert files == [home / "lrm.flags", other]
    tasks = arrays.tasks(files, "seeds:1-2", {"iterations": 60}, home / "out")
    assert [(t.number, t.name, t.ranks) for t in tasks] == [
        (0, "lrm-1", 1),
        (1, "lrm-2", 1),
        (2, "other-1", 8),
        (3, "other-2", 8),
    ]
    assert {t.settings.iterations for t in tasks} == {60}
    assert tasks[3].settings.run_dir == str(home / "out" / "runs" / "other-2")
    own = arrays.tasks(files, "", {}, home / "out")
    assert [(t.name, t.settings.seed, t.settings.iterations) for t in own] == [
        ("lrm-0", 0, 40),
        ("other-8", 8, 200),
    ]


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        ([], "--flagfile: names nothing; give a file with a flag on each line"),
        (["--flagfile"], "--flagfile: names nothing; give a file with a flag on each line"),
        (["--flagfile=no.flags"], "--flagfile=no.flags: no such file; name one"),
        (["--flagfile=bad.flags"], "bad.flags: --algorithm=best: not known; use "),
        (["--flagfile=trials.flags"], "trials.flags: its kind is trials; submit flag files of"),
        (["--flagfile=lrm.flags", "--workers=0"], "lrm.flags: --workers=0"),
        (["--flagfile=lrm.flags", "--array=all"], "--array=all: not understood; write seeds:0-4"),
        (["--flagfile=lrm.flags", "--run_dir=x"], "--run_dir: is chosen for each task; use "),
        (["--flagfile=lrm.flags", "--array=seeds:1", "--seed=2"], "--seed: is chosen for each"),
        (["--flagfile=lrm.flags", "--flagfile=b/lrm.flags"], "two flag files have this name"),
        (["--flagfile=lrm.flags", "--out=b", "--local"], "exists already and is no submission"),
        (["--flagfile=lrm.flags", "--sbatch=--time='1", "--dry_run"], "write it as in a shell"),
        (["--flagfile=lrm.flags", "--jobs=0"], "--jobs"),
        (["--flagfile=lrm.flags"], "sbatch: not on PATH; log in where Slurm is, or add --local"),
    ],
)
def test_what_cannot_be_submitted_is_refused_in_one_line(home, monkeypatch, flags, complaint):
    monkeypatch.setenv("PATH", str(home))  # where there is no sbatch
    (home / "b").mkdir()
    (home / "b" / "lrm.flags").write_text(SHORT)
    (home / "bad.flags").write_text("--algorithm=best\n")
    (home / "trials.flags").write_text("# kind: trials\n--seed=1\n")
    code, _, err = ended(submit(*flags, cwd=home))
    assert (code, len(err)) == (2, 1)
    assert complaint in err[0]
    assert not (home / "runs").exists()


def test_a_dry_run_shows_what_would_be_submitted_and_writes_nothing(home):
    flags = ("--flagfile=lrm.flags", "--array=seeds:0-1,5", "--cluster=mpi", "--workers=3")
    code, out, err = ended(submit(*flags, "--sbatch=--time=5 -p 'a b'", "--dry-run", cwd=home))
    assert (code, err) == (0, [])
    submission = home / "runs" / "lrm"
    assert out[:3] == [f"# task {i}: {submission}/runs/lrm-{s}" for i, s in enumerate((0, 1, 5))]
    assert out[3] == (
        f"sbatch --parsable --job-name=lrm --ntasks=3 --array=0-2 "
        f"--output={submission}/logs/%A_%a.log --time=5 -p 'a b' {submission}/job.sh"
    )
    assert out[4:6] == [f"# {submission}/job.sh", "#!/bin/bash"]
    mpirun = Path(sys.executable).parent / "mpirun"
    assert f'launch=({mpirun} --with-ft ulfm --bind-to none -n "$SLURM_NTASKS")' in out
    assert not [line for line in out if "--algorithm" in line]  # the template's own settings
    assert os.listdir(home) == ["lrm.flags"]


def test_local_runs_are_those_of_experiments_train_and_are_not_done_twice(home):
    (home / "wild.flags").write_text(f"{SHORT}--eta0=1000\n--algorithm=cb_full\n")
    flags = ("--flagfile=lrm.flags", "--flagfile", "wild.flags", "--array=seeds:3,4", "--out=a b")
    code, out, err = ended(submit(*flags, "--local", "--jobs=2", cwd=home))
    assert (code, err) == (3, [])
    assert out[-1].startswith(f"{home}/a b/runs: a folder a run")
    assert [line.split()[:2] for line in out[-5:-1]] == [
        ["lrm-3", "finished"],
        ["lrm-4", "finished"],
        ["wild-3", "diverged"],
        ["wild-4", "diverged"],
    ]
    assert max(map(len, out[-6:-1])) <= 80
    flags_of_run = {"workload": "quadratic:dim=5", "delay": "exponential:mean=1", "iterations": 40}
    run(**flags_of_run, seed=4, run_dir=str(home / "one"))
    assert outcome(home / "a b" / "runs" / "lrm-4") == outcome(home / "one")
    done = home / "a b" / "runs"
    before = {path: path.stat().st_mtime_ns for path in done.rglob("*")}
    assert ended(submit(*flags, "--local", cwd=home))[0] == 3
    assert {path: path.stat().st_mtime_ns for path in done.rglob("*")} == before


LONG = {
    "workload": "quadratic:dim=50",
    "delay": "exponential:mean=1",
    "checkpoint_every": 100,
    "eval_every": 0,
}


def test_a_local_run_that_is_warned_or_interrupted_goes_on_from_its_checkpoint(home):
    (home / "long.flags").write_text("\n".join(arguments(LONG)))
    folder = home / "runs" / "long" / "runs" / "long-0"
    flags = ("--flagfile=long.flags", "--local", "--iterations=20000")
    process = submit(*flags, cwd=home)
    _await_checkpoint(folder)
    code, _, err = ended(submit(*flags, cwd=home))
    assert code == 2
    assert f"--out={home}/runs/long: in use by process {process.pid} on " in err[0]
    first = RunDirectory(folder).manifest()["process"]
    os.kill(first, signal.SIGUSR2)  # it ends with 75, and is started again
    _await(lambda: RunDirectory(folder).manifest()["process"] != first)
    saved = RunDirectory(folder).last_checkpoint()["k"]
    _await(lambda: RunDirectory(folder).last_checkpoint()["k"] > saved)
    process.send_signal(signal.SIGINT)
    code, _, err = ended(process)
    assert code == 130
    assert err == [
        "interrupted: the runs have ended; the same command goes on from their checkpoints"
    ]
    manifest = RunDirectory(folder).manifest()
    assert (manifest["status"], manifest["resumed_from"] > 0) == ("cancelled", True)
    assert ended(submit(*flags, cwd=home))[0] == 0
    run(**LONG, iterations=20000, run_dir=str(home / "whole"))
    assert outcome(folder) == outcome(home / "whole")


def test_a_run_that_fails_is_named_with_its_reason_and_its_log(home):
    (home / "lost.flags").write_text(f"{SHORT}--dataset=mnist\n--faults=none.toml\n")
    code, out, err = ended(submit("--flagfile=l*.flags", "--out=o", "--local", cwd=home))
    assert code == 1
    assert [line.split()[:2] for line in out[-3:-1]] == [
        ["lost-0", "failed"],
        ["lrm-0", "finished"],
    ]
    assert err[0].startswith("lost-0: failed: ")
    assert "none.toml" in err[0]
    assert err[0].endswith(f"its log is {home}/o/logs/0.log")
    assert err[1] == "1 of 2 runs failed: mend that, then the same command goes on with them"


@pytest.mark.mpi
def test_local_runs_may_have_ranks(home):
    flags = ("--flagfile=lrm.flags", "--cluster=mpi", "--workers=2", "--local", "--out=o")
    code, _, err = ended(submit(*flags, "--delay=none", cwd=home))
    assert (code, err) == (0, [])
    assert RunDirectory(home / "o" / "runs" / "lrm-0").manifest()["result"]["ranks"] == 2


def _await_checkpoint(folder: Path) -> None:
    _await(lambda: RunDirectory(folder).last_checkpoint() is not None)


def _await(there) -> None:
    end = time.monotonic() + 60
    while not there():
        assert time.monotonic() < end
        time.sleep(0.05)
