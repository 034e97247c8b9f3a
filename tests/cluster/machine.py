"""What the drills need of this machine, and installing it where it is missing."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache


@cache
def unable() -> str | None:
    """Why no drill can run here; None where they can."""
    if os.geteuid() != 0:
        return "needs root: network namespaces, mounts and daemons are made"
    if shutil.which("apt-get") is None:
        return "needs Debian or one of its kin: programs are installed by apt-get"
    return None


def install(programs: Sequence[str], packages: Sequence[str]) -> None:
    """Install `packages` unless all `programs` are there. RuntimeError with apt-get's own words."""
    if all(map(shutil.which, programs)):
        return
    environ = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update"], ["install", "--yes", "--no-install-recommends", *packages]):
        done = subprocess.run(
            ["apt-get", "-qq", *command], env=environ, capture_output=True, text=True
        )
        if done.returncode:
            raise RuntimeError(f"apt-get {' '.join(command)}: {done.stderr.strip()}")
