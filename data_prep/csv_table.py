"""Files of numbers: a user's own measurements, and published tables of millions of them."""

from __future__ import annotations

import csv
import gzip
import math
import warnings
import zlib
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np

from cbdybw.errors import BadInput


def read(path: Path, columns: Sequence[str]) -> np.ndarray:
    """The numbers in the CSV file `path`, float64 (rows, columns).

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


def read_published(path: Path, columns: int, delimiter: str = ",") -> np.ndarray:
    """The numbers in `path`, which has no header and may be gzipped, float64 (rows, columns).

    numpy reads, a hundred times as fast as `read`; only of what it refuses each line is looked at,
    so that BadInput names the one at fault.
    """
    refusal: Exception | None = None
    try:
        with warnings.catch_warnings(action="ignore"):  # of numpy, that a file is empty
            table = np.loadtxt(path, delimiter=delimiter, comments=None, ndmin=2, encoding="utf-8")
    except (OSError, EOFError, zlib.error, ValueError) as error:
        refusal = error
    if refusal or not table.size or table.shape[1] != columns or not np.isfinite(table).all():
        _blame(path, columns, delimiter, refusal)
    return table


def line_of(path: Path, row: int) -> int:
    """The number of the line that gave row `row` of `read_published`: empty lines are no rows."""
    return next(islice(_filled_lines(path), int(row), None))[0]


def _blame(path: Path, columns: int, delimiter: str, refusal: Exception | None) -> None:
    try:
        for number, line in _filled_lines(path):
            cells = line.split(delimiter)
            if len(cells) != columns:
                raise BadInput(
                    f"{path}: line {number} has {len(cells)} columns, not {columns}; "
                    "restore the published file"
                )
            for column, cell in enumerate(cells, start=1):
                if not (_is_number(cell) and math.isfinite(float(cell))):
                    raise BadInput(
                        f"{path}: line {number}, column {column}: {cell!r} is no finite number; "
                        "restore the published file"
                    )
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise BadInput(f"{path}: cannot be read ({why}); restore the published file") from error
    why = " ".join(str(refusal).split()) if refusal else "it has no row"
    raise BadInput(f"{path}: no table of numbers ({why}); restore the published file") from refusal


def _filled_lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines that are not empty, with their numbers."""
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            if line := line.rstrip("\r\n"):
                yield number, line


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
