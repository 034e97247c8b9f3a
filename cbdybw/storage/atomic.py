"""Files that several machines share over NFS: whole or not there at all.

There is one writer for each file and no lock. A writer fills a temporary file or folder beside the
final one, makes it durable and renames it; a reader therefore sees the old content or the new one,
never half of it. Readers open afresh and are patient with the client's stale name cache.

A temporary name ends in `.HOST.PID.TOKEN.partial`, so that what a killed process has left behind
can be told from what another process is writing at this moment.

What cannot be written is Unwritable. NFS tells of a full disk at fsync at the latest, never at
close once fsync has failed: so every file is synchronised before it gets its name.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import secrets
import shutil
import socket
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np

from cbdybw.errors import BadInput, Unwritable

PAUSES = (0.05, 0.2, 0.8)
"""Seconds between a reader's attempts."""

ABANDONED_AFTER = 24 * 3600
"""Seconds without a change after which another host's temporary folder counts as dead."""

_LONGEST_NAME = 150  # bytes; an owner has up to 64 for its host and some 30 beside

T = TypeVar("T")


@contextlib.contextmanager
def replacing(path: str | os.PathLike) -> Iterator[BinaryIO]:
    """Write `path` through the binary file that is yielded; it appears when the block ends well.

    An exception in the block leaves `path` as it was and removes the temporary file. Where `path`
    is a symbolic link, the link is replaced and not what it leads to.
    """
    path = _placed(path)
    partial = _partial(path)
    with writing(path, partial):
        try:
            with open(partial, "xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, path)
        except BaseException:
            with contextlib.suppress(OSError):  # what went wrong first is what counts
                partial.unlink()
            raise
        fsync(path.parent)


@contextlib.contextmanager
def writing(path: str | os.PathLike, *names: Path) -> Iterator[None]:
    """An OSError of the block that is about `path`, about its other `names` or about no file by
    name, as those of write and fsync are, becomes Unwritable."""
    own = {str(path), str(Path(path).parent), *map(str, names)}
    try:
        yield
    except Unwritable:
        raise
    except OSError as error:
        if error.errno is None or not (error.filename is None or str(error.filename) in own):
            raise
        raise Unwritable(path, error.errno) from error


def append_text(path: str | os.PathLike, text: str) -> None:
    """Add `text` to `path`; it is in the file, durable, when this returns."""
    with writing(path), open(path, "a", encoding="utf-8", opener=_no_link) as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def write_bytes(path: str | os.PathLike, data: bytes) -> None:
    """Replace `path` by `data`."""
    with replacing(path) as file:
        file.write(data)


def write_text(path: str | os.PathLike, text: str) -> None:
    """Replace `path` by `text` in UTF-8."""
    write_bytes(path, text.encode())


def write_json(path: str | os.PathLike, obj: Any) -> None:
    """Replace `path` by `obj` as indented JSON. NaN is no JSON (ValueError): use None."""
    write_text(path, json.dumps(obj, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def write_array(path: str | os.PathLike, array: np.ndarray) -> None:
    """Replace `path` by `array` in NumPy's .npy format."""
    with replacing(path) as file:
        np.save(file, array, allow_pickle=False)


def link(source: str | os.PathLike, target: str | os.PathLike) -> None:
    """Give the file `source` the second name `target`; a copy where there are no hard links.

    That is safe because files are replaced and never written in place.
    """
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:  # another file system, or somebody else's file
        with open(source, "rb") as original, replacing(target) as copy:
            shutil.copyfileobj(original, copy)


def patiently(read: Callable[[Path], T], path: str | os.PathLike) -> T:
    """`read(path)`, tried again for about a second while the error may be a stale NFS cache."""
    path = Path(path)
    for pause in PAUSES:
        try:
            return read(path)
        except OSError as error:
            if not _may_pass(error, path):
                raise
            time.sleep(pause)
    return read(path)


@contextlib.contextmanager
def readable(path: str | os.PathLike) -> Iterator[None]:
    """What goes wrong in the block is the fault of the file `path`: BadInput says so."""
    try:
        yield
    except BadInput:
        raise
    except (OSError, EOFError, ValueError, zlib.error, zipfile.BadZipFile) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise BadInput(f"{path}: cannot be read ({why}); restore it or run again") from error


def read_bytes(path: str | os.PathLike) -> bytes:
    """The content of `path`; FileNotFoundError when its folder does not list it."""
    return patiently(Path.read_bytes, path)


def read_json(path: str | os.PathLike) -> Any:
    """The object in the JSON file `path`."""
    return json.loads(read_bytes(path))


def open_array(path: str | os.PathLike) -> np.ndarray:
    """The .npy file `path` as a read-only memory map."""
    return patiently(lambda p: np.load(p, mmap_mode="r", allow_pickle=False), path)


@contextlib.contextmanager
def publishing_folder(path: str | os.PathLike) -> Iterator[Path]:
    """Fill the temporary folder that is yielded; it becomes `path` when the block ends well.

    When somebody else has published `path` in the meantime, theirs stays and ours is dropped: look
    at what is there afterwards. Temporary folders of dead processes are removed on the way.
    """
    path = _placed(path)
    partial = _partial(path)
    with writing(path, partial):
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_dead_partials(path)
        partial.mkdir()
    try:
        yield partial
        with writing(path, partial):
            _rename_unless_taken(partial, path)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)  # what went wrong first is what counts
        raise
    with writing(path):
        fsync(path.parent)


def _rename_unless_taken(partial: Path, path: Path) -> None:
    try:
        os.rename(partial, path)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        shutil.rmtree(partial)


def _placed(path: str | os.PathLike) -> Path:
    """`path` in full, whatever becomes the current folder; a link in its place stays one."""
    path = Path(path)
    return path.parent.resolve() / path.name


def _no_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


def _partial(path: Path) -> Path:
    owner = f"{socket.gethostname()}.{os.getpid()}.{secrets.token_hex(4)}"
    return path.with_name(f".{_short(path.name)}.{owner}.partial")


def _short(name: str) -> str:
    """`name`, or another of its own that leaves room for an owner in the 255 bytes of a name."""
    if len(name.encode()) <= _LONGEST_NAME:
        return name
    return f"{name[:20]}-{hashlib.sha256(name.encode()).hexdigest()[:16]}"


def _remove_dead_partials(path: Path) -> None:
    prefix = f".{_short(path.name)}."
    for partial in path.parent.iterdir():
        if not (partial.name.startswith(prefix) and partial.name.endswith(".partial")):
            continue
        # Another process may be tidying the same folder.
        with contextlib.suppress(FileNotFoundError):
            if _is_dead(partial, partial.name.removeprefix(prefix)):
                shutil.rmtree(partial)


def _is_dead(partial: Path, owner: str) -> bool:
    """Only what certainly has no writer: its process is gone from this host, or a day went by."""
    host, pid, _token, _suffix = owner.rsplit(".", 3)
    if host == socket.gethostname():
        return not _process_runs(int(pid))
    return time.time() - partial.stat().st_mtime > ABANDONED_AFTER


def _process_runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _may_pass(error: OSError, path: Path) -> bool:
    """Whether `error` may be the NFS client's stale cache rather than the truth.

    Listing a folder makes the client ask the server again.
    """
    if error.errno in (errno.ESTALE, errno.EREMOTEIO):  # nfs-ganesha, of what is being replaced
        return True
    return error.errno == errno.ENOENT and _is_listed(path.absolute())


def _is_listed(path: Path) -> bool:
    try:
        return path.name in os.listdir(path.parent)
    except FileNotFoundError:
        return _is_listed(path.parent)


def fsync(path: str | os.PathLike) -> None:
    """Make a file's content, or what was renamed inside a folder, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
