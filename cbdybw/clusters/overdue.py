"""mpirun, when it waits for a host that is gone.

The daemon that it has started there does not answer, and TCP goes on asking for a quarter of an
hour. Neither signals nor Open MPI's parameters cut that short, and a batch job whose ranks have all
left would stand still. So the root, which mostly is a child of mpirun, leaves somebody behind who
waits for the end of mpirun and after a while brings it about.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

PATIENCE = 20.0
"""Seconds that mpirun has for ending by itself."""


def expect_end_of_mpirun() -> None:
    """Call when a rank was lost and this one is about to leave, as all others do."""
    parent = os.getppid()
    try:
        name = Path(f"/proc/{parent}/comm").read_text().strip()
    except OSError:
        return  # it has ended, or there is no /proc
    if name != "prterun":  # what mpirun is from Open MPI 5 on; a daemon of its ends with it
        return
    mpirun = os.pidfd_open(parent)
    command = [sys.executable, __file__, str(mpirun)]
    silent = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    subprocess.Popen(command, pass_fds=[mpirun], start_new_session=True, **silent)


def main(mpirun: int) -> None:
    """Wait for the end of the process that this descriptor stands for."""
    if not select.select([mpirun], [], [], PATIENCE)[0]:
        signal.pidfd_send_signal(mpirun, signal.SIGKILL)


if __name__ == "__main__":
    main(int(sys.argv[1]))
