"""What one process does to files, and what another sees of it, on the same host or another one.

As in `nfs_setup.probes`; those that yield tell of events on the way.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cbdybw.storage import atomic

_PAUSE = 0.02  # seconds between two looks at what is to change
_REPEATED = 4000  # times that a version stands in a file of versions, which makes 40 KB


def begin(folder: str) -> None:
    """Make the file of `rewrite`, so that no reader remembers that there was none."""
    atomic.write_bytes(Path(folder, "versions"), _version(0, b","))


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
    counts = {"reads": 0, "versions": 0, "torn": 0, "back": 0}
    latest, last, end = 0, False, time.monotonic() + seconds
    while not last and time.monotonic() < end:
        try:
            content = Path(folder, "versions").read_bytes()
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ESTALE):  # replaced while it was opened
                raise
            continue
        counts["reads"] += 1
        number, mark = content[:9], content[9:10]
        if not number.isdigit() or content != _version(int(number), mark):
            counts["torn"] += 1
            continue
        counts["versions"] += int(number) > latest
        counts["back"] += int(number) < latest
        latest, last = int(number), mark == b"."
    return counts | {"last": last}


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
    os.listdir(folder)  # else what asks for one change asks for all: their folders look changed
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


PROBES = {probe.__name__: probe for probe in (begin, rewrite, reread, prepare, change, watch)}
"""By their names."""
