"""On what a run on one machine listens: nothing from elsewhere reaches a rank."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from cbdybw.clusters.launch import mpirun

LISTENS = "0A"  # /proc/net/tcp's name of the state
LOOPBACK = {"0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F"}
RUN = [
    "-m", "experiments.train", "--cluster=mpi", "--algorithm=cb_full", "--workers=3",
    "--workload=quadratic:dim=1000", "--delay=exponential:mean=0.05", "--max_time=3",
    "--iterations=1000", "--eval_every=0",
]  # fmt: skip


def listeners() -> dict[str, str]:
    """Inode → address, as hexadecimal digits, of every socket that listens on this machine."""
    found = {}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == LISTENS:
                found[words[9]] = words[1].split(":")[0]
    return found


def family(pid: int) -> list[int]:
    """A process and all that it and its descendants have started."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(n for child in children for n in family(int(child)))]


def listening(pids: list[int]) -> dict[tuple[str, str], set[str]]:
    """(program, address) → inodes of the sockets of these processes that listen."""
    found: dict[tuple[str, str], set[str]] = {}
    everywhere = listeners()
    for pid in pids:
        name = Path(f"/proc/{pid}/comm").read_text().strip()
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            inode = str(descriptor.readlink()).removeprefix("socket:[").removesuffix("]")
            if inode in everywhere:
                found.setdefault((name, everywhere[inode]), set()).add(inode)
    return found


def test_no_rank_listens_and_mpirun_does_on_loopback_and_for_its_daemons_alone(
    figures: Callable[[str, str], None],
):
    argv, environ = mpirun(3, [sys.executable, *RUN])
    with subprocess.Popen(argv, env=environ, stdout=subprocess.DEVNULL) as run:
        try:
            end = time.monotonic() + 60
            while len(pids := family(run.pid)) < 4:
                assert time.monotonic() < end
                assert run.poll() is None
                time.sleep(0.1)
            seen: dict[tuple[str, str], set[str]] = {}
            while run.poll() is None and time.monotonic() < end:
                try:
                    for key, inodes in listening(pids).items():
                        seen.setdefault(key, set()).update(inodes)
                except FileNotFoundError:
                    break  # the run is ending
                time.sleep(0.1)
            assert run.wait(timeout=60) == 0
        finally:
            run.kill()
    assert {name for name, _ in seen} == {"prterun"}
    loopback = [inodes for (_, address), inodes in seen.items() if address in LOOPBACK]
    assert len(loopback) == 1
    # Open MPI 5.0's mpirun waits for daemons of other hosts on every interface, a socket for each
    # family of addresses, whatever its parameters say; PRRTE's later versions do not.
    wild = set().union(*(s for (_, address), s in seen.items() if address not in LOOPBACK))
    assert len(wild) == 2
    figures("sockets that ranks of one machine listen on", "0; mpirun: 1 on loopback, 2 on all")
