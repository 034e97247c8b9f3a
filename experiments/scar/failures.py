"""Runs of training in which ranks were lost, held against those of the same seeds without."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from experiments.reading import Result, values
from experiments.statistics import Values

ITERATIONS, SECONDS = "iterations_to_target", "time_to_target"
"""Numbers of a run, nan where it is not at the criterion: the first iteration after which it is,
and the cluster's seconds to then."""


def arrivals(runs: Iterable[Result], what: str) -> Values:
    """Seed → ITERATIONS or SECONDS to the criterion."""
    return values(runs, lambda r: r.value(what))


def costs(runs: Iterable[Result], clean: Iterable[Result], what: str = ITERATIONS) -> Values:
    """Seed → ι, what a run needs beyond the failure-free one of its seed (section 2 of the paper);
    it can be negative."""
    with_loss, without = arrivals(runs, what), arrivals(clean, what)
    return {seed: with_loss[seed] - without[seed] for seed in with_loss if seed in without}


def file(r: Result) -> str:
    """The name of the run's file of faults; empty where nothing is lost."""
    return Path(r.settings.faults).stem


def losses(r: Result) -> list[dict[str, Any]]:
    """What the run lost and made good: iteration it went on with, ranks, seconds."""
    return r.row["result"].get("recoveries", [])


class Repair(NamedTuple):
    """A loss on MPI: cluster's seconds at which the first rank died, another noticed, and training
    had gone on."""

    killed: float
    noticed: float
    resumed: float


def repairs(r: Result) -> list[Repair]:
    """The losses of a run whose ranks noted when they died."""
    return [
        Repair(told["killed_seconds"], told["noticed_seconds"], told["resumed_seconds"])
        for told in losses(r)
        if told.get("killed_seconds") is not None
    ]
