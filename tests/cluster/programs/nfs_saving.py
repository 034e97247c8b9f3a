"""One who saves without end and says what is saved; and what is there of it.

    nfs_saving.py save KIND FOLDER     prints "NUMBER SECONDS" as soon as save NUMBER is durable
    nfs_saving.py found KIND FOLDER    prints the numbers of all saves that are there and whole

KIND is checkpoint (a running checkpoint of blocks), metrics (lines of a run) or data (prepared data
sets, one after the other). Numbers are 0, 1, 2, …
"""

import itertools
import os
import sys
import time
from pathlib import Path

import numpy as np

from cbdybw.scar.blocks import Blocks
from cbdybw.scar.log import Log
from cbdybw.storage import datasets
from cbdybw.storage.run_directory import RunDirectory
from data_prep.prepare import Preparation, prepare

BLOCKS = Blocks([50_000] * 8)
ALL = np.arange(len(BLOCKS))
_PAUSE = 0.01  # seconds between two saves of what is cheap


def say(number: int) -> None:
    """`number` is saved."""
    os.write(1, f"{number} {time.monotonic()}\n".encode())


def chosen(k: int) -> np.ndarray:
    """Save 0 has all blocks, each other one three of them in turn."""
    return ALL if k == 0 else np.sort((3 * k + np.arange(3)) % len(BLOCKS))


def values(members: np.ndarray, saved_at: np.ndarray) -> np.ndarray:
    """Each value says its block and the iteration."""
    return np.repeat(members + 10 * saved_at, BLOCKS.sizes[members]).astype(np.float32)


def save_checkpoint(folder: Path) -> None:
    log = Log(folder, BLOCKS, "drill")
    for k in itertools.count():
        members = chosen(k)
        log.write(k, members, values(members, np.full(len(members), k)), lambda k=k: say(k))
        time.sleep(_PAUSE)


def find_checkpoint(folder: Path) -> list[int]:
    """Every save that each block is at least as new as."""
    log = Log(folder, BLOCKS, "drill")
    packed, saved_at = log.read(ALL)
    if log.damage or not np.array_equal(packed, values(ALL, saved_at)):
        return []
    expected = np.zeros(len(BLOCKS), np.int64)
    for k in range(int(saved_at.max()) + 1):
        expected[chosen(k)] = k
    return list(range(int(saved_at.max()) + 1)) if (saved_at >= expected).all() else []


def save_metrics(folder: Path) -> None:
    directory = RunDirectory(folder)
    directory.create("", {"status": "running", "process": os.getpid()})
    for k in itertools.count():
        directory.add_metrics({"iteration": k, "train_loss": 1 / (k + 1)})
        say(k)
        time.sleep(_PAUSE)


def find_metrics(folder: Path) -> list[int]:
    rows = RunDirectory(folder).metrics()
    return [row["iteration"] for row in rows if row["train_loss"] == 1 / (row["iteration"] + 1)]


def save_data(folder: Path) -> None:
    for k in itertools.count():
        spec = Preparation(dataset="digits", pca=20, workers=6, batch_size=200, seed=k)
        prepare(spec, folder / str(k), log=lambda line: None)
        say(k)


def find_data(folder: Path) -> list[int]:
    found = sorted(int(path.name) for path in folder.iterdir() if path.name.isdecimal())
    for k in found:
        datasets.verify(folder / str(k))
        parts = datasets.load(folder / str(k)).parts
        if sorted(np.concatenate(parts)) != list(range(1547)):
            return []
    return found


SAVE = {"checkpoint": save_checkpoint, "metrics": save_metrics, "data": save_data}
FIND = {"checkpoint": find_checkpoint, "metrics": find_metrics, "data": find_data}


if __name__ == "__main__":
    verb, kind, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    if verb == "save":
        SAVE[kind](folder)
    else:
        print(*FIND[kind](folder))
