"""The job templates of nfs_setup/slurm, as they are but for what is meant to be edited."""

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cbdybw.storage.run_directory import RunDirectory
from tests.cluster.slurm import NODES, Slurm, running
from tests.cluster.submitting import submitting
from tests.runs import ROOT, run

TEMPLATES = ROOT / "nfs_setup" / "slurm"
SMALL = "--workload=quadratic:dim=20 --delay=constant:mean=0.03 --eval_every=20"
KILL = '[[fault]]\nkind = "kill"\nranks = [3]\niteration = 20\n'


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    with running() as slurm:
        yield slurm


@pytest.fixture
def home(tmp_path) -> Path:
    """A folder in which templates find .venv."""
    (tmp_path / ".venv").symlink_to(Path(sys.executable).parents[1])
    return tmp_path


def edited(name: str, home: Path, **lines: str) -> Path:
    """A template in which the arrays `lines` have other values."""
    text = (TEMPLATES / name).read_text()
    for start, value in lines.items():
        before = [line for line in text.splitlines() if line.startswith(f"{start}=(")]
        assert len(before) == 1, before
        text = text.replace(before[0], f"{start}=({value})")
    path = home / name
    path.write_text(text)
    return path


def manifest(folder: Path) -> dict:
    return RunDirectory(folder).manifest()


def estimates(folder: Path) -> list:
    return RunDirectory(folder).read_result()["estimates"].tolist()


def test_one_run_on_the_ranks_of_several_nodes(slurm, home, figures):
    flags = '--algorithm=cb_dybw --workers="$SLURM_NTASKS" --dataset=digits --pca=20 '
    flags += "--batch_size=128 --delay=exponential:mean=0.02 --iterations=60 --checkpoint_every=20"
    began = time.monotonic()
    job = slurm.sbatch(edited("mpi.sh", home, flags=flags), cwd=home)
    facts = slurm.wait(job, "COMPLETED", seconds=120)
    figures("a batch job of six MPI ranks that learns digits", f"{time.monotonic() - began:.0f} s")
    assert facts["NumNodes"] == "3"
    result = manifest(home / "runs" / job)["result"]
    assert (result["ranks"], result["iterations"], result["lost"]) == (6, 60, [])
    assert result["test_error"] < 0.2


def test_an_array_over_cells_and_seeds(slurm, home):
    for name in ("one", "two"):
        algorithm = {"one": "cb_full", "two": "bsp"}[name]
        (home / f"{name}.flags").write_text(
            f"--workload=quadratic:dim=5\n--iterations=70\n--algorithm={algorithm}\n"
        )
    script = edited("array.sh", home, cells="{one,two}.flags", seeds="4 9")
    job = slurm.sbatch("--array=0-4", script, cwd=home)
    for task in range(4):
        slurm.wait(f"{job}_{task}", "COMPLETED", seconds=60)
    slurm.wait(f"{job}_4", "FAILED", seconds=30)
    runs = {path.name: manifest(path)["result"] for path in (home / "runs" / job).iterdir()}
    assert {name: (r["algorithm"], r["seed"]) for name, r in runs.items()} == {
        "one-4": ("cb_full", 4),
        "one-9": ("cb_full", 9),
        "two-4": ("bsp", 4),
        "two-9": ("bsp", 9),
    }
    log = (home / f"cells-{job}_4.log").read_text()
    assert "--array has more tasks than there are cells × seeds" in log


def test_a_run_warned_while_it_loads_is_saved_though_it_may_not_requeue_itself(slurm, home):
    (home / "a.flags").write_text(
        "--workload=quadratic:dim=50\n--checkpoint_every=1000\n--eval_every=0\n"
    )
    flags = ("--flagfile=a.flags", "--out=a", "--iterations=15000")
    with submitting(slurm, *flags, "--sbatch=--no-requeue", cwd=home) as submission:
        job = submission.jobs(home / "a")[0]
        slurm.wait(job, "RUNNING", seconds=30)
        time.sleep(0.5)
        assert not (home / "a" / "runs").exists()  # Python loads
        slurm.run("scancel", "--batch", "--signal=USR2", job)
        code, _, err = submission.ended(90)
    assert code == 1
    assert err[0].startswith("a-0: interrupted: Interrupted: stopped at the checkpoint before")
    log = (home / "a" / "logs" / f"{job}.log").read_text()
    assert "this cluster lets no job requeue itself; it has lost no more than" in log
    assert log.count("SIGUSR2") == 1
    with submitting(slurm, *flags, "--again", cwd=home) as submission:
        assert submission.ended(90)[0] == 0
    assert 0 < manifest(home / "a" / "runs" / "a-0")["resumed_from"] < 15_000


def test_a_preempted_run_goes_on_when_there_is_room(slurm, home, figures):
    flags = f'--algorithm=cb_full --workers="$SLURM_NTASKS" {SMALL} '
    flags += "--iterations=300 --checkpoint_every=20"
    script = edited("preempted.sh", home, flags=flags)
    job = slurm.sbatch("--partition=work", script, cwd=home)
    folder = home / "runs" / "preempted"
    end = time.monotonic() + 60
    while RunDirectory(folder).last_checkpoint() is None:
        assert time.monotonic() < end
        time.sleep(0.1)
    began = time.monotonic()
    urgent = slurm.sbatch(
        *("--partition=urgent", f"--nodes={len(NODES)}", "--exclusive", "--wrap=true"), cwd=home
    )
    slurm.wait(job, "PENDING", seconds=40)
    figures("a preempted job is pending again after", f"{time.monotonic() - began:.1f} s")
    assert manifest(folder)["status"] == "cancelled"
    slurm.wait(urgent, "COMPLETED", seconds=30)
    slurm.release(job)
    slurm.wait(job, "COMPLETED", seconds=60)
    assert 0 < manifest(folder)["resumed_from"] < 300
    assert slurm.show(job)["Restarts"] == "1"
    run(
        algorithm="cb_full",
        workload="quadratic:dim=20",
        iterations=300,
        run_dir=str(home / "uninterrupted"),
    )
    assert estimates(folder) == estimates(home / "uninterrupted")


def test_srun_starts_the_ranks_too_but_they_do_not_outlive_one_of_them(slurm, home):
    (home / "kill.toml").write_text(KILL)
    train = f".venv/bin/python -m experiments.train --cluster=mpi --workers=6 {SMALL} "
    train += "--algorithm=cb_full --iterations=80 --recovery=without --faults=kill.toml"
    mpirun = ".venv/bin/mpirun --with-ft ulfm --bind-to none -n 6"
    for launcher, name in (("srun --mpi=pmix", "srun"), (mpirun, "mpirun")):
        (home / f"{name}.sh").write_text(f"#!/bin/bash\n{launcher} {train} --run_dir={name}\n")
    (home / "whole.sh").write_text(
        f"#!/bin/bash\nsrun --mpi=pmix {train.partition(' --recovery')[0]} --run_dir=whole\n"
    )
    slurm.wait(slurm.sbatch("--ntasks=6", "whole.sh", cwd=home), "COMPLETED", seconds=60)
    killed = slurm.sbatch("--ntasks=6", "srun.sh", cwd=home)
    slurm.wait(killed, "FAILED", seconds=60)
    slurm.wait(slurm.sbatch("--ntasks=6", "mpirun.sh", cwd=home), "COMPLETED", seconds=60)
    run(
        algorithm="cb_full",
        workload="quadratic:dim=20",
        iterations=80,
        run_dir=str(home / "virtual"),
    )
    assert estimates(home / "whole") == estimates(home / "virtual")
    assert manifest(home / "srun")["status"] in ("running", "failed", "cancelled")
    assert manifest(home / "mpirun")["result"]["lost"] == [3]
    assert manifest(home / "mpirun")["status"] == "finished"
