"""Trials of recovery: `python -m experiments.scar.trials --workload=qp --target=0.001 --trials=10`

Each trial has a seed of its own, so that what it gives is independent of the others: those of
--seed=s are s·n … s·n + n-1, n being --trials. Prints what a row keeps as one JSON line.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from cbdybw.errors import BadInput
from experiments.flagged import flag
from experiments.scar.problems import Iterating, Log, Source, main, prepare_data
from experiments.scar.trial import MODES, Mode, Outcome, Rules, lost_blocks, trial

__all__ = ["ALONE", "Settings", "outcome", "prepare_data"]

ALONE = False
"""Costs are counted in iterations."""


@dataclass(frozen=True)
class Counted(Iterating):
    """Flags of all runs that count iterations to a target."""

    target: float = flag(0.0, "the criterion at or below which a run is finished")
    most: int = flag(1000, "iterations after which a run is given up")
    trials: int = flag(10, "trials of a run, n")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("most", "trials"):
            if getattr(self, name) < 1:
                raise BadInput(f"--{name}={getattr(self, name)}: use 1 or more")

    @property
    def seeds(self) -> range:
        """One for each trial."""
        return range(self.seed * self.trials, (self.seed + 1) * self.trials)


@dataclass(frozen=True)
class Settings(Counted):
    """One field a flag."""

    about: int = flag(80, "K0: iterations that a run takes, roughly; failures come at half of it")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.about < 3:
            raise BadInput(f"--about={self.about}: use 3 iterations or more")

    @property
    def rules(self) -> Rules:
        """Of all trials."""
        return Rules(self.target, self.about, self.most, self.period)


def outcome(settings: Settings, log: Log) -> dict[str, Any]:
    """What a row keeps: `result`; `trials`, column → a value a trial; and `modes`, a dictionary
    for each of trial.MODES with the columns of its `Outcome`."""
    began = time.perf_counter()
    source = Source(settings, log)
    done = []
    for seed in settings.seeds:
        problem = source(seed)
        done.append(trial(problem, seed, settings.rules))
    n = len(problem.blocks)
    modes = [_mode(mode, n, [t.outcomes[mode] for t in done]) for mode in MODES]
    trials = {
        "seed": list(settings.seeds),
        "clean": [t.clean for t in done],
        "failure": [t.failure for t in done],
    }
    result = {
        "status": "finished",
        "notice": source.notice,
        "dim": problem.dim,
        "blocks": n,
        "alike": bool(problem.blocks.size),
        "wall_seconds": time.perf_counter() - began,
    }
    return {"result": result, "trials": trials, "modes": modes}


def _mode(mode: Mode, blocks: int, outcomes: list[Outcome]) -> dict[str, Any]:
    lost = len(lost_blocks(np.arange(blocks), mode.lost))
    columns = zip(*outcomes, strict=True)
    kept = {n: list(map(_short, c)) for n, c in zip(Outcome._fields, columns, strict=True)}
    return mode._asdict() | {"lost_blocks": lost} | kept


def _short(value: float) -> float:
    return float(f"{value:.6g}") if isinstance(value, float) else value


if __name__ == "__main__":
    main(Settings, outcome)
