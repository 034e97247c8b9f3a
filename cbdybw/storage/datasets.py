"""A prepared data set: arrays, the workers' parts, and the manifest that vouches for them.

A folder, written by `write` and read by `load`:

    train_x.npy  float32 (n, d)        test_x.npy  float32 (m, d)
    train_y.npy  int64 (n,)            test_y.npy  int64 (m,)
    partition.npy  int64 (n,)          sample numbers of worker 0, then of worker 1, …
    manifest.json                      written last: sizes and checksums of the others, and how
                                       they were made

`load` checks the size of every file and the sha256 of those up to 32 MiB, which is all of them
when there is a PCA. `verify` hashes the larger ones too; data_prep does so whenever it is asked for
a set that is there already.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cbdybw.errors import BadInput
from cbdybw.storage import atomic

FORMAT = 1
MANIFEST = "manifest.json"
HASHED_AT_LOADING = 32 * 2**20
"""Bytes; larger files are only checked for their size by `load`."""

AGAIN = "remove the folder and run data_prep.prepare again"


@dataclass(frozen=True)
class Dataset:
    """A data set as the workers use it.

    Attributes:
        name: mnist, fashion_mnist, cifar10, digits, chiller, covertype, or rail with its keys.
        train_x, test_x: float32, shapes (n, d) and (m, d), memory-mapped and read-only.
        train_y, test_y: int64 labels 0 … classes-1.
        parts: for each worker the ascending int64 numbers of its training samples.
        classes: number of classes.
        manifest: how the set was made; `notice`, when not None, belongs under every result.
    """

    name: str
    train_x: np.ndarray
    train_y: np.ndarray
    test_x: np.ndarray
    test_y: np.ndarray
    parts: list[np.ndarray]
    classes: int
    manifest: dict[str, Any]


def write(
    folder: Path,
    arrays: Mapping[str, np.ndarray | Path],
    parts: Sequence[np.ndarray],
    about: Mapping[str, Any],
) -> dict[str, Any]:
    """Write `arrays` (file name → array) and `parts` into `folder`; return the manifest.

    A path instead of an array is a .npy file that another set has already; it is shared. `about`
    becomes part of the manifest; it names at least `dataset` and `classes`.
    """
    arrays = {**arrays, "partition.npy": np.concatenate(parts)}
    return write_arrays(folder, arrays, {**about, "partition_sizes": [len(p) for p in parts]})


def write_arrays(
    folder: Path, arrays: Mapping[str, np.ndarray | Path], about: Mapping[str, Any]
) -> dict[str, Any]:
    """Write `arrays` into `folder` as `write` does, with any names and no parts."""
    files = {}
    for name, content in arrays.items():
        if isinstance(content, Path):
            atomic.link(content, folder / name)
            array = atomic.open_array(content)
        else:
            atomic.write_array(folder / name, array := content)
        files[name] = {
            "shape": list(array.shape),
            "dtype": str(array.dtype),
            "bytes": (folder / name).stat().st_size,
            "sha256": _sha256(folder / name),
        }
    manifest = {
        "format": FORMAT,
        **about,
        "files": files,
        "sha256": hashlib.sha256("".join(f["sha256"] for f in files.values()).encode()).hexdigest(),
    }
    atomic.write_json(folder / MANIFEST, manifest)
    return manifest


def load(folder: str | os.PathLike) -> Dataset:
    """The data set in `folder`; BadInput names the file that is missing or damaged."""
    arrays, manifest = load_arrays(folder)
    ends = np.cumsum(manifest["partition_sizes"])[:-1]
    return Dataset(
        name=manifest["dataset"],
        train_x=arrays["train_x.npy"],
        train_y=np.array(arrays["train_y.npy"]),
        test_x=arrays["test_x.npy"],
        test_y=np.array(arrays["test_y.npy"]),
        parts=np.split(np.array(arrays["partition.npy"]), ends),
        classes=manifest["classes"],
        manifest=manifest,
    )


def load_arrays(folder: str | os.PathLike) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The arrays in `folder` by the names of their files, memory-mapped, and the manifest."""
    folder = Path(folder)
    manifest = read_manifest(folder)
    return {
        name: _open(folder / name, facts) for name, facts in manifest["files"].items()
    }, manifest


def read_manifest(folder: str | os.PathLike) -> dict[str, Any]:
    """The manifest of the data set in `folder`; BadInput when there is none that we can read."""
    path = Path(folder) / MANIFEST
    try:
        manifest = atomic.read_json(path)
    except FileNotFoundError:
        raise BadInput(
            f"{path} is missing: {folder} holds no prepared data set; "
            f"make one by python -m data_prep.prepare --out={folder}"
        ) from None
    except (OSError, ValueError) as error:
        raise BadInput(f"{path} cannot be read ({error}); {AGAIN}") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise BadInput(f"{path} is not a manifest of format {FORMAT}; {AGAIN}")
    return manifest


def verify(folder: str | os.PathLike) -> None:
    """Hash every file of the data set in `folder`; BadInput names the first damaged one."""
    folder = Path(folder)
    for name, facts in read_manifest(folder)["files"].items():
        _check_size(folder / name, facts)
        _check_sha256(folder / name, facts)


def _open(path: Path, facts: dict[str, Any]) -> np.ndarray:
    _check_size(path, facts)
    if facts["bytes"] <= HASHED_AT_LOADING:
        _check_sha256(path, facts)
    try:
        array = atomic.open_array(path)
    except ValueError as error:
        raise BadInput(f"{path} is no .npy file ({error}); {AGAIN}") from error
    if (list(array.shape), str(array.dtype)) != (facts["shape"], facts["dtype"]):
        raise BadInput(
            f"{path} holds {array.dtype} {array.shape}, the manifest says "
            f"{facts['dtype']} {tuple(facts['shape'])}; {AGAIN}"
        )
    return array


def _check_size(path: Path, facts: dict[str, Any]) -> None:
    try:
        size = atomic.patiently(os.stat, path).st_size
    except FileNotFoundError:
        raise BadInput(f"{path} is missing; {AGAIN}") from None
    if size != facts["bytes"]:
        raise BadInput(f"{path} has {size} bytes, the manifest says {facts['bytes']}; {AGAIN}")


def _check_sha256(path: Path, facts: dict[str, Any]) -> None:
    if atomic.patiently(_sha256, path) != facts["sha256"]:
        raise BadInput(f"{path} is damaged: its sha256 is not the manifest's; {AGAIN}")


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
