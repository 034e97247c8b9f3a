"""The idx format of MNIST and Fashion-MNIST: four files, as they are or gzipped.

A big-endian magic number (0, 0, type, number of dimensions), one uint32 per dimension, then the
values. Type 8 is an unsigned byte, the only one that these data sets use.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib

import numpy as np

from cbdybw.errors import BadInput
from data_prep.files import File, Find
from data_prep.images import Images, Split, paired

FIRST_FILE = "train-images-idx3-ubyte"


def read(find: Find) -> Images:
    """The data set whose four files `find` knows under the names that MNIST gave them."""
    return Images(_split(find, "train"), _split(find, "t10k"))


def _split(find: Find, part: str) -> Split:
    images, labels = find(f"{part}-images-idx3-ubyte"), find(f"{part}-labels-idx1-ubyte")
    return paired(parse(images, 3), parse(labels, 1), images.name, labels.name)


def parse(file: File, dimensions: int) -> np.ndarray:
    """The uint8 array of `dimensions` dimensions in an idx file."""
    data = _gunzip(file) if file.data.startswith(b"\x1f\x8b") else file.data
    header = struct.Struct(f">{1 + dimensions}I")
    if len(data) < header.size:
        raise BadInput(f"{file.name}: truncated in its header, after {len(data)} bytes")
    magic, *shape = header.unpack_from(data)
    expected = 0x0800 + dimensions
    if magic != expected:
        raise BadInput(
            f"{file.name}: magic number {magic}; an idx file of {dimensions} dimension(s) "
            f"begins with {expected}"
        )
    size = len(data) - header.size
    if size != math.prod(shape):
        raise BadInput(
            f"{file.name}: truncated or damaged: its header announces {math.prod(shape)} values "
            f"{tuple(shape)}, {size} follow"
        )
    return np.frombuffer(data, np.uint8, offset=header.size).reshape(shape)


def _gunzip(file: File) -> bytes:
    try:
        return gzip.decompress(file.data)
    except (EOFError, OSError, zlib.error) as error:
        raise BadInput(f"{file.name}: truncated or damaged gzip file ({error})") from error
