"""Rows of ADSP's groups with numbers of our choice: a run is at the target from a time on."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.made_up import Row, row

TARGET, EVERY = 0.5, 2.0
MACHINES = "machines:path=experiments/adsp/machines/eighteen.toml,heterogeneity={:g}"
SERVED = ("adsp", "adsp_plus", "adacomm", "fixed_adacomm")


def run(
    group: str,
    algorithm: str,
    at: float,
    seed: int = 0,
    level: float = 3.2,
    latency: float = 0.01,
    seconds: float = 200.0,
    search: float = 0.0,
    **flags: Any,
) -> Row:
    """It looks every 2 s, at a loss of 2 first and of 0.25 from second `at` on, and takes a step a
    second with each worker, half of it computing. `search`: seconds of one before training."""
    flags = {
        "algorithm": algorithm,
        "workers": 18,
        "workload": "2nn:width=64",
        "dataset": "mnist",
        "pca": 50,
        "batch_size": 128,
        "delay": MACHINES.format(level),
        "network": f"latency={latency:g},bandwidth=1.25e+07",
        "target_loss": TARGET,
        "eval_seconds": EVERY,
        "max_time": seconds,
    } | flags
    made = row(f"{group}/{sorted(map(str, flags.items()))}", seed, **flags)
    times = np.arange(0, seconds + EVERY, EVERY)
    workers = flags["workers"]
    made["looks"] = {
        "seconds": times.tolist(),
        "steps": (workers * times).tolist(),
        "held_out_loss": np.where(times >= at, 0.25, 2.0).tolist(),
    }
    made["result"] |= {
        "gradients_used": workers * seconds,
        "held_out_loss": 0.25 if at <= seconds else 2.0,
        "computing_seconds": [seconds / 2] * workers,
        "waiting_seconds": [seconds / 2] * workers,
    }
    if algorithm in SERVED:
        made["result"] |= {
            "steps": [seconds] * workers,
            "commits": [seconds / 10] * workers,
            "search_seconds": search,
        }
    if algorithm == "adsp":
        made["result"]["check_points"] = [[0.0, 0, 0, 0], [60.0, 3, 2, 3], [120.0, 6, 5, 6]]
    return made


NEVER = 1e9
"""Later than any run's end."""
