"""Whose a run folder is: one process writes to it at a time, on whatever machine.

    owner.N.json   who: host, process, batch job, since when; the last owner's stays

**Taking.** The owner is who made the file with the highest N. It is made by a hard link, which one
process alone succeeds in, also over NFS. Whoever finds a dead owner, or one that has left, makes
the next N: numbers never begin again, so no file is ever somebody else's.

**Alive or dead.** An owner touches its file every BEAT seconds; who leaves dates it to the year
1970, for which even a full disk has room. On the machine that it runs on, its process tells;
elsewhere it is dead once it has not touched its file for STALE seconds by the file server's clock,
and does not while it is watched. No two machines' clocks are compared.

**Evicted.** An owner that was cut off from the server for so long may have been taken for dead: it
finds a higher N when it comes back, and must write no more.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import json
import os
import re
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from cbdybw.errors import BadInput, Evicted, Unwritable
from cbdybw.storage import atomic

BEAT, STALE = 5.0, 30.0
"""Seconds between two signs of life, and seconds without one after which an owner looks dead."""
_WATCHED = 2.5 * BEAT  # seconds in which who looks dead can show that it was only cut off
_LEFT = 0.0  # when an owner that has left touched its file
_LOOK = 0.5  # seconds between two looks at an owner that is watched or waited for

_FACTS = {"host", "process", "job", "restarts", "started", "machine", "born"}
_NAME = re.compile(r"owner\.(\d+)\.json")


class Job(NamedTuple):
    """A batch job, and how often the scheduler has started it again."""

    name: str
    restarts: int = 0


def new(folder: Path, job: Job | None) -> int:
    """Own `folder`, which nobody else knows of yet; the number of our file."""
    atomic.write_json(_path(folder, 1), _about(job))
    return 1


def take(folder: Path, job: Job | None, given: str, log: Callable[[str], None]) -> int:
    """Own `folder`; the number of our file.

    An owner that lives is BadInput, which begins with `given`; but an earlier start of the same
    batch job is waited for: the scheduler has given it up. Unwritable where we may not write.
    """
    while True:
        owners = _owners(folder)
        last = owners[-1] if owners else 0
        if owners:
            _await_its_end(folder, last, job, given, log)
        if not _link(folder, last + 1, job):
            continue  # somebody else was faster: perhaps it lives
        if _owners(folder)[-1] == last + 1:
            for old in owners:
                with contextlib.suppress(OSError):  # it does no harm
                    _path(folder, old).unlink()
            return last + 1
        _path(folder, last + 1).unlink(missing_ok=True)  # others have come and gone meanwhile


def check_is_free(folder: Path, job: Job | None, given: str) -> None:
    """BadInput where `take` would surely refuse, at a glance."""
    owners = _owners(folder)
    if owners:
        who = _who(folder, owners[-1])
        if not _is_earlier(who, job) and not _looks_dead(folder, owners[-1], who):
            raise _refusal(given, who)


class Owner:
    """Keeps a folder that `new` or `take` has given us until the block ends.

    Args:
        folder, number: as given.
        lose: told, in a thread of ours, when the folder is ours no more: Evicted or Unwritable.
    """

    def __init__(self, folder: Path, number: int, lose: Callable[[Exception], None]):
        self._folder, self._number, self._lose = folder, number, lose
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="owner", daemon=True)

    def __enter__(self) -> Owner:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        with contextlib.suppress(OSError):  # a file that is gone was another's to remove
            os.utime(_path(self._folder, self._number), (_LEFT, _LEFT))

    def check(self) -> None:
        """Raise Evicted if the folder is another's by now, Unwritable if it is not there."""
        path = _path(self._folder, self._number)
        with atomic.writing(self._folder, path):
            last = max(_owners(self._folder), default=0)
            if not last:  # somebody is removing the folder
                raise Unwritable(self._folder, errno.ENOENT)
            if last != self._number:
                raise Evicted(self._folder, _words(_who(self._folder, last)))
            os.utime(path)

    def _beat(self) -> None:
        while not self._over.wait(BEAT):
            try:
                self.check()
            except (Evicted, Unwritable) as loss:
                self._lose(loss)
                return


def _path(folder: Path, number: int) -> Path:
    return Path(folder) / f"owner.{number}.json"


def _owners(folder: Path) -> list[int]:
    """The numbers that are there, ascending."""
    return sorted(int(m[1]) for name in os.listdir(folder) if (m := _NAME.fullmatch(name)))


def _about(job: Job | None) -> dict[str, Any]:
    return {
        "host": socket.gethostname(),
        "process": os.getpid(),
        "job": job and job.name,
        "restarts": job and job.restarts,
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": _machine(),
        "born": _born(os.getpid()),
    }


def _machine() -> str | None:
    """Where a process number means the same process; None where that cannot be told."""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    return None


def _born(process: int) -> str | None:
    """When a process was started, in ticks since the machine's start; None if it does not run."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return None
    state, *rest = stat.rpartition(")")[2].split()
    return None if state in "ZX" else rest[18]


def _who(folder: Path, number: int) -> dict[str, Any]:
    """What an owner's file says; nothing where it is gone, damaged or not for us to read."""
    with contextlib.suppress(OSError, ValueError):
        said = atomic.read_json(_path(folder, number))
        if isinstance(said, dict) and said.keys() >= _FACTS:
            return said
    return {}


def _is_earlier(who: dict[str, Any], job: Job | None) -> bool:
    """Whether the owner is an earlier start of this job."""
    return bool(job and who) and who["job"] == job.name and who["restarts"] < job.restarts


def _words(who: dict[str, Any]) -> str:
    if not who:
        return "a process of which its owner file says nothing"
    job = f" (job {who['job']})" if who["job"] else ""
    return f"process {who['process']} on {who['host']}{job}"


def _refusal(given: str, who: dict[str, Any]) -> BadInput:
    since = f" since {who['started']}" if who else ""
    return BadInput(f"{given}: in use by {_words(who)}{since}; wait for it, or name another folder")


def _looks_dead(folder: Path, number: int, who: dict[str, Any]) -> bool:
    touched = _touched(folder, number)
    if touched in (None, _LEFT):
        return True
    if _is_here(who):
        return _born(who["process"]) != who["born"]
    return _server_time(folder) - touched > STALE


def _is_here(who: dict[str, Any]) -> bool:
    """Whether the owner's process can be seen from here."""
    return bool(who) and who["machine"] is not None and who["machine"] == _machine()


def _is_dead(folder: Path, number: int, who: dict[str, Any]) -> bool:
    """As it looks; but one elsewhere, which may only have been cut off, is watched for a while."""
    if not _looks_dead(folder, number, who):
        return False
    touched, end = _touched(folder, number), time.monotonic() + _WATCHED
    while touched not in (None, _LEFT) and not _is_here(who) and time.monotonic() < end:
        time.sleep(_LOOK)
        if _touched(folder, number) != touched:
            return False
    return True


def _await_its_end(
    folder: Path, number: int, job: Job | None, given: str, log: Callable[[str], None]
) -> None:
    """Return once the owner is dead, or has left; BadInput where it lives and is not our past."""
    who = _who(folder, number)
    if _is_dead(folder, number, who):
        return
    if not _is_earlier(who, job):
        raise _refusal(given, who)
    log(f"{given}: waits for the end of {_words(who)}")
    while not _is_dead(folder, number, who):
        time.sleep(_LOOK)


def _touched(folder: Path, number: int) -> float | None:
    """When an owner touched its file, by the server's clock; None if it is gone.

    Opening has an NFS client ask the server, whatever it remembers; where that is not allowed, the
    client's memory has to do.
    """
    path = _path(folder, number)
    try:
        with open(path, "rb") as file:
            return os.fstat(file.fileno()).st_mtime
    except FileNotFoundError:
        return None
    except (PermissionError, IsADirectoryError):
        return path.stat().st_mtime


def _server_time(folder: Path) -> float:
    with _scratch(folder) as path:
        return path.stat().st_mtime


@contextlib.contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    """A new file in `folder` while the block lasts."""
    path = Path(folder) / f".owner.{socket.gethostname()}.{secrets.token_hex(4)}.partial"
    with atomic.writing(folder, path):
        path.touch(exist_ok=False)
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)


def _link(folder: Path, number: int, job: Job | None) -> bool:
    """Make our file; whether nobody else was faster."""
    with _scratch(folder) as path:
        path.write_text(json.dumps(_about(job), indent=2) + "\n")
        try:
            os.link(path, _path(folder, number))
        except FileExistsError:
            return False
        return True
