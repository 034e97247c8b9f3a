"""What is tried in a folder, on one host: each probe measures and judges nothing.

A probe takes the folder and plain values, and returns something that JSON can carry. What the
system refuses is raised as OSError. `nfs_setup.peers` runs probes in processes of their own, here
and on other hosts; `nfs_setup.verdicts` judges. Those of `nfs_setup.changes` need two processes.
"""

from __future__ import annotations

import errno
import fcntl
import os
import random
import re
import resource
import secrets
import shutil
import socket
import subprocess
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cbdybw.storage import atomic
from nfs_setup import mounts

PREFIX = ".doctor-"
"""How the folder begins that everything lies in."""

_STEP = 0.002  # seconds between two rounds of a race, at most
_BLOCK = 2**20
_FILES = 20  # synchronised by the fsync probe
_ENOUGH = 3.0  # seconds after which a probe has measured enough, however slow the disk


def survey(path: str) -> dict[str, Any]:
    """Who is here, and what the folder `path` is."""
    status = os.stat(path)
    umask = re.search(r"^Umask:\s*(\d+)", Path("/proc/self/status").read_text(), re.MULTILINE)[1]
    return {
        "host": socket.gethostname(),
        "folder": os.path.isdir(path),
        "path": os.path.realpath(path),
        "mode": status.st_mode,
        "umask": int(umask, 8),
    }


def mount(path: str) -> dict[str, Any] | None:
    """The mount of `path`, as the fields of Mount."""
    found = mounts.of(path)
    return found and asdict(found)


def make(path: str) -> str:
    """A new folder in `path`, whose name begins with PREFIX; the peer removes it at its end."""
    folder = Path(path).resolve() / f"{PREFIX}{secrets.token_hex(4)}"
    folder.mkdir()
    return str(folder)


def sees(folder: str) -> bool:
    """Whether the folder that another host has made is here too."""
    return os.path.isdir(folder)


def owner(folder: str) -> dict[str, int]:
    """Whose a new file is, and who has made it."""
    path = Path(folder, "owner")
    atomic.write_bytes(path, b"mine")
    return {"user": path.stat().st_uid, "writer": os.geteuid()}


def space(folder: str) -> dict[str, int | None]:
    """Bytes and files that there is room for, and the limit on the bytes of one file, if any."""
    there = os.statvfs(folder)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    return {
        "free": there.f_bavail * there.f_frsize,
        "files": there.f_favail if there.f_files else None,
        "file_limit": None if limit == resource.RLIM_INFINITY else limit,
    }


def quota(folder: str) -> dict[str, int] | None:
    """What the quota command says of this user's bytes: `used` and `limit`; None if nothing."""
    if shutil.which("quota") is None:
        return None
    command = ["quota", "--no-wrap", "--raw-grace", "--filesystem-list", folder]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=_ENOUGH).stdout
    except subprocess.TimeoutExpired:  # over NFS it asks a service that need not run
        return None
    row = re.search(r"^\s*\S+\s+(\d+)\*?\s+(\d+)\s+(\d+)\s+\d+\s", told, re.MULTILINE)
    if row is None:
        return None
    used, soft, hard = (int(kilobytes) * 1024 for kilobytes in row.groups())
    return {"used": used, "limit": hard or soft} if hard or soft else None


def clock(folder: str) -> dict[str, float]:
    """Seconds that the file server's clock is ahead of this host's, and seconds it took to look."""
    path = Path(folder, f"clock-{socket.gethostname()}-{os.getpid()}")
    path.touch()
    before = time.time()
    os.utime(path)  # the server's own time
    changed, after = path.stat().st_mtime, time.time()
    return {"ahead": changed - (before + after) / 2, "took": after - before}


def fsync(folder: str) -> list[float]:
    """Seconds that each of some small files takes until it is durable, in ascending order."""
    taken, start = [], time.monotonic()
    for number in range(_FILES):
        begin = time.perf_counter()
        with open(Path(folder, f"small-{number}"), "xb") as file:
            file.write(b"x" * 4096)
            file.flush()
            os.fsync(file.fileno())
        taken.append(time.perf_counter() - begin)
        if time.monotonic() - start > _ENOUGH:
            break
    return sorted(taken)


def rename(folder: str) -> dict[str, bool]:
    """What becomes of an open file that another is renamed to, and of a folder with content."""
    target, source = Path(folder, "target"), Path(folder, "source")
    target.write_bytes(b"old")
    source.write_bytes(b"new")
    with open(target, "rb") as file:
        os.rename(source, target)
        old = file.read() == b"old"
    for name in ("taken", "late"):
        Path(folder, name).mkdir()
        Path(folder, name, "content").touch()
    try:
        os.rename(Path(folder, "late"), Path(folder, "taken"))
        kept = False
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        kept = True
    return {"old_stays": old, "new_is_there": target.read_bytes() == b"new", "folder_kept": kept}


def names(folder: str) -> dict[str, bool]:
    """Whether long names and those beyond ASCII are kept, and case matters."""
    wanted = ("θ" * 127, "läufe 日本")  # 254 bytes of 255 that Linux allows
    try:
        for name in wanted:
            Path(folder, name).touch()
        kept = set(wanted) <= set(os.listdir(folder))
    except OSError as error:
        if error.errno not in (errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ):
            raise
        kept = False
    Path(folder, "case").touch()
    return {"kept": kept, "case": not Path(folder, "CASE").exists()}


def race(folder: str, kind: str, rounds: int) -> list[int]:
    """The rounds that this process wins: in each, one file is made by whoever is first.

    `kind`: "create" (O_EXCL), or "link", a hard link to a file of one's own.
    """
    own = Path(folder, f"{kind}-{socket.gethostname()}-{os.getpid()}")
    own.touch()
    won = []
    for number in range(rounds):
        time.sleep(random.random() * _STEP)  # so that one is now ahead, now behind the others
        prize = Path(folder, f"{kind}-{number}")
        try:
            if kind == "create":
                prize.open("xb").close()
            else:
                os.link(own, prize)
            won.append(number)
        except FileExistsError:
            pass
    return won


_locked: list[int] = []  # descriptors of the files that this process has locked


def lock(folder: str) -> bool:
    """Try to lock the one file; whether that has worked. The lock is kept until `unlock`."""
    descriptor = os.open(Path(folder, "lock"), os.O_RDWR | os.O_CREAT)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if error.errno not in (errno.EACCES, errno.EAGAIN):
            raise
        return False
    _locked.append(descriptor)
    return True


def unlock(folder: str) -> None:
    """Let go of the lock."""
    while _locked:
        os.close(_locked.pop())


def write(folder: str, size: int) -> dict[str, float]:
    """Write `size` bytes until they are durable, or as many as a few seconds allow."""
    block, written, start = os.urandom(_BLOCK), 0, time.perf_counter()
    with open(Path(folder, "large"), "wb") as file:
        while written < size and time.perf_counter() - start < _ENOUGH:
            file.write(block)
            written += _BLOCK
        file.flush()
        os.fsync(file.fileno())
        seconds = time.perf_counter() - start
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # so that reading is reading
    return {"bytes": written, "seconds": seconds}


def read(folder: str) -> dict[str, float]:
    """Read what `write` wrote, or as much as a few seconds allow."""
    done, start = 0, time.perf_counter()
    with open(Path(folder, "large"), "rb") as file:
        while (block := file.read(_BLOCK)) and time.perf_counter() - start < _ENOUGH:
            done += len(block)
    return {"bytes": done, "seconds": time.perf_counter() - start}


PROBES = {
    probe.__name__: probe
    for probe in (
        *(survey, mount, make, sees, owner, space, quota, clock),
        *(fsync, rename, names, race, lock, unlock, write, read),
    )
}
"""By their names."""
