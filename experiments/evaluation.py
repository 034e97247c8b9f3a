"""How good the estimates are: the mean model, each worker, and their disagreement."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from cbdybw.problem import Evaluation, Problem
from cbdybw.recorder import Recorder

Estimates = Mapping[int, np.ndarray]


def mean_model(estimates: Estimates) -> np.ndarray:
    """w̄ = (1/N) Σ_j w_j, summed in float64 and in rank order."""
    vectors = [estimates[rank] for rank in sorted(estimates)]
    return np.mean(vectors, axis=0, dtype=np.float64).astype(np.float32)


def consensus_distance(estimates: Estimates) -> float:
    """√((1/N) Σ_j ‖w_j - w̄‖²) [choice: the root of the mean square distance]."""
    vectors = np.array([estimates[rank] for rank in sorted(estimates)], np.float64)
    return float(np.sqrt(np.mean(np.sum((vectors - vectors.mean(axis=0)) ** 2, axis=1))))


def workers(problem: Problem, estimates: Estimates) -> dict[int, Evaluation]:
    """Each worker's own quality."""
    return {rank: problem.evaluate(w) for rank, w in estimates.items()}


def row(
    problem: Problem,
    recorder: Recorder,
    done: int,
    estimates: Estimates,
    own: Mapping[int, Evaluation],
) -> dict[str, Any]:
    """A line of metrics.jsonl: all there is to say after `done` iterations.

    `clock_seconds` is when the last worker closed the iteration, without the time at cuts.
    """
    clock = float(recorder.last_close[done - 1]) - recorder.paused(done) if done else 0.0
    mean = problem.evaluate(mean_model(estimates))
    return {
        "iteration": done,
        "clock_seconds": clock,
        "train_loss": _finite(mean.loss),
        "test_error": _finite(mean.error),
        "consensus_distance": _finite(consensus_distance(estimates)),
        "worker_loss": [_finite(own[rank].loss) for rank in sorted(own)],
        "worker_error": [_finite(own[rank].error) for rank in sorted(own)],
        "gradients_used": int(recorder.used[:done].sum()),
    }


def time_to_target(rows: list[dict[str, Any]], target: float) -> float | None:
    """Clock seconds of the first evaluation whose training loss is at most `target`."""
    reached = (r["clock_seconds"] for r in rows if r["train_loss"] is not None)
    losses = (r["train_loss"] for r in rows if r["train_loss"] is not None)
    return next((t for t, loss in zip(reached, losses, strict=True) if loss <= target), None)


def diverged(rows: list[dict[str, Any]]) -> bool:
    """Whether some mean model had no finite loss."""
    return any(r["train_loss"] is None for r in rows)


def _finite(x: float) -> float | None:
    """JSON has no NaN and no infinity."""
    return float(x) if math.isfinite(x) else None
