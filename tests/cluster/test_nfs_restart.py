"""A file server that dies in the middle of whatever is being saved, and comes back."""

import itertools
import sys
import time

import pytest

from tests.cluster.nfs import RUNS

pytest_plugins = "tests.cluster.nfs_fixtures"

PROGRAM = [sys.executable, "-m", "tests.cluster.programs.nfs_saving"]
KINDS = ("checkpoint", "metrics", "data")
DOWN = 3.0  # seconds
PATIENCE = 60.0  # seconds until somebody has saved something


def reported(process) -> list[tuple[int, float]]:
    """The saves of which a writer has said that they are durable, and when."""
    lines = process.stdout.splitlines(True)
    words = [line.split() for line in lines if line.endswith("\n")]
    return [(int(number), float(seconds)) for number, seconds in words]


def await_saves(writers, more: int) -> None:
    """Until each of the writers has saved `more` than now."""
    wanted = {process: len(reported(process)) + more for process in writers}
    end = time.monotonic() + PATIENCE
    for process, number in wanted.items():
        while len(reported(process)) < number:
            assert process.poll() is None, process.stderr
            assert time.monotonic() < end, "nothing is saved any more"
            time.sleep(0.05)


@pytest.fixture
def writers(share):
    """Each kind of saving, on a client of its own; (kind, process)."""
    started = []
    share.guests[0].run(["mkdir", "-p", f"{RUNS}/saved/data"], timeout=30)
    try:
        for kind, guest in zip(KINDS, share.guests, strict=False):
            argv = [*PROGRAM, "save", kind, f"{RUNS}/saved/{kind}"]
            started.append((kind, guest.start(argv)))
        yield started
    finally:
        for _, process in started:
            process.kill()


def test_nothing_that_was_reported_as_saved_is_lost_when_the_server_is_killed(
    share, writers, figures
):
    processes = [process for _, process in writers]
    await_saves(processes, 3)
    share.server.kill()
    time.sleep(DOWN)
    share.server.start()
    await_saves(processes, 3)
    for process in processes:
        assert process.poll() is None, process.stderr
        process.kill()
        process.wait(30)
    reader = share.guests[3]
    for kind, process in writers:
        saves = reported(process)
        numbers = [number for number, _ in saves]
        assert numbers == list(range(len(numbers)))
        argv = [*PROGRAM, "found", kind, f"{RUNS}/saved/{kind}"]
        done = reader.run(argv, timeout=60)
        assert done.returncode == 0, done.stderr
        found = list(map(int, done.stdout.split()))
        # One more may have been saved and not yet reported.
        assert found in (numbers, [*numbers, len(numbers)])
        times = [seconds for _, seconds in saves]
        stall = max(b - a for a, b in itertools.pairwise(times))
        assert stall > DOWN  # it was in the middle of saving
        figures(
            f"NFS: server killed and back after {DOWN:g} s, who saves {kind} stalls for",
            f"{stall:.1f} s; none of {len(numbers)} saves lost",
        )
