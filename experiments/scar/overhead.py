"""What checkpoints cost while nothing fails: `python -m experiments.scar.overhead --workload=mlr …`

Iterations alone are timed against the same with

    running       a running checkpoint, r = 1/8 by priority, in a log on disk
    tensorflow    tf.train.Checkpoint of everything in every C iterations, and fsync
    numpy         np.save of everything in every C iterations, fsync and rename

which all write the same bytes in C iterations. The variants take turns, one block of iterations
each, who is first as well; a block ends when all that it saved is on disk [choice: harder on those
that write beside the iterations]. Wall-clock seconds, in --run_dir or the system's folder for
temporary files.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cbdybw.clusters.worker import keyed_rng
from cbdybw.errors import BadInput
from cbdybw.problem import Iterated, iterate
from cbdybw.scar.checkpoint import RunningCheckpoint
from cbdybw.scar.log import Log as DiskLog
from cbdybw.storage import atomic
from experiments import environment
from experiments.flagged import flag
from experiments.scar.problems import Iterating, Log, Source, main, prepare_data
from experiments.scar.trial import SCAR

__all__ = ["ALONE", "Settings", "outcome", "prepare_data"]

ALONE = True
"""Seconds are the wall clock's."""
WARM = 2
"""Rounds before those that count."""

Save = Callable[[np.ndarray, int], None]


@dataclass(frozen=True)
class Settings(Iterating):
    """One field a flag."""

    rounds: int = flag(15, "blocks of iterations of each variant")
    periods: int = flag(2, "of C iterations in a block")
    run_dir: str = flag("", "folder in which checkpoints are written; empty: the system's /tmp")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("rounds", "periods"):
            if getattr(self, name) < 1:
                raise BadInput(f"--{name}={getattr(self, name)}: use 1 or more")


def outcome(settings: Settings, log: Log) -> dict[str, Any]:
    """What a row keeps: `result`, and `seconds`, variant → seconds per iteration of each block."""
    source = Source(settings, log)
    problem = source(settings.seed)
    x = problem.initial(keyed_rng(settings.seed, "initial", 0, 0))
    with tempfile.TemporaryDirectory(dir=settings.run_dir or None) as folder:
        variants = {
            "none": Nothing(),
            "running": Running(problem, x, settings, Path(folder)),
            "tensorflow": TensorFlow(x, settings.period, Path(folder)),
            "numpy": Numpy(settings.period, Path(folder)),
        }
        seconds = _measure(problem, x, settings, variants)
    result = {
        "status": "finished",
        "notice": source.notice,
        "dim": problem.dim,
        "blocks": len(problem.blocks),
        "bytes": 4 * problem.dim,
        "machine": environment.machine(),
    }
    return {"result": result, "seconds": seconds}


def _measure(
    problem: Iterated, x: np.ndarray, settings: Settings, variants: dict[str, Any]
) -> dict[str, list[float]]:
    """Each variant goes on from where the one before has left the iterate."""
    length = settings.periods * settings.period
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    names, k = list(variants), 0
    for turn in range(WARM + settings.rounds):
        for name in np.roll(names, turn):
            variant = variants[name]
            began = time.perf_counter()
            for _ in range(length):
                x = iterate(problem, x, k)
                k += 1
                variant.save(x, k)
            variant.close()
            if turn >= WARM:
                seconds[name].append((time.perf_counter() - began) / length)
    return seconds


class Nothing:
    """No checkpoints."""

    def save(self, x: np.ndarray, k: int) -> None:
        """Nothing to do."""

    close = staticmethod(lambda: None)


class Running:
    """SCAR's, in a log on disk; x(0) is in it before the first iteration."""

    def __init__(self, problem: Iterated, x: np.ndarray, settings: Settings, folder: Path):
        self._checkpoint = RunningCheckpoint(
            problem.blocks,
            np.arange(len(problem.blocks)),
            x,
            fraction=SCAR.fraction,
            period=settings.period,
            policy=SCAR.policy,
            distance=problem.distance,
            rng=lambda k: keyed_rng(settings.seed, "checkpoint", 0, k),
            store=DiskLog(folder / "log", problem.blocks, settings.workload),
        )
        self.close = self._checkpoint.close

    def save(self, x: np.ndarray, k: int) -> None:
        """The blocks that have changed the most, where it is their time."""
        if self._checkpoint.due(k):
            self._checkpoint.save(x, k)


class TensorFlow:
    """Everything, by TensorFlow's own means."""

    def __init__(self, x: np.ndarray, period: int, folder: Path):
        import tensorflow as tf
        from absl import logging

        logging.set_verbosity(logging.WARNING)  # each checkpoint would say how long it took
        self._variable = tf.Variable(x)
        self._checkpoint = tf.train.Checkpoint(x=self._variable)
        self._period, self._path = period, folder / "tf"

    def save(self, x: np.ndarray, k: int) -> None:
        """All of x, in every C iterations."""
        if k % self._period == 0:
            self._variable.assign(x)
            self._checkpoint.write(str(self._path))
            for path in self._path.parent.glob("tf.*"):
                atomic.fsync(path)

    close = staticmethod(lambda: None)


class Numpy:
    """Everything, the plain way."""

    def __init__(self, period: int, folder: Path):
        self._period, self._path = period, folder / "x.npy"

    def save(self, x: np.ndarray, k: int) -> None:
        """All of x, in every C iterations."""
        if k % self._period == 0:
            new = self._path.with_suffix(".new.npy")
            np.save(new, x)
            atomic.fsync(new)
            new.replace(self._path)

    close = staticmethod(lambda: None)


if __name__ == "__main__":
    main(Settings, outcome)
