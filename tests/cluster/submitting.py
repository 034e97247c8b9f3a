"""experiments.submit under way on the drills' Slurm."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.cluster.slurm import Slurm

_SOON = 60.0  # seconds in which something has been submitted


@contextlib.contextmanager
def submitting(slurm: Slurm, *arguments: str, cwd: Path) -> Iterator[Submitting]:
    """`experiments.submit` while the block lasts; Ctrl-C ends it if nothing else does."""
    process = subprocess.Popen(
        [sys.executable, "-m", "experiments.submit", *arguments],
        cwd=cwd,
        env=slurm.environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield Submitting(process)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        process.wait(30)
        for pipe in (process.stdout, process.stderr):
            pipe.close()


class Submitting:
    """The command."""

    def __init__(self, process: subprocess.Popen):
        self.process = process

    def jobs(self, out: Path) -> dict[int, str]:
        """Task → job, once it has submitted something into the folder `out`."""
        end = time.monotonic() + _SOON
        while time.monotonic() < end:
            with contextlib.suppress(FileNotFoundError):
                if jobs := json.loads((out / "submission.json").read_text())["jobs"]:
                    return {int(task): job for task, job in jobs.items()}
            assert self.process.poll() is None, self.process.communicate()
            time.sleep(0.1)
        raise AssertionError(f"nothing submitted in {_SOON:g} s")

    def ended(self, seconds: float) -> tuple[int, list[str], list[str]]:
        """Exit code, and the lines on stdout and stderr."""
        out, err = self.process.communicate(timeout=seconds)
        return self.process.returncode, out.splitlines(), err.splitlines()
