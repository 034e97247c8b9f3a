"""A user's own measurements: a CSV file of numbers, with or without a header."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from cbdybw.errors import BadInput


def read(path: Path, columns: Sequence[str]) -> np.ndarray:
    """The numbers in `path`, float64 (rows, columns).

    The first line is a header when nothing in it is a number; empty lines do not count. BadInput
    names the line and column at fault.
    """
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            lines = [(reader.line_num, cells) for cells in reader if cells]
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror})") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise BadInput(f"{path}: no CSV file in UTF-8 ({error})") from error
    if lines and not any(map(_is_number, lines[0][1])):
        del lines[0]
    if not lines:
        raise BadInput(f"{path}: holds no row of numbers")
    return np.array([_row(path, number, cells, columns) for number, cells in lines])


def _row(path: Path, number: int, cells: list[str], columns: Sequence[str]) -> list[float]:
    if len(cells) != len(columns):
        raise BadInput(
            f"{path}: line {number} has {len(cells)} columns; needed are {len(columns)}: "
            f"{','.join(columns)}"
        )
    for name, cell in zip(columns, cells, strict=True):
        if not (_is_number(cell) and math.isfinite(float(cell))):
            raise BadInput(f"{path}: line {number}, column {name}: {cell!r} is no finite number")
    return [float(cell) for cell in cells]


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
