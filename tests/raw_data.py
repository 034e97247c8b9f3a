"""Small raw files in the formats of the original data sets, for the tests of data_prep."""

from __future__ import annotations

import gzip
import io
import pickle
import struct
import tarfile
from pathlib import Path
from typing import Any

import numpy as np

BATCHES = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]


def images(samples: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Random pixels (samples, 4, 5) and labels (samples,)."""
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 256, (samples, 4, 5), dtype=np.uint8)
    return pixels, rng.integers(0, 10, samples, dtype=np.uint8)


def idx(array: np.ndarray) -> bytes:
    header = struct.pack(f">{1 + array.ndim}I", 0x0800 + array.ndim, *array.shape)
    return header + array.tobytes()


def idx_folder(folder: Path, train: int = 300, test: int = 20, zipped: bool = False) -> Path:
    """The four files of a tiny MNIST."""
    folder.mkdir(exist_ok=True)
    for part, samples, seed in (("train", train, 0), ("t10k", test, 1)):
        pixels, labels = images(samples, seed)
        for kind, array in (("images-idx3", pixels), ("labels-idx1", labels)):
            path = folder / f"{part}-{kind}-ubyte"
            if zipped:
                path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(idx(array)))
            else:
                path.write_bytes(idx(array))
    return folder


def npz_folder(folder: Path, **replaced: Any) -> Path:
    """The same tiny MNIST as Keras packs it, with the arrays in `replaced` instead of its own."""
    folder.mkdir(exist_ok=True)
    (x_train, y_train), (x_test, y_test) = images(300, 0), images(20, 1)
    arrays = {"x_train": x_train, "y_train": y_train, "x_test": x_test, "y_test": y_test}
    np.savez_compressed(folder / "mnist.npz", **(arrays | replaced))
    return folder


def cifar_batch(samples: int, seed: int) -> dict[bytes, Any]:
    rng = np.random.default_rng(seed)
    data = rng.integers(0, 256, (samples, 3072), dtype=np.uint8)
    return {b"data": data, b"labels": rng.integers(0, 10, samples).tolist()}


def cifar_folder(folder: Path) -> Path:
    """Six pickled batches of four images."""
    folder.mkdir(exist_ok=True)
    for seed, name in enumerate(BATCHES):
        (folder / name).write_bytes(pickle.dumps(cifar_batch(4, seed), protocol=4))
    return folder


def cifar_archive(folder: Path) -> Path:
    """The same six batches in a tar.gz."""
    folder.mkdir(exist_ok=True)
    with tarfile.open(folder / "cifar-10-python.tar.gz", "w:gz") as archive:
        for seed, name in enumerate(BATCHES):
            content = pickle.dumps(cifar_batch(4, seed), protocol=4)
            member = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return folder
