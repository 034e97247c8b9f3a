"""Whose a run folder is when hosts share it, whatever their clocks say; and folders that vanish."""

import contextlib
import shutil
import signal
import time

import pytest

from cbdybw.storage import datasets
from cbdybw.storage.run_directory import RunDirectory
from tests.cluster.nfs import RUNS
from tests.runs import COMMAND, arguments, result

pytest_plugins = "tests.cluster.nfs_fixtures"

HOUR = 3600  # seconds
PATIENCE = 60.0  # seconds
FLAGS = {
    "algorithm": "cb_full",
    "workload": "quadratic:dim=50",
    "workers": 3,
    "checkpoint_every": 200,
    "eval_every": 0,
}
ENDLESS = FLAGS | {"iterations": 10**6}
GONE = "its folder is gone: begin anew in another one"


@contextlib.contextmanager
def running(share, guest, name: str, **environ):
    """A run without end on a guest, which has made its first checkpoint; gone afterwards."""
    argv = [*COMMAND, *arguments(ENDLESS | {"run_dir": f"{RUNS}/{name}"})]
    process = guest.start(argv, **environ)
    try:
        end = time.monotonic() + PATIENCE
        while not list((share.folder / name).glob("checkpoints/*/complete.json")):
            assert process.poll() is None, process.stderr
            assert time.monotonic() < end
            time.sleep(0.1)
        yield process
    finally:
        process.kill()


def resumed(guest, name: str, timeout: float, iterations: int = 10**6, **environ):
    """Go on with a run on another guest."""
    flags = FLAGS | {"run_dir": f"{RUNS}/{name}", "iterations": iterations}
    return guest.run([*COMMAND, *arguments(flags), "--resume"], timeout, **environ)


@pytest.fixture
def skewed(share):
    """Three guests: the clock of the second is an hour fast, that of the third an hour slow."""
    first, fast, slow = share.guests[:3]
    fast.skew(HOUR)
    slow.skew(-HOUR)
    try:
        yield first, fast, slow
    finally:
        fast.skew(-HOUR)
        slow.skew(HOUR)


def test_a_run_folder_has_one_owner_on_all_hosts_until_that_is_dead(share, skewed, figures):
    first, fast, slow = skewed
    with running(share, first, "owned", SLURM_JOB_ID=4711) as process:
        for guest, job in ((fast, 4712), (slow, 4713)):
            refused = resumed(guest, "owned", timeout=60, SLURM_JOB_ID=job)
            assert refused.returncode == 2
            said = f"{RUNS}/owned: in use by process {process.pid} on guest1 (job 4711) since "
            assert said in refused.stderr
            assert len(refused.stderr.splitlines()) == 1
        assert process.poll() is None
        first.kill()
    began, last = time.monotonic(), last_checkpoint(share, "owned")
    # Slurm starts the job again on another node: it waits until its first start is surely dead.
    job = {"SLURM_JOB_ID": 4711, "SLURM_RESTART_COUNT": 1}
    again = resumed(fast, "owned", 120, last + 100, **job)
    took = time.monotonic() - began
    assert again.returncode == 0, again.stderr
    assert f"waits for the end of process {process.pid} on guest1 (job 4711)" in again.stderr
    figures("NFS: host lost, its job has gone on and ended on another one after", f"{took:.0f} s")
    manifest = RunDirectory(share.folder / "owned").manifest()
    assert (manifest["status"], manifest["resumed_from"]) == ("finished", last)
    assert result(again)["iterations"] == last + 100
    (owner,) = (share.folder / "owned").glob("owner.*")
    assert (owner.name, owner.stat().st_mtime) == ("owner.2.json", 0)  # it has left


def test_a_killed_run_goes_on_at_once_on_its_own_host(share):
    guest = share.guests[1]
    with running(share, guest, "killed") as process:
        process.kill()
        assert process.wait(30).returncode == -signal.SIGKILL
    last = last_checkpoint(share, "killed")
    again = resumed(guest, "killed", 60, last + 100)
    assert again.returncode == 0, again.stderr
    assert RunDirectory(share.folder / "killed").manifest()["resumed_from"] == last


def test_prepared_data_are_good_whatever_the_clocks_of_hosts(share, skewed):
    flags = {"dataset": "digits", "pca": 20, "workers": 3, "batch_size": 200}
    said = []
    for guest in skewed:
        argv = ["-m", "data_prep.prepare", *arguments(flags | {"out": f"{RUNS}/digits"})]
        done = guest.python(*argv, timeout=60)
        assert done.returncode == 0, done.stderr
        said.append(done.stdout.splitlines()[-1])
    assert len(set(said)) == 1
    assert len(datasets.load(share.folder / "digits").parts) == 3
    assert not list(share.folder.glob(".digits.*"))


@pytest.mark.parametrize("who", ["client", "server"])
def test_a_folder_that_is_removed_elsewhere_ends_its_run_with_one_line(share, who):
    name = f"removed by {who}"
    with running(share, share.guests[1], name) as process:
        if who == "client":
            path = f"{RUNS}/{name}"
            remove = f'mv "{path}" "{path}.old" && rm -r "{path}.old"'
            share.guests[2].run(["sh", "-c", remove], timeout=60)
        else:
            (share.folder / name).rename(share.folder / "old")
            shutil.rmtree(share.folder / "old", ignore_errors=True)  # the run may write into it
        done = process.wait(60)
    lines = done.stderr.splitlines()
    assert (done.returncode, len(lines)) == (1, 1), done.stderr
    assert lines[0].startswith(f"{RUNS}/{name}")
    assert lines[0].endswith(GONE)
    assert not (share.folder / name).exists()


def last_checkpoint(share, name: str) -> int:
    return RunDirectory(share.folder / name).last_checkpoint()["k"]
