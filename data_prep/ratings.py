"""Ratings of items by users: Jester and MovieLens 100K, from files that the user has.

    jester     jester-data-1.csv: a line for each user, how many jokes it rated, then 100 ratings
               from -10 to 10, 99 where there is none
    movielens  ml-100k/u.data: a line for each rating: user, item, rating from 1 to 5, time

Both forbid passing their files on, so nothing is downloaded. What was read is kept in a folder.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cbdybw.errors import BadInput
from cbdybw.storage import datasets
from cbdybw.storage.atomic import publishing_folder
from data_prep import csv_table

JOKES, UNRATED = 100, 99
ARRAY = "ratings.npy"


class Ratings(NamedTuple):
    """float32 `values` (users, items), NaN where there is no rating, and the manifest."""

    values: np.ndarray
    manifest: dict[str, Any]

    @property
    def name(self) -> str:
        """jester or movielens."""
        return self.manifest["dataset"]


def prepare(
    dataset: str, raw_dir: str, out: str | os.PathLike, log: Callable[[str], None]
) -> dict[str, Any]:
    """Read `dataset` from `raw_dir` into the folder `out`, unless it is there; the manifest.

    No `raw_dir` asks for no particular source. Raises BadInput, with nothing left behind, when
    the file is missing or damaged, or when `out` holds something else.
    """
    out = Path(out)
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        return _prepared_before(dataset, raw_dir, out)
    path = _find(dataset, raw_dir)
    log(f"{dataset}: reading {path}")
    values = _FORMS[dataset].read(path)
    about = {
        "dataset": dataset,
        "notice": None,
        "source": {"name": "raw_dir", "place": str(path.resolve()), "sha256": _sha256(path)},
        "parameters": {"dataset": dataset, "raw_dir": str(Path(raw_dir).resolve())},
    }
    try:
        with publishing_folder(out) as folder:
            datasets.write_arrays(folder, {ARRAY: values}, about)
    except OSError as error:
        raise BadInput(f"{out}: cannot be written ({error.strerror})") from error
    return _prepared_before(dataset, raw_dir, out)


def load(folder: str | os.PathLike) -> Ratings:
    """What `prepare` has left in `folder`; BadInput names the file that is damaged."""
    arrays, manifest = datasets.load_arrays(folder)
    return Ratings(np.asarray(arrays[ARRAY]), manifest)


def read_jester(path: Path) -> np.ndarray:
    """Jester's table as the `values` of Ratings, (users, JOKES)."""
    table = csv_table.read_published(path, 1 + JOKES)
    values = np.where(table[:, 1:] == UNRATED, np.nan, table[:, 1:])
    _check(path, np.abs(values) > 10, "a rating is beyond -10 … 10 and not 99")
    counted = (~np.isnan(values)).sum(axis=1)
    _check(path, table[:, 0] != counted, "the first column does not count the line's ratings")
    return values.astype(np.float32)


def read_movielens(path: Path) -> np.ndarray:
    """MovieLens's list as the `values` of Ratings: users and items in the order of their ids."""
    table = csv_table.read_published(path, 4, "\t")
    ids, rating = table[:, :2], table[:, 2]
    _check(path, (ids < 1) | (ids % 1 != 0), "ids are whole numbers from 1 up")
    _check(path, (rating < 1) | (rating > 5), "a rating is beyond 1 … 5")
    (users, user), (items, item) = (np.unique(c, return_inverse=True) for c in ids.T)
    place = user * len(items) + item
    again = np.ones(len(place), bool)
    again[np.unique(place, return_index=True)[1]] = False
    _check(path, again, "this user has rated this item before")
    values = np.full((len(users), len(items)), np.nan, np.float32)
    values[user, item] = rating
    return values


class _Form(NamedTuple):
    """The file of a data set, how it is read, and where it comes from."""

    file: str
    read: Callable[[Path], np.ndarray]
    origin: str


_FORMS = {
    "jester": _Form(
        "jester-data-1.csv", read_jester, "eigentaste.berkeley.edu/dataset, saved as CSV"
    ),
    "movielens": _Form("u.data", read_movielens, "grouplens.org/datasets/movielens/100k"),
}


def _find(dataset: str, raw_dir: str) -> Path:
    file, _, origin = _FORMS[dataset]
    for place in ("", dataset, "ml-100k") if raw_dir else ():
        if (path := Path(raw_dir, place, file)).is_file():
            return path
    given = f"--raw_dir={raw_dir}: has no {file}" if raw_dir else f"--dataset={dataset}"
    raise BadInput(f"{given}; give a --raw_dir=FOLDER with {file} (from {origin})")


def _prepared_before(dataset: str, raw_dir: str, out: Path) -> dict[str, Any]:
    manifest = datasets.read_manifest(out)
    asked = {"dataset": dataset, "raw_dir": str(Path(raw_dir).resolve()) if raw_dir else ""}
    for name, there in manifest["parameters"].items():
        if asked.get(name) and asked[name] != there:
            raise BadInput(
                f"{out}: prepared with --{name}={there}, not {asked[name]}; "
                "name another --data_dir or remove this one"
            )
    return manifest


def _check(path: Path, bad: np.ndarray, what: str) -> None:
    """BadInput names the first line with something bad, (rows,) or (rows, columns)."""
    rows = np.flatnonzero(bad.reshape(len(bad), -1).any(axis=1))
    if rows.size:
        line = csv_table.line_of(path, rows[0])
        raise BadInput(f"{path}: line {line}: {what}; restore the published file")


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
