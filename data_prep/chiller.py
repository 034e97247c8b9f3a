"""The measurements of ADSP's chiller experiment: the paper's are private, ours are generated.

[code] Five chillers, eight features, ten classes of the coefficient of performance (COP): cooling
per power. [choice] Which features, how many rows; the classes are Gaussian bins, and the first 6/7
of each chiller's rows are for training.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from scipy.signal import lfilter

from cbdybw.clusters.worker import keyed_rng
from cbdybw.errors import BadInput
from data_prep import csv_table
from data_prep.samples import Samples, for_training, gaussian_bins

FILE = "chiller.csv"
COLUMNS = ("chiller", *(f"f{number}" for number in range(1, 9)), "cop")
CHILLERS, HOURS = 5, 2_800


def generate(seed: int) -> np.ndarray:
    """Hourly rows of a summer, shape (CHILLERS · HOURS, 10): chiller, f1 … f8, COP.

    Weather makes the load, the load makes the temperatures, and COP is a share of Carnot's: the
    best one of the machine, less away from three quarters of its full load, measured within 2 %.
    f1 outdoor temperature, f2 relative humidity, f3 and f4 condenser water in and out, f5 and f6
    chilled water out and in, f7 and f8 flow of chilled and of condenser water (°C, %, kg/s).
    """
    rng = keyed_rng(seed, "chiller", 0, 0)
    hour = np.arange(HOURS)
    daily = np.sin(2 * np.pi * (hour - 9) / 24)
    spells = lfilter([1], [1, -0.98], rng.normal(0, 0.8, HOURS))  # warm and cool days
    outdoor = 25 + 5 * daily + spells
    humidity = np.clip(65 - 12 * daily + rng.normal(0, 8, HOURS), 20, 100)
    wet_bulb = outdoor - (100 - humidity) / 5 * 0.7
    rows = []
    for chiller, best in enumerate(np.linspace(0.45, 0.62, CHILLERS)):
        part = np.clip(0.25 + 0.022 * (outdoor - 12) + rng.normal(0, 0.05, HOURS), 0.2, 1)
        capacity = 1500 + 250 * chiller  # kW
        chilled_flow = 0.04 * capacity * (0.6 + 0.4 * part)
        condenser_flow = 0.05 * capacity * (0.7 + 0.3 * part)
        supply = 7 + rng.normal(0, 0.4, HOURS)
        back = supply + part * capacity / (4.19 * chilled_flow)
        condenser_in = wet_bulb + 4 + rng.normal(0, 0.5, HOURS)
        share = best * (1 - 0.9 * (part - 0.75) ** 2)
        condenser_out = condenser_in + 1.2 * part * capacity / (4.19 * condenser_flow)
        cold, hot = supply + 273 - 2, condenser_out + 273 + 2  # of the refrigerant, K
        cop = share * cold / (hot - cold) * rng.normal(1, 0.02, HOURS)
        features = (outdoor, humidity, condenser_in, condenser_out)
        features += (supply, back, chilled_flow, condenser_flow)
        rows.append(np.column_stack([np.full(HOURS, chiller), *features, cop]))
    return np.concatenate(rows)


def read(path: Path) -> np.ndarray:
    """A user's own table, shape (rows, 10); BadInput names what is wrong with it."""
    table = csv_table.read(path, COLUMNS)
    broken = np.flatnonzero(table[:, 0] % 1 != 0)
    if broken.size:
        raise BadInput(
            f"{path}: row {broken[0] + 1} of numbers, column chiller: {table[broken[0], 0]:g} is "
            "no whole number; number the chillers"
        )
    return table


def samples(table: np.ndarray, name: str) -> Samples:
    """Rows with features scaled to [0, 1] by the training rows' least and largest values."""
    of_chiller = [np.flatnonzero(table[:, 0] == chiller) for chiller in np.unique(table[:, 0])]
    train = table[np.concatenate([rows[: for_training(len(rows))] for rows in of_chiller])]
    test = table[np.concatenate([rows[for_training(len(rows)) :] for rows in of_chiller])]
    if not len(train):
        raise BadInput(f"{name}: {len(table)} rows are too few; needed are two of some chiller")
    features, cop = slice(1, -1), train[:, -1]
    least, largest = train[:, features].min(axis=0), train[:, features].max(axis=0)
    span = np.where(largest > least, largest - least, 1)  # a feature may never change
    return Samples(
        ((train[:, features] - least) / span).astype(np.float32),
        gaussian_bins(cop, cop, name),
        ((test[:, features] - least) / span).astype(np.float32),
        gaussian_bins(test[:, -1], cop, name),
        "each feature to [0, 1] by the training rows",
    )
