"""What a running checkpoint costs, and what reading it back costs.

    python -m experiments.benchmarks.checkpoint

Run time about 20 s. Expected, for 1 M float32 parameters in blocks of 500 and r = 1/8 by priority:
the thread that trains is held up for at most 0.7 ms a save; a save until it is durable takes at
most 0.6 times as long as np.save of everything and 0.3 times as long as tf.train.Checkpoint with
everything, both made durable as well. Half of 10 M parameters are back from disk within 1 s. Leaves
with exit code 1 when a limit is missed.

The sides take turns, who is first as well; times are medians, ratios those of medians. A save is
all of it: choose the blocks, hand them over, write, fsync, rename, fsync the folder. The parameters
have just been updated, as by a step of training. What the log's tidying takes now and then is in
the mean that stands beside. `--folder` names the disk. Before the reading back, files are dropped
from the page cache.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from absl import app, flags, logging
from rich.console import Console
from rich.table import Table

from cbdybw.learning.flat import tf
from cbdybw.scar import recovery
from cbdybw.scar.blocks import Blocks, euclidean, partition
from cbdybw.scar.checkpoint import RunningCheckpoint
from cbdybw.scar.log import Log
from cbdybw.storage import atomic
from experiments.benchmarks import step  # defines --rounds

FLAGS = flags.FLAGS
FLAGS.set_default("rounds", 30)
flags.DEFINE_string("folder", None, "where to write (default: where temporary files go)")

HELD_UP, OF_NUMPY, OF_TENSORFLOW, RECOVERY = 0.7e-3, 0.6, 0.3, 1.0
ROW = 500
PARAMETERS, MANY = 1_000_000, 10_000_000
FRACTION, PERIOD = 1 / 8, 8
SAVES = 4
"""In each turn of ours."""
ONE_BY_ONE = 3
"""Turns with a file for each block."""


def main(_: list[str]) -> int:
    logging.set_verbosity(logging.WARNING)  # TensorFlow has a line for every checkpoint
    table = Table("milliseconds", "median", "mean", "measured", "limit")
    with tempfile.TemporaryDirectory(dir=FLAGS.folder) as folder:
        within = saving(Path(folder), table) & reading(Path(folder), table)
    Console(width=110).print(table, step.machine(), sep="\n")
    return 0 if within else 1


def begin(folder: Path, blocks: Blocks, members: np.ndarray, x: np.ndarray) -> RunningCheckpoint:
    """A running checkpoint by priority of the values `x` of `members`."""
    return RunningCheckpoint(
        blocks, members, x, fraction=FRACTION, period=PERIOD, policy="priority",
        distance=euclidean, rng=np.random.default_rng, store=Log(folder, blocks, "benchmark"),
    )  # fmt: skip


def saving(folder: Path, table: Table) -> bool:
    """One save against everything."""
    rng = np.random.default_rng(0)
    blocks = Blocks.rows(PARAMETERS // ROW, ROW)
    x = rng.standard_normal(PARAMETERS, np.float32)
    running = begin(folder / "log", blocks, np.arange(len(blocks)), x)
    running.close()
    variable = tf.Variable(x)
    whole = tf.train.Checkpoint(x=variable)
    held_up, save, numpy_save, tensorflow_save = [], [], [], []

    def ours() -> None:
        for _ in range(SAVES):
            train()
            start = time.perf_counter()
            running.save(x, 1)
            held_up.append(time.perf_counter() - start)
            running.close()
            save.append(time.perf_counter() - start)

    def train() -> None:
        np.add(x, np.float32(1e-3), out=x)
        x.reshape(-1, ROW)[rng.integers(len(blocks), size=len(blocks) // 4)] += rng.random()

    def numpy_all() -> None:
        numpy_save.append(seconds(lambda: atomic.write_array(folder / "all.npy", x)))

    def tensorflow_all() -> None:
        variable.assign(x)
        tensorflow_save.append(seconds(tensorflow_write))

    def tensorflow_write() -> None:
        whole.write(str(folder / "tf"))
        for path in folder.glob("tf.*"):
            atomic.fsync(path)
        atomic.fsync(folder)

    def file_per_block() -> None:
        for i in range(int(FRACTION * len(blocks))):
            atomic.write_bytes(folder / f"block-{i}", x[i * ROW : (i + 1) * ROW])

    sides = [ours, numpy_all, tensorflow_all]
    for turn in range(FLAGS.rounds):
        for side in sides[:: 1 if turn % 2 == 0 else -1]:
            side()
    one_by_one = [seconds(file_per_block) for _ in range(ONE_BY_ONE)]

    held = np.median(held_up)
    of_numpy, of_tensorflow = (
        np.median(save) / np.median(other) for other in (numpy_save, tensorflow_save)
    )
    row(table, f"{PARAMETERS:,} parameters, r = 1/8: training is held up", held_up,
        f"{1e3 * held:.2f} ms", f"≤ {1e3 * HELD_UP:.1f} ms")  # fmt: skip
    row(table, "… one save until durable", save)
    row(table, "everything: np.save, fsync, rename", numpy_save, f"{of_numpy:.2f}×",
        f"≤ {OF_NUMPY}×")  # fmt: skip
    row(table, "everything: tf.train.Checkpoint, fsync", tensorflow_save, f"{of_tensorflow:.2f}×",
        f"≤ {OF_TENSORFLOW}×")  # fmt: skip
    row(table, "as many blocks, a file with fsync for each", one_by_one)
    return bool(held <= HELD_UP and of_numpy <= OF_NUMPY and of_tensorflow <= OF_TENSORFLOW)


def reading(folder: Path, table: Table) -> bool:
    """One of two servers is lost: a survivor reads what it had saved and puts it in place."""
    rng = np.random.default_rng(1)
    blocks = Blocks.rows(MANY // ROW, ROW)
    x = rng.standard_normal(MANY, np.float32)
    lost = np.flatnonzero(partition(len(blocks), 2, rng) == 0)
    theirs = blocks.take(x, lost)
    running = begin(folder / "lost", blocks, lost, theirs)
    for k in range(1, 2 * PERIOD):  # from the files of many saves
        theirs += rng.standard_normal(len(theirs), np.float32)
        running.save(theirs, k)
    running.close()

    def recover() -> None:
        saved, _ = recovery.newest([Log(folder / "lost", blocks, "benchmark")], lost)
        recovery.partial(x, lost, blocks, saved)

    spent = []
    for _ in range(5):
        forget(folder / "lost")
        spent.append(seconds(recover))
    took = float(np.median(spent))
    row(table, f"half of {MANY:,} parameters recovered from disk", spent,
        f"{took:.2f} s", f"≤ {RECOVERY:.0f} s")  # fmt: skip
    return took <= RECOVERY


def row(table: Table, what: str, times: list[float], measured: str = "", limit: str = "") -> None:
    table.add_row(
        what, f"{1e3 * np.median(times):.2f}", f"{1e3 * np.mean(times):.2f}", measured, limit
    )


def seconds(act: Callable[[], None]) -> float:
    """Wall seconds, for the disk is part of it."""
    start = time.perf_counter()
    act()
    return time.perf_counter() - start


def forget(folder: Path) -> None:
    """Drop the folder's files, which are durable, from the page cache."""
    for path in folder.iterdir():
        with open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


if __name__ == "__main__":
    app.run(main)
