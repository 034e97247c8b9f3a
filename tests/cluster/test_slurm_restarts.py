"""Jobs that are cut off, by their time limit, by a node or by hand, and what they leave behind."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cbdybw.storage.ownership import check_is_free
from cbdybw.storage.run_directory import RunDirectory
from tests.cluster.slurm import Slurm, running
from tests.cluster.submitting import submitting
from tests.runs import arguments, outcome, run

MPI = {
    "algorithm": "cb_full",
    "workload": "quadratic:dim=50",
    "delay": "constant:mean=0.05",
    "eval_every": 50,
}
VIRTUAL = {
    "cb_dybw": {"algorithm": "cb_dybw", "iterations": 16_000},
    "bsp": {"algorithm": "bsp", "iterations": 30_000},
}
LONG = {
    "workload": "quadratic:dim=50",
    "delay": "exponential:mean=1",
    "eval_every": 0,
    "checkpoint_every": 500,
}


@pytest.fixture(scope="module")
def slurm(figures) -> Iterator[Slurm]:
    with running() as slurm:
        figures("Slurm of four nodes is up after", f"{slurm.seconds:.1f} s")
        yield slurm


def write(path: Path, flags: dict[str, Any]) -> str:
    """--flagfile for experiments.submit."""
    path.write_text("".join(f"{line}\n" for line in arguments(flags)))
    return f"--flagfile={path.name}"


def on_mpi(path: Path, iterations: int, every: int) -> str:
    more = {"cluster": "mpi", "iterations": iterations, "checkpoint_every": every}
    return write(path, MPI | more)


def estimates(folder: Path) -> list:
    return RunDirectory(folder).read_result()["estimates"].tolist()


def uninterrupted(folder: Path, iterations: int) -> list:
    """The final parameters of MPI's runs; they do not depend on clocks."""
    run(**MPI, iterations=iterations, run_dir=str(folder))
    return estimates(folder)


def await_checkpoint(folder: Path) -> None:
    end = time.monotonic() + 60
    while RunDirectory(folder).last_checkpoint() is None:
        assert time.monotonic() < end
        time.sleep(0.1)


def test_runs_that_are_out_of_time_are_saved_requeued_and_end_as_if_nothing_had_been(
    slurm, tmp_path, figures
):
    several = [write(tmp_path / f"{n}.flags", LONG | more) for n, more in VIRTUAL.items()]
    one = on_mpi(tmp_path / "mpi.flags", 400, 40)
    limit = "--sbatch=--time=1 --signal=B:USR2@29 --hold"
    with (
        submitting(slurm, *several, "--out=cut", limit, cwd=tmp_path) as cut,
        submitting(slurm, one, "--out=mpi", limit, cwd=tmp_path) as mpi,
        submitting(slurm, *several, "--out=whole", cwd=tmp_path) as whole,
    ):
        jobs = [*cut.jobs(tmp_path / "cut").values(), *mpi.jobs(tmp_path / "mpi").values()]
        assert whole.ended(120)[0] == 0
        slurm.before_check(6)
        slurm.run("scontrol", "release", *jobs)
        for job in jobs:
            slurm.wait(job, "RUNNING", seconds=20)
        for job in jobs:
            slurm.release(job, seconds=60)
        assert (cut.ended(120)[0], mpi.ended(60)[0]) == (0, 0)
    assert [slurm.show(job)["Restarts"] for job in jobs] == ["1", "1", "1"]
    for name in VIRTUAL:
        folder = tmp_path / "cut" / "runs" / f"{name}-0"
        assert outcome(folder) == outcome(tmp_path / "whole" / "runs" / f"{name}-0")
        assert 0 < RunDirectory(folder).manifest()["resumed_from"] < VIRTUAL[name]["iterations"]
    folder = tmp_path / "mpi" / "runs" / "mpi-0"
    assert 0 < RunDirectory(folder).manifest()["resumed_from"] < 400
    assert estimates(folder) == uninterrupted(tmp_path / "a", 400)
    log = (tmp_path / "mpi" / "logs" / f"{jobs[-1]}.log").read_text()
    assert log.count("SIGUSR2: the run stops after its next checkpoint") == 1
    assert "stopped at the checkpoint before iteration" in log


def test_a_run_whose_node_fails_is_requeued_and_ends_as_if_nothing_had_been(
    slurm, tmp_path, figures
):
    flags = on_mpi(tmp_path / "mpi.flags", 160, 20)
    folder = tmp_path / "mpi" / "runs" / "mpi-0"
    with submitting(slurm, flags, "--out=mpi", cwd=tmp_path) as submission:
        job = submission.jobs(tmp_path / "mpi")[0]
        slurm.wait(job, "RUNNING", seconds=20)
        await_checkpoint(folder)
        down = time.monotonic()
        slurm.run("scontrol", "update", "nodename=n2", "state=down", "reason=drill")
        slurm.release(job, seconds=40)
        waited = time.monotonic() - down
        figures("a job whose node is down is pending again after", f"{waited:.1f} s")
        assert submission.ended(90)[0] == 0
    assert slurm.show(job)["Restarts"] == "1"
    manifest = RunDirectory(folder).manifest()
    assert 0 < manifest["resumed_from"] < 160
    assert manifest["job"]["SLURM_JOB_ID"] == slurm.show(job)["JobId"]
    assert estimates(folder) == uninterrupted(tmp_path / "a", 160)


def test_a_cancelled_run_says_so_and_leaves_a_folder_that_goes_on(slurm, tmp_path):
    several = write(tmp_path / "long.flags", LONG | {"algorithm": "cb_dybw", "iterations": 10**6})
    one = on_mpi(tmp_path / "mpi.flags", 10_000, 20)
    folders = [tmp_path / "long" / "runs" / "long-0", tmp_path / "mpi" / "runs" / "mpi-0"]
    with (
        submitting(slurm, several, "--out=long", cwd=tmp_path) as long,
        submitting(slurm, one, "--out=mpi", cwd=tmp_path) as mpi,
    ):
        jobs = [long.jobs(tmp_path / "long")[0], mpi.jobs(tmp_path / "mpi")[0]]
        for folder in folders:
            await_checkpoint(folder)
        slurm.run("scancel", *jobs)
        ends = [long.ended(60), mpi.ended(60)]
    for folder, job, (code, _, said) in zip(folders, jobs, ends, strict=True):
        assert slurm.show(job)["JobState"] == "CANCELLED"
        assert RunDirectory(folder).manifest()["status"] == "cancelled"
        assert not list(folder.rglob("*.partial"))
        check_is_free(folder, None, "")
        assert code == 1
        assert f"{folder.name}: cancelled: Cancelled: ended by SIGTERM" in said[0]
    with submitting(slurm, one, "--out=mpi", "--again", cwd=tmp_path) as mpi:
        while RunDirectory(folders[1]).manifest()["status"] != "running":
            assert mpi.process.poll() is None
            time.sleep(0.1)
        again = mpi.jobs(tmp_path / "mpi")[0]
        slurm.run("scancel", again)
    assert again != jobs[1]
    assert RunDirectory(folders[1]).manifest()["resumed_from"] > 0
