"""Starts the programs of tests/programs on real MPI ranks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

from cbdybw.clusters.launch import mpirun

PROGRAMS = Path(__file__).parent / "programs"
ROOT = Path(__file__).parent.parent


def start(ranks: int, program: str, *args: str, seconds: float = 90) -> subprocess.CompletedProcess:
    """Run a program to its end; killed, and AssertionError, after `seconds`.

    `process_left` of the result: whether anything of it is still alive two seconds later.
    """
    token = f"run-{uuid.uuid4().hex}"  # the last argument of every rank, to find it by
    argv, env = mpirun(ranks, [sys.executable, str(PROGRAMS / program), *args, token])
    env["PYTHONPATH"] = str(ROOT)
    run = subprocess.Popen(
        argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    )
    try:
        out, err = run.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        for process in (run.pid, *alive(token)):
            os.kill(process, signal.SIGKILL)
        out, err = run.communicate()
        raise AssertionError(f"{program} {args} hung on {ranks} ranks\n{out}\n{err}") from None
    end = time.monotonic() + 2
    while alive(token) and time.monotonic() < end:
        time.sleep(0.05)
    done = subprocess.CompletedProcess(argv, run.returncode, out, err)
    done.process_left = bool(alive(token))
    return done


def alive(token: str) -> list[int]:
    """Processes with `token` on their command line."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if token.encode() in entry.read_bytes():
                found.append(int(entry.parent.name))
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended meanwhile
    return found
