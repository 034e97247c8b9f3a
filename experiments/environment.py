"""Who ran what on which machine, and fingerprints of results."""

from __future__ import annotations

import datetime
import getpass
import hashlib
import os
import platform
import socket
import subprocess
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from cbdybw.storage.ownership import Job

PACKAGES = ("numpy", "networkx", "tensorflow-cpu", "keras", "mpi4py", "openmpi", "horovod")


def manifest() -> dict[str, Any]:
    """Git commit, versions, host and batch job of this process."""
    return {
        **git(),
        "started": datetime.datetime.now(datetime.UTC).isoformat(),
        "user": _user(),
        "process": os.getpid(),
        "machine": machine(),
        "versions": versions(),
        "job": {key: value for key, value in os.environ.items() if key.startswith("SLURM_JOB")},
    }


def job() -> Job | None:
    """The batch job of this process, by the name that Slurm gives it."""
    task = [os.environ.get(f"SLURM_ARRAY_{part}_ID") for part in ("JOB", "TASK")]
    name = "_".join(task) if all(task) else os.environ.get("SLURM_JOB_ID")
    return Job(name, int(os.environ.get("SLURM_RESTART_COUNT", 0))) if name else None


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may know numbers only
        return str(os.getuid())


def git() -> dict[str, Any]:
    """The commit that this code is, and whether files differ from it; None outside a checkout."""
    here = Path(__file__).parent

    def ask(*words: str) -> str | None:
        try:
            return subprocess.run(
                ["git", *words], cwd=here, capture_output=True, text=True, check=True
            ).stdout.strip()
        except (OSError, subprocess.CalledProcessError):
            return None

    status = ask("status", "--porcelain", "--untracked-files=no")
    return {"commit": ask("rev-parse", "HEAD"), "dirty": None if status is None else status != ""}


def machine() -> dict[str, Any]:
    """Host, processor and cores."""
    return {
        "host": socket.gethostname(),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "system": platform.platform(),
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def versions() -> dict[str, str]:
    """Python and the packages that numbers depend on; those not installed are left out."""
    installed = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            installed[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return installed


def sha256(vectors: Iterable[np.ndarray]) -> str | None:
    """Fingerprint of the estimates of all ranks; None for those of a timing-only run."""
    digest = hashlib.sha256()
    for vector in vectors:
        if not isinstance(vector, np.ndarray):
            return None
        digest.update(np.ascontiguousarray(vector).tobytes())
    return digest.hexdigest()


def combined(digests: list[str]) -> str:
    """One fingerprint of those of several processes; a single one stays as it is."""
    return (
        digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()
    )
