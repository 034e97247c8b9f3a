"""What is tried in a folder, on one host: each probe measures and judges nothing.

A probe takes the folder and plain values, and returns something that JSON can carry; those that
yield tell of events on the way. What the system refuses is raised as OSError. `nfs_setup.peers`
runs them in processes of their own, here and on other hosts; `nfs_setup.verdicts` judges.
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
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cbdybw.storage import atomic
from nfs_setup import mounts

PREFIX = ".doctor-"
"""How the folder begins that everything lies in."""

_PAUSE = 0.02  # seconds between two looks at what is to change
_STEP = 0.002  # seconds between two rounds of a race, at most
_BLOCK = 2**20
_FILES = 20  # synchronised by the fsync probe
_ENOUGH = 3.0  # seconds after which a probe has measured enough, however slow the disk
_REPEATED = 4000  # times that a version stands in a file of versions, which makes 40 KB


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
    command = ["quota", "--no-wrap", "--raw-grace", "--filesystem", folder]
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


def rewrite(folder: str, seconds: float) -> int:
    """Replace a file by one version after the other for `seconds`; the number of the last one."""
    version, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        version += 1
        atomic.write_bytes(Path(folder, "versions"), _version(version, b","))
    version += 1
    atomic.write_bytes(Path(folder, "versions"), _version(version, b"."))
    return version


def reread(folder: str, seconds: float) -> Iterator[Any]:
    """Read the file of `rewrite` until its last version is seen, for `seconds` at most.

    Returns how often it was read, in how many versions, how often in several at once (`torn`) or in
    an older one than before (`back`), and whether the last one was seen.
    """
    yield "reading"
    seen, counts, last = [0], {"reads": 0, "torn": 0, "back": 0}, b","
    end = time.monotonic() + seconds
    while last != b"." and time.monotonic() < end:
        try:
            content = Path(folder, "versions").read_bytes()
        except FileNotFoundError:
            continue
        last, version = content[-1:], int(content[:9] or 0)
        counts["reads"] += 1
        counts["torn"] += content != _version(version, last)
        counts["back"] += version < seen[-1]
        seen.append(version)
    return counts | {"versions": len(set(seen)) - 1, "last": last == b"."}


def _version(number: int, end: bytes) -> bytes:
    return (b"%09d" % number + end) * _REPEATED


CHANGES = ("new", "rewritten", "grown", "deleted")
"""What `change` does with files, and `watch` sees."""


def prepare(folder: str) -> None:
    """Make what `change` will change; a folder for each, so that no look refreshes another."""
    for name in CHANGES:
        Path(folder, name).mkdir()
        if name != "new":
            atomic.write_bytes(Path(folder, name, "file"), b"first")


def change(folder: str) -> Iterator[str]:
    """Make a file, replace one, add to one, remove one; yield the name of each change when done."""
    for name in ("new", "rewritten"):
        atomic.write_bytes(Path(folder, name, "file"), b"second")
        yield name
    atomic.append_text(Path(folder, "grown", "file"), "second")
    yield "grown"
    Path(folder, "deleted", "file").unlink()
    yield "deleted"


def watch(folder: str, seconds: float) -> Iterator[Any]:
    """Yield "watching", then the name of each change as it is seen, for `seconds` at most.

    Every look before the change leaves something in this host's caches, as polling programs do.
    Returns the changes that are seen only once the folder has been listed, which makes an NFS
    client ask its server.
    """
    waiting = [name for name in CHANGES if not _changed(folder, name)]
    yield "watching"
    end = time.monotonic() + seconds
    while waiting and time.monotonic() < end:
        for name in [name for name in waiting if _changed(folder, name)]:
            waiting.remove(name)
            yield name
        time.sleep(_PAUSE)
    for name in waiting:
        os.listdir(Path(folder, name))
    return [name for name in waiting if _changed(folder, name)]


def _changed(folder: str, name: str) -> bool:
    path = Path(folder, name, "file")
    try:
        if name == "grown":
            return path.stat().st_size > len(b"first")
        if name == "deleted":
            path.stat()
            return False
        return path.read_bytes() == b"second"
    except FileNotFoundError:
        return name == "deleted"
    except OSError as error:
        if error.errno != errno.ESTALE:
            raise
        return name == "deleted"


PROBES = {
    probe.__name__: probe
    for probe in (
        *(survey, mount, make, sees, owner, space, quota, clock),
        *(fsync, rename, names, race, lock, unlock, write, read),
        *(rewrite, reread, prepare, change, watch),
    )
}
"""By their names."""
