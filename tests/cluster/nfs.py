"""A shared folder on real NFS: a server, and clients with kernels of their own.

    with shared(folder, work, clients=2) as share:
        writer, reader = share.guests
        writer.python("-m", "experiments.train", f"--run_dir={RUNS}/a", timeout=60)

Drills have it by the fixture of `tests.cluster.nfs_fixtures`.

By hand: `python -m tests.cluster.nfs FOLDER -- COMMAND…` runs a command in a guest that has FOLDER
mounted as RUNS, and prints what it prints.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.cluster.ganesha import Ganesha
from tests.cluster.uml import Guest, guests
from tests.cluster.wire import Wire

RUNS = "/mnt/runs"
"""The export /runs, in every guest, with the recommended options."""
SMALL = "/mnt/small"
"""The export /small likewise, with room for 8 MB."""
_DISK = "8m"


class Share(NamedTuple):
    """What a drill has to do with.

    Attributes:
        folder: what is mounted as RUNS, as this machine sees it.
        wire: between server and guests.
    """

    folder: Path
    wire: Wire
    server: Ganesha
    guests: list[Guest]

    def ready(self) -> Share:
        """This, after whatever an earlier drill has ended is back."""
        if not self.server.runs:
            self.server.start()
        for guest in self.guests:
            if not guest.runs:
                guest.boot()
                _mount(guest)
        return self


@contextmanager
def shared(folder: Path, work: Path, clients: int) -> Iterator[Share]:
    """`folder`, on NFS; `work`, an empty folder, is for logs and state."""
    small = work / "small"
    small.mkdir()
    with (
        Wire(clients, (small, _DISK)) as wire,
        Ganesha(wire, work / "server", {"/runs": folder, "/small": small}) as server,
        guests(wire, clients, work) as all_,
    ):
        for guest in all_:
            _mount(guest)
        yield Share(folder, wire, server, all_)


def _mount(guest: Guest) -> None:
    guest.mount("/runs", RUNS)
    guest.mount("/small", SMALL)


def main(folder: str, command: list[str]) -> int:
    """The binary."""
    with tempfile.TemporaryDirectory(prefix="nfs.") as work:
        with shared(Path(folder).resolve(), Path(work), clients=1) as share:
            process = share.guests[0].start(command)
            try:
                done = process.wait(600)
            except subprocess.TimeoutExpired:
                print(f"{process.stdout}\n{process.stderr}\nstill runs after 600 s")
                return 1
        sys.stdout.write(done.stdout)
        sys.stderr.write(done.stderr)
        return done.returncode


if __name__ == "__main__":
    if len(sys.argv) < 4 or sys.argv[2] != "--":
        sys.exit("python -m tests.cluster.nfs FOLDER -- COMMAND…")
    sys.exit(main(sys.argv[1], sys.argv[3:]))
