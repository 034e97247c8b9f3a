"""Labelled images as they leave a reader: bytes, checked."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from cbdybw.errors import BadInput

CLASSES = 10
"""All of our data sets have ten classes, labelled 0 … 9."""


class Split(NamedTuple):
    """Training or test samples: pixels uint8 (n, height, width[, channels]), labels uint8 (n,)."""

    pixels: np.ndarray
    labels: np.ndarray
    source: str  # the file that the pixels came from


@dataclass(frozen=True)
class Images:
    """A data set as published. `white` is the value of the brightest pixel."""

    train: Split
    test: Split
    white: int = 255

    def __post_init__(self):
        if self.train.pixels.shape[1:] != self.test.pixels.shape[1:]:
            raise BadInput(
                f"{self.test.source}: images of shape {self.shape_of(self.test)}, but those of "
                f"{self.train.source} are {self.shape_of(self.train)}; use files of one data set"
            )

    @staticmethod
    def shape_of(split: Split) -> str:
        return "×".join(map(str, split.pixels.shape[1:]))

    def sha256(self) -> str:
        """Checksum of pixels and labels; the same whatever file format they travelled in."""
        digest = hashlib.sha256()
        for split in (self.train, self.test):
            digest.update(np.ascontiguousarray(split.pixels))
            digest.update(np.ascontiguousarray(split.labels))
        return digest.hexdigest()


def paired(pixels: np.ndarray, labels: np.ndarray, pixels_name: str, labels_name: str) -> Split:
    """Check that pixels and labels are what they should be and belong together.

    The names are those of the files; BadInput begins with the one at fault.
    """
    if pixels.dtype != np.uint8:
        raise BadInput(f"{pixels_name}: pixels must be uint8, 0…255; these are {_kind(pixels)}")
    if labels.dtype.kind not in "iu":
        raise BadInput(f"{labels_name}: labels must be integers; these are {_kind(labels)}")
    if pixels.ndim < 3 or labels.ndim != 1:
        raise BadInput(
            f"{pixels_name}: pixels {pixels.shape} and labels {labels.shape}; "
            "needed are (n, height, width[, channels]) and (n,)"
        )
    if len(pixels) != len(labels):
        raise BadInput(
            f"{labels_name}: {len(labels)} labels for the {len(pixels)} images of {pixels_name}"
        )
    if pixels.size == 0:
        raise BadInput(f"{pixels_name}: no pixels in an array of shape {pixels.shape}")
    wrong = np.flatnonzero((labels < 0) | (labels >= CLASSES))
    if wrong.size:
        raise BadInput(
            f"{labels_name}: label {labels[wrong[0]]} of sample {wrong[0]} is out of range; "
            f"labels are 0…{CLASSES - 1}"
        )
    return Split(pixels, labels.astype(np.uint8), pixels_name)


def _kind(array: np.ndarray) -> str:
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        return f"{array.dtype} with NaN or infinite values"
    return str(array.dtype)
