"""The stress series of ADSP's rail-fatigue experiment: the paper's is private, ours is generated.

[code] 44,428 values; a sample is a window of them, its label says in which Gaussian bin something
falls. [choice] It is the next value, so that the RNN predicts; windows begin at every value; 6/7 of
them in the order of time are for training.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from scipy.signal import lfilter

from cbdybw.clusters.worker import keyed_rng
from cbdybw.errors import BadInput
from data_prep import csv_table
from data_prep.samples import Samples, for_training, gaussian_bins

FILE = "rail.csv"
COLUMNS = ("stress",)
ROWS = 44_428
RATE = 10.0
"""Values a second."""


def generate(seed: int) -> np.ndarray:
    """Stress in a rail's foot, MPa, at RATE for 74 minutes, shape (ROWS, 1).

    A train comes about every minute: 4 to 20 wagons of 15 m at 10 to 30 m/s, a bogie at each end.
    A bogie's load, 30 to 90 MPa by how full its train is, rises and falls within some 2.5 m.
    Beneath lie the thermal stress, which wanders by 8 MPa within minutes, and the sensor's noise of
    1 MPa.
    """
    rng = keyed_rng(seed, "rail", 0, 0)
    seconds = np.arange(ROWS) / RATE
    memory = np.exp(-1 / (200 * RATE))
    steps = rng.normal(0, 8 * np.sqrt(1 - memory**2), ROWS)
    stress = lfilter([1], [1, -memory], steps) + rng.normal(0, 1, ROWS)
    start = rng.exponential(60)
    while start < seconds[-1]:
        speed, wagons, full = rng.uniform(10, 30), rng.integers(4, 21), rng.uniform(30, 90)
        bogies = (np.arange(wagons)[:, None] * 15 + [2.5, 12.5]).ravel()
        loads = full * rng.uniform(0.8, 1.2, len(bogies))
        first, last = np.searchsorted(seconds, [start - 1, start + bogies[-1] / speed + 1])
        distance = (seconds[first:last, None] - start) * speed - bogies
        stress[first:last] += np.exp(-0.5 * (distance / 1.25) ** 2) @ loads
        start += rng.exponential(60)
    return stress[:, None]


def read(path: Path) -> np.ndarray:
    """A user's own series, shape (rows, 1); BadInput names what is wrong with it."""
    return csv_table.read(path, COLUMNS)


def samples(table: np.ndarray, name: str, window: int) -> Samples:
    """Windows of `window` values, in units of the training values' standard deviation."""
    values = table[:, 0]
    windows = len(values) - window
    cut = for_training(max(windows, 0))
    if not 0 < cut < windows:
        raise BadInput(f"{name}: {len(values)} values are too few for windows of {window} values")
    known = values[: cut + window]  # all that the training samples show
    labels = gaussian_bins(values[window:], known, name)
    scaled = ((values - known.mean()) / known.std()).astype(np.float32)
    x = np.lib.stride_tricks.sliding_window_view(scaled[:-1], window)
    scaling = "minus mean, divided by standard deviation of the training values"
    return Samples(
        np.ascontiguousarray(x[:cut]),
        labels[:cut],
        np.ascontiguousarray(x[cut:]),
        labels[cut:],
        scaling,
    )
