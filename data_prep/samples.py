"""Samples made from measurements that are numbers, not images: a series or a table."""

from __future__ import annotations

from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from cbdybw.errors import BadInput
from data_prep.images import CLASSES


class Samples(NamedTuple):
    """Float32 features (n, d), int64 labels (n,), what the manifest says of `scaling`,
    and the number of classes."""

    train_x: np.ndarray
    train_y: np.ndarray
    test_x: np.ndarray
    test_y: np.ndarray
    scaling: str
    classes: int = CLASSES


def for_training(rows: int) -> int:
    """Of so many rows in the order of time the first 6/7, rounded down [code]."""
    return rows * 6 // 7


def gaussian_bins(values: np.ndarray, fitted: np.ndarray, name: str) -> np.ndarray:
    """Labels 0 … 9 of `values`: bins that the normal law of `fitted` gives 1/10 each.

    [choice] The labels are known to be Gaussian bins; how these are cut is not. `name` is what
    BadInput blames when the fitted values are all alike.
    """
    deviation = float(np.std(fitted))
    if deviation == 0:
        raise BadInput(f"{name}: all training values are {fitted[0]:g}; they make no classes")
    normal = NormalDist(float(np.mean(fitted)), deviation)
    return np.searchsorted(normal.quantiles(CLASSES), values).astype(np.int64)
