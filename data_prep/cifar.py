"""CIFAR-10's Python version: six pickled batches, in a folder or a tar.gz.

A batch is a dict with `data`, uint8 (n, 3072): the red, the green and the blue plane of 32×32 one
after the other, and `labels`, a list of n integers. A pickle may run code when it is read; ours may
build NumPy arrays and nothing else.
"""

from __future__ import annotations

import io
import pickle
import tarfile
import zlib

import numpy as np

from cbdybw.errors import BadInput
from data_prep.files import File, Find
from data_prep.images import Images, Split, paired

FOLDER = "cifar-10-batches-py"
ARCHIVE = "cifar-10-python.tar.gz"
FIRST_FILE = "data_batch_1"

# What a pickle of the year 2009 calls NumPy's parts, and what they are today.
ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"): ("numpy._core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"): ("numpy._core.multiarray", "_reconstruct"),
    ("numpy", "ndarray"): ("numpy", "ndarray"),
    ("numpy", "dtype"): ("numpy", "dtype"),
}


def read(find: Find) -> Images:
    """The data set whose six batches `find` knows by name."""
    train = [batch(find(f"data_batch_{number}")) for number in range(1, 6)]
    return Images(
        Split(
            np.concatenate([one.pixels for one in train]),
            np.concatenate([one.labels for one in train]),
            train[0].source,
        ),
        batch(find("test_batch")),
    )


def read_archive(find: Find) -> Images:
    """The data set in cifar-10-python.tar.gz; nothing is unpacked to disk."""
    file = find(ARCHIVE)
    try:
        with tarfile.open(fileobj=io.BytesIO(file.data), mode="r:gz") as archive:
            return read(lambda name: _member(file, archive, f"{FOLDER}/{name}"))
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise BadInput(f"{file.name}: truncated or damaged archive ({error})") from error


def _member(file: File, archive: tarfile.TarFile, name: str) -> File:
    try:
        content = archive.extractfile(name)
    except KeyError:
        content = None
    if content is None:
        raise BadInput(f"{file.name}: holds no file {name}")
    return File(f"{file.name}:{name}", content.read())


def batch(file: File) -> Split:
    """One batch: pixels (n, 32, 32, 3), channels last as Keras wants them, and labels."""
    content = _unpickle(file)
    if not isinstance(content, dict) or not {b"data", b"labels"} <= content.keys():
        raise BadInput(f"{file.name}: no dict with data and labels, so no CIFAR-10 batch")
    data, labels = np.asarray(content[b"data"]), np.asarray(content[b"labels"])
    if data.ndim != 2 or data.shape[1] != 3 * 32 * 32:
        raise BadInput(f"{file.name}: data of shape {data.shape}; a CIFAR-10 batch has (n, 3072)")
    pixels = np.ascontiguousarray(data.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
    return paired(pixels, labels, file.name, file.name)


class _ArraysOnly(pickle.Unpickler):
    def find_class(self, module: str, name: str):
        if (module, name) not in ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which is not allowed")
        return super().find_class(*ALLOWED[module, name])


def _unpickle(file: File):
    try:
        return _ArraysOnly(io.BytesIO(file.data), encoding="bytes").load()
    except Exception as error:  # a damaged pickle may raise anything, says pickle's manual
        reason = " ".join(str(error).split())
        raise BadInput(f"{file.name}: truncated or unreadable pickle ({reason})") from error
