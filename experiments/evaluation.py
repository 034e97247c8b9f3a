"""How good the estimates are: the mean model, each worker, and their disagreement."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from cbdybw.problem import Evaluation, Problem
from cbdybw.recorder import Recorder
from cbdybw.storage.run_directory import RunDirectory

Estimates = Mapping[int, np.ndarray]
Qualities = Mapping[int, Evaluation]


def mean_model(estimates: Estimates) -> np.ndarray:
    """w̄ = (1/N) Σ_j w_j, summed in float64 and in rank order."""
    vectors = [estimates[rank] for rank in sorted(estimates)]
    return np.mean(vectors, axis=0, dtype=np.float64).astype(np.float32)


def consensus_distance(estimates: Estimates) -> float:
    """√((1/N) Σ_j ‖w_j - w̄‖²) [choice: the root of the mean square distance]."""
    vectors = np.array([estimates[rank] for rank in sorted(estimates)], np.float64)
    return float(np.sqrt(np.mean(np.sum((vectors - vectors.mean(axis=0)) ** 2, axis=1))))


def overflowing() -> np.errstate:
    """A diverged run is no accident: its status and its missing numbers tell of it."""
    return np.errstate(over="ignore", invalid="ignore")


def qualities(problem: Problem, estimates: Estimates) -> Qualities:
    """Each model's own quality; equal ones, as after an allreduce, are evaluated once."""
    known: dict[bytes, Evaluation] = {}
    with overflowing():
        for w in estimates.values():
            if w.tobytes() not in known:
                known[w.tobytes()] = problem.evaluate(w)
    return {rank: known[w.tobytes()] for rank, w in estimates.items()}


def merged(parts: Iterable[Mapping[int, Qualities]]) -> dict[int, Qualities]:
    """Iterations done → qualities of all workers, from what each process has of them."""
    whole: dict[int, dict[int, Evaluation]] = {}
    for part in parts:
        for done, own in part.items():
            whole.setdefault(done, {}).update(own)
    return whole


class Metrics:
    """The evaluations of a run, in the order of iterations: `rows`, and the lines of the file.

    Args:
        problem: what is learnt.
        recorder: knows when iterations ended, and how many gradients they used.
        directory: where metrics.jsonl is, with what a resumed run has there already; or None.
    """

    def __init__(self, problem: Problem, recorder: Recorder, directory: RunDirectory | None):
        self._problem, self._recorder, self._directory = problem, recorder, directory
        self.rows: list[dict[str, Any]] = directory.metrics() if directory else []

    def add(self, done: int, estimates: Estimates, own: Qualities | None = None) -> None:
        """Evaluate the estimates after `done` iterations, unless that has been done.

        `own`: the qualities of the workers, where they are known already.
        """
        if any(row["iteration"] == done for row in self.rows):
            return
        row = self._row(done, estimates, own or qualities(self._problem, estimates))
        self.rows.append(row)
        if self._directory is not None:
            self._directory.add_metrics(row)

    def _row(self, done: int, estimates: Estimates, own: Qualities) -> dict[str, Any]:
        """`clock_seconds` is when the last worker ended the iteration, without time at cuts."""
        recorder = self._recorder
        clock = float(recorder.last_close[done - 1]) - recorder.paused(done) if done else 0.0
        with overflowing():
            distance = consensus_distance(estimates)
            same = distance == 0
            mean = own[min(own)] if same else self._problem.evaluate(mean_model(estimates))
        return {
            "iteration": done,
            "clock_seconds": clock,
            "train_loss": finite(mean.loss),
            "test_error": finite(mean.error),
            "consensus_distance": finite(distance),
            "worker_loss": [finite(own[rank].loss) for rank in sorted(own)],
            "worker_error": [finite(own[rank].error) for rank in sorted(own)],
            "gradients_used": int(recorder.used[:done].sum()),
        }

    def time_to(self, target: float) -> float | None:
        """Clock seconds of the first evaluation whose training loss is at most `target`."""
        for row in self.rows:
            if row["train_loss"] is not None and row["train_loss"] <= target:
                return row["clock_seconds"]
        return None

    def iterations_to(self, target: float) -> int | None:
        """Iterations done at the first evaluation whose training loss is at most `target`."""
        for row in self.rows:
            if row["train_loss"] is not None and row["train_loss"] <= target:
                return row["iteration"]
        return None

    @property
    def diverged(self) -> bool:
        """Whether some mean model had no finite loss."""
        return any(row["train_loss"] is None for row in self.rows)


def finite(x: float) -> float | None:
    """JSON has no NaN and no infinity."""
    return float(x) if math.isfinite(x) else None
