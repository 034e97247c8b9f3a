"""What a batch system tells a run by signals: stop after the next checkpoint, or at once."""

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from cbdybw.clusters.launch import mpirun
from cbdybw.storage.ownership import check_is_free
from cbdybw.storage.run_directory import RunDirectory
from tests.mpirun import alive
from tests.runs import COMMAND, ROOT, arguments, outcome, run

WARNING = "SIGUSR2: the run stops after its next checkpoint, if there is to be one"
LONG = {"workload": "quadratic:dim=50", "eval_every": 0, "checkpoint_every": 20, "workers": 3}


def started(folder: Path, ranks: int, **flags) -> subprocess.Popen:
    """A run in processes of its own that has made its first checkpoint."""
    command = [*COMMAND, *arguments(LONG | flags | {"run_dir": folder})]
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    if ranks:
        command, environ = mpirun(ranks, [*command, "--cluster=mpi"])
        environ |= {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    end = time.monotonic() + 100
    while not list(folder.glob("checkpoints/*/complete.json")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.02)
    return process


def ended(process: subprocess.Popen) -> tuple[int, list[str]]:
    """Exit code and lines on stderr."""
    try:
        said = process.communicate(timeout=60)[1]
    finally:
        process.kill()
    lines = said.splitlines()
    return process.returncode, [line for line in lines if "connecting edges" not in line]


@pytest.mark.parametrize("algorithm", ["cb_dybw", "bsp", "adsp"])
def test_a_warned_run_stops_after_a_checkpoint_and_goes_on_to_the_same_end(tmp_path, algorithm):
    flags = {"algorithm": algorithm, "delay": "exponential:mean=1", "iterations": 12_000}
    if algorithm == "adsp":
        flags |= {"commit_rate": 20, "delay": "constant:mean=1"}
    process = started(tmp_path / "a", 0, **flags)
    process.send_signal(signal.SIGUSR2)
    code, lines = ended(process)
    directory = RunDirectory(tmp_path / "a")
    saved = directory.last_checkpoint()["k"]
    assert code == 75
    assert lines == [
        WARNING,
        f"stopped at the checkpoint before iteration {saved}; --resume goes on there",
    ]
    assert directory.manifest()["status"] == "interrupted"
    assert 0 < saved < 12_000
    run(**LONG, **flags, run_dir=str(tmp_path / "a"), resume=True)
    run(**LONG, **flags, run_dir=str(tmp_path / "b"))
    assert directory.manifest()["resumed_from"] == saved
    assert outcome(tmp_path / "a") == outcome(tmp_path / "b")


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_cancelled_run_says_so_and_leaves_a_folder_that_can_be_resumed(tmp_path, signum):
    flags = {"delay": "exponential:mean=1", "iterations": 12_000}
    process = started(tmp_path / "a", 0, **flags)
    process.send_signal(signum)
    code, lines = ended(process)
    said = f"ended by {signum.name}; --resume goes on from the last checkpoint, if any"
    assert (code, lines) == (128 + signum, [said])
    directory = RunDirectory(tmp_path / "a")
    assert directory.manifest()["status"] == "cancelled"
    assert directory.manifest()["failure"] == f"Cancelled: {said}"
    check_is_free(tmp_path / "a", None, "")
    run(**LONG, **flags, run_dir=str(tmp_path / "a"), resume=True)
    run(**LONG, **flags, run_dir=str(tmp_path / "b"))
    assert outcome(tmp_path / "a") == outcome(tmp_path / "b")


def estimates(folder: Path) -> list:
    return RunDirectory(folder).read_result()["estimates"].tolist()


MPI = {"algorithm": "cb_full", "delay": "constant:mean=0.004", "iterations": 600}


@pytest.mark.mpi
def test_a_warning_to_mpirun_stops_all_ranks_after_the_same_checkpoint(tmp_path):
    process = started(tmp_path / "a", 3, **MPI)
    process.send_signal(signal.SIGUSR2)
    code, lines = ended(process)
    directory = RunDirectory(tmp_path / "a")
    saved = directory.last_checkpoint()["k"]
    assert code == 75
    assert WARNING in lines
    assert f"stopped at the checkpoint before iteration {saved}; --resume goes on there" in lines
    assert directory.manifest()["status"] == "interrupted"
    assert 0 < saved < MPI["iterations"]
    run(**LONG | MPI, run_dir=str(tmp_path / "b"))  # gradients do not depend on the clock
    again, environ = mpirun(
        3,
        [
            *COMMAND,
            *arguments(LONG | MPI | {"run_dir": tmp_path / "a"}),
            "--cluster=mpi",
            "--resume",
        ],
    )
    done = subprocess.run(again, env=environ, cwd=ROOT, capture_output=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert directory.manifest()["resumed_from"] == saved
    assert estimates(tmp_path / "a") == estimates(tmp_path / "b")


@pytest.mark.mpi
def test_a_cancelled_mpirun_leaves_the_status_cancelled_and_no_rank(tmp_path):
    process = started(tmp_path / "a", 3, **MPI | {"iterations": 100_000})
    process.send_signal(signal.SIGTERM)
    code, lines = ended(process)
    assert (code, lines) == (1, [])  # of mpirun, which passes nothing on any more
    directory = RunDirectory(tmp_path / "a")
    assert directory.manifest()["status"] == "cancelled"
    check_is_free(tmp_path / "a", None, "")
    assert directory.last_checkpoint()["k"] > 0


@pytest.mark.mpi
@pytest.mark.parametrize("rank", [0, 2])
def test_a_rank_that_is_ended_alone_does_not_leave_the_others_waiting(tmp_path, rank):
    process = started(tmp_path / "a", 3, **MPI | {"iterations": 100_000})
    ranks = [pid for pid in alive(str(tmp_path)) if pid != process.pid]
    (chosen,) = (pid for pid in ranks if f"OMPI_COMM_WORLD_RANK={rank}" in _environment(pid))
    os.kill(chosen, signal.SIGTERM)
    code, lines = ended(process)
    assert code == 1
    assert re.fullmatch(rf"rank {rank} was lost in iteration \d+; the run ends", lines[-1])
    status = RunDirectory(tmp_path / "a").manifest()["status"]
    assert status == ("failed" if rank else "cancelled")


def _environment(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/environ").read_text(errors="replace").split("\0")


@pytest.mark.mpi
def test_ranks_that_have_lost_mpirun_end(tmp_path):
    process = started(tmp_path / "a", 3, **MPI | {"iterations": 100_000})
    process.kill()
    end = time.monotonic() + 20
    while alive(str(tmp_path)) and time.monotonic() < end:
        time.sleep(0.1)
    assert alive(str(tmp_path)) == []
    assert RunDirectory(tmp_path / "a").manifest()["status"] == "cancelled"
