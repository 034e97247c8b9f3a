"""Rows as a sweep keeps them (see `experiments.rows`), with numbers of our choice."""

from __future__ import annotations

from typing import Any

import numpy as np

Row = dict[str, Any]


def row(cell: str, seed: int = 0, **flags: Any) -> Row:
    """A run that learnt nothing and took 1 s an iteration: what a test is about, it sets itself."""
    iterations = flags.get("iterations", 200)
    workers = flags.get("workers", 6)
    return {
        "key": f"{abs(hash((cell, seed))):012x}"[:12],
        "cell": cell,
        "seed": seed,
        "flags": flags,
        "status": "finished",
        "result": {
            "iterations": iterations,
            "mean_iteration_seconds": 1.0,
            "gradients_used": iterations * workers,
            "train_loss": None,
            "test_error": None,
            "consensus_distance": None,
            "mean_backup_workers": None,
        },
        "curve": {
            name: []
            for name in (
                "iteration",
                "clock_seconds",
                "train_loss",
                "test_error",
                "consensus_distance",
            )
        },
        "versions": {},
        "commit": "0" * 40,
    }


def learnt(row: Row, halving: float, seconds: float = 1.0, error: float = 0.1) -> Row:
    """It learns: the loss falls from 2 by a half every `halving` iterations of `seconds` each, the
    test error from 0.9 to `error` within the first tenth of the run."""
    k = row["result"]["iterations"]
    at = np.linspace(0, k, 21)
    row["curve"] = {
        "iteration": at.tolist(),
        "clock_seconds": (seconds * at).tolist(),
        "train_loss": (2 * 0.5 ** (at / halving)).tolist(),
        "test_error": np.interp(at, [0, k / 10], [0.9, error]).tolist(),
        "consensus_distance": [0.1] * 21,
    }
    row["result"] |= {
        "train_loss": row["curve"]["train_loss"][-1],
        "test_error": error,
        "consensus_distance": 0.1,
        "mean_iteration_seconds": seconds,
        "clock_seconds": seconds * k,
    }
    return row


def waited(row: Row, durations: list[float], backup_workers: list[float]) -> Row:
    """Every iteration's length and who was left out."""
    row |= {"durations": durations, "backup_workers": backup_workers}
    row["result"]["mean_backup_workers"] = float(np.mean(backup_workers))
    return row
