"""Prepared sets in folders side by side: the features of one can be those of another.

A sweep needs the same features many times, divided among other numbers of workers in other ways.
Then only the partition is made anew, and the larger files are shared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from cbdybw.errors import BadInput
from cbdybw.storage import atomic, datasets

OWN = ("partition.npy",)
"""Files that belong to one partition."""

FACTS = ("dataset", "classes", "image_shape", "source", "scaling", "pca", "versions")
"""What a manifest says of the features."""


def beside(out: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Folders in the same parent as `out` that hold a whole set, and their manifests."""
    for folder in sorted(out.resolve().parent.glob("*/")):
        if folder == out.resolve() or folder.name.startswith("."):  # the latter: half-written
            continue
        if (folder / datasets.MANIFEST).exists():
            try:
                manifest = datasets.read_manifest(folder)
            except BadInput:
                continue  # no set of ours: a run's folder has a manifest.json as well
            if "partition_sizes" in manifest:  # ratings and texts have no parts
                yield folder, manifest


def is_sound(folder: Path, log: Callable[[str], None]) -> bool:
    """Whether all checksums hold; `log` is told where they do not."""
    try:
        datasets.verify(folder)
    except BadInput as damage:
        log(f"not used: {damage}")
        return False
    return True


def labels(folder: Path) -> np.ndarray:
    """Labels of the training samples, int64 (n,)."""
    return np.array(atomic.open_array(folder / "train_y.npy"))


def shared(folder: Path, manifest: dict[str, Any]) -> tuple[dict[str, Path], dict[str, Any]]:
    """The files of the features by name, to be shared, and what the manifest says of them."""
    files = {name: folder / name for name in manifest["files"] if name not in OWN}
    return files, {name: manifest[name] for name in FACTS}
