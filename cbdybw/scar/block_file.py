"""One file of saved blocks: it says itself what it holds, and notices when it is damaged.

    prefix      magic, format, bytes of `about`, number of members, checksum of the values, checksum
                of all before the values; little-endian
    about       the model, UTF-8
    members     its blocks, ascending, int64
    saved_at    the iteration of each copy, int64
    values      of one block after the other, float32

Checksums are CRC-32, so that a byte that has flipped on the disk is not learnt from.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from cbdybw.errors import BadInput
from cbdybw.scar.blocks import Blocks
from cbdybw.storage import atomic

FORMAT = 1
_MAGIC = b"blocks\r\n"
_PREFIX = struct.Struct("<8s5I")


class Damaged(ValueError):
    """A file that cannot be used; the message is one line and names it."""


class Header(NamedTuple):
    """What a file holds, its checksum being right: `blocks[members]` as of `saved_at`."""

    members: np.ndarray
    saved_at: np.ndarray
    checksum: int
    start: int  # of the values, in bytes


def write(
    path: Path, about: str, members: np.ndarray, saved_at: np.ndarray, packed: np.ndarray
) -> None:
    """Make the file, durable before it has its name. OSError where that cannot be."""
    members, saved_at = (np.ascontiguousarray(a, "<i8") for a in (members, saved_at))
    packed = np.ascontiguousarray(packed, "<f4")
    head = b"".join((about.encode(), members, saved_at))
    fields = (_MAGIC, FORMAT, len(about.encode()), len(members), zlib.crc32(packed))
    with atomic.replacing(path) as file:
        file.write(_PREFIX.pack(*fields, _checksum(fields, head)) + head)
        file.write(packed)


def read_header(path: Path, about: str) -> Header:
    """What is in the file. Damaged; BadInput when it is whole, but of another model or format."""
    *fields, checksum = _PREFIX.unpack(_read(path, 0, _PREFIX.size))
    head = _read(path, _PREFIX.size, fields[2] + 16 * fields[3])
    if fields[0] != _MAGIC or checksum != _checksum(fields, head):
        raise Damaged(f"{path}: its header is damaged")
    refuse_others(path, fields[1], head[: fields[2]].decode(), about)
    members, saved_at = np.frombuffer(head[fields[2] :], "<i8").reshape(2, -1)
    return Header(members, saved_at, fields[4], _PREFIX.size + len(head))


def read_values(path: Path, header: Header, blocks: Blocks) -> np.ndarray:
    """The values of all blocks of the file, packed. Damaged."""
    size = 4 * int(blocks.sizes[header.members].sum())
    values = _read(path, header.start, size)
    if zlib.crc32(values) != header.checksum:
        raise Damaged(f"{path}: its values are damaged")
    return np.frombuffer(values, "<f4")


def refuse_others(path: Path, format_: int, theirs: str, ours: str) -> None:
    """BadInput when a file of the log is of a later format, or of another model."""
    if format_ != FORMAT:
        raise BadInput(
            f"{path}: has format {format_}, {FORMAT} is read here; use the version that wrote it"
        )
    if theirs != ours:
        raise BadInput(f"{path}: is of {theirs}, the model here is {ours}; name another folder")


def _checksum(fields: Sequence, head: bytes) -> int:
    return zlib.crc32(head, zlib.crc32(_PREFIX.pack(*fields, 0)))


def _read(path: Path, start: int, size: int) -> bytes:
    def read(path: Path) -> bytes:
        with open(path, "rb") as file:
            file.seek(start)
            left = os.fstat(file.fileno()).st_size - start
            return file.read(max(0, min(size, left)))  # a damaged size may be anything

    try:
        data = atomic.patiently(read, path)
    except FileNotFoundError:
        raise Damaged(f"{path}: is missing") from None
    except OSError as error:
        raise Damaged(f"{path}: cannot be read ({error.strerror or error})") from error
    if len(data) < size:
        raise Damaged(f"{path}: is cut short")
    return data
