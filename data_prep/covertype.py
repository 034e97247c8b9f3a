"""Forest cover types (Blackard and Dean, UCI): 581,012 patches of land, 54 features, 7 classes.

The first ten features are measurements, the others are 0 or 1. SCAR (arXiv 1810.07354) learns MLR
from it. [choice] The file's own order is by class at first, so rows are shuffled; 6/7 of them are
for training.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from cbdybw.clusters.worker import keyed_rng
from cbdybw.errors import BadInput
from data_prep import csv_table
from data_prep.downloads import Unavailable, over_http
from data_prep.samples import Samples, for_training

FILE = "covtype.data"
URL = "https://ndownloader.figshare.com/files/5976039"
SHA256 = "614360d0257557dd1792834a85a1cdebfadc3c4f30b011d56afee7ffb5b15771"
"""Where scikit-learn's fetch_covtype finds covtype.data.gz, and what it is then."""

FEATURES, MEASURED, CLASSES = 54, 10, 7


def read(path: Path) -> np.ndarray:
    """The table in `path`, gzipped or not, float64 (rows, 55): features, then the class 1 … 7."""
    table = csv_table.read_published(path, FEATURES + 1)
    wrong = np.flatnonzero(~np.isin(table[:, -1], np.arange(1, CLASSES + 1)))
    if wrong.size:
        line = csv_table.line_of(path, wrong[0])
        raise BadInput(
            f"{path}: line {line}: {table[wrong[0], -1]:g} is no class from 1 to {CLASSES}; "
            "restore the published file"
        )
    return table


def fetch(log: Callable[[str], None]) -> np.ndarray:
    """The same table from the network; BadInput when it cannot be had."""
    log(f"covertype: trying {URL}")
    try:
        file = over_http(URL, SHA256)
    except Unavailable as reason:
        raise BadInput(
            f"--dataset=covertype: cannot be downloaded from {URL} ({reason}); "
            f"use --raw_dir=FOLDER with {FILE} or {FILE}.gz"
        ) from reason
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"{FILE}.gz")
        path.write_bytes(file.data)
        return read(path)


def samples(table: np.ndarray, name: str) -> Samples:
    """Rows with the measurements in units of the training rows' standard deviation."""
    cut = for_training(len(table))
    if cut == 0:
        raise BadInput(f"{name}: {len(table)} row is too few; needed are two")
    order = keyed_rng(0, "covertype", 0, 0).permutation(len(table))
    x, y = table[order, :-1].astype(np.float32), table[order, -1].astype(np.int64) - 1
    mean, deviation = x[:cut, :MEASURED].mean(axis=0), x[:cut, :MEASURED].std(axis=0)
    x[:, :MEASURED] -= mean
    x[:, :MEASURED] /= np.where(deviation > 0, deviation, 1)
    scaling = "measurements minus mean, divided by standard deviation of the training rows"
    return Samples(x[:cut], y[:cut], x[cut:], y[cut:], scaling, CLASSES)
