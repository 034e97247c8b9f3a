"""Rows of trials, perturbations and timings as figures and verdicts read them, by cell."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar

import numpy as np

from cbdybw import specs
from cbdybw.learning.workloads import needs_data
from experiments import kinds, statistics
from experiments.rows import Row
from experiments.scar.problems import Iterating
from experiments.scar.trial import TRADITIONAL, Mode
from experiments.statistics import Interval

S = TypeVar("S", bound=Iterating)

NAMES = {"newsgroups": "20 Newsgroups", "jester": "Jester", "movielens": "MovieLens"}
WORDS = {"mnist": "MNIST", "covertype": "CoverType", "reuters": "Reuters", "digits": "digits"}
HIDDEN = ("dim", "alpha", "blocks")
"""Keys of workloads that their names say, or that say nothing."""


@dataclass(frozen=True)
class Cell(Generic[S]):
    """The rows of one cell, all of a kind."""

    rows: tuple[Row, ...]

    @cached_property
    def settings(self) -> S:
        """Those that its runs have in common; the seed is the first one's."""
        row = self.rows[0]
        return kinds.module(row["kind"]).Settings(**row["flags"], seed=row["seed"])

    @property
    def result(self) -> dict[str, Any]:
        """Of the first row."""
        return self.rows[0]["result"]

    @cached_property
    def name(self) -> str:
        """What is learnt from what: `MLR, MNIST`."""
        name, keys = specs.parse(self.settings.workload, "--workload")
        if name == "qp":
            return f"QP, {self.result.get('dim') or keys.get('dim', '4')}-D"
        data = self.settings.dataset if needs_data(self.settings.workload) else ""
        parts = [name.upper(), (NAMES | WORDS).get(data, data)]
        if "blocks" in keys:
            parts.append(f"by {keys['blocks']}")
        return ", ".join(filter(None, parts))

    @property
    def label(self) -> str:
        """The name over several lines."""
        return self.name.replace(", ", "\n")

    @property
    def cut(self) -> str:
        """The workload with what it leaves out of the data: `MF, Jester (users=2000)`."""
        keys = specs.parse(self.settings.workload, "--workload")[1]
        said = ", ".join(f"{key}={value}" for key, value in keys.items() if key not in HIDDEN)
        return f"{self.name} ({said})" if said else self.name


class Trials(Cell):
    """Of the kind `trials`: a value a trial, over all runs."""

    @cached_property
    def n(self) -> int:
        """Trials."""
        return len(self.clean)

    @cached_property
    def clean(self) -> np.ndarray:
        """K of each trial."""
        return self._column("clean")

    @cached_property
    def failure(self) -> np.ndarray:
        """T of each trial."""
        return self._column("failure")

    def _column(self, name: str) -> np.ndarray:
        return np.concatenate([row["trials"][name] for row in self.rows])

    @cached_property
    def modes(self) -> dict[Mode, dict[str, np.ndarray]]:
        """Mode → `trial.Outcome`'s columns and `lost_blocks`."""
        found: dict[Mode, list[dict[str, Any]]] = {}
        for row in self.rows:
            for mode in row["modes"]:
                found.setdefault(Mode(*(mode[f] for f in Mode._fields)), []).append(mode)
        return {
            mode: {
                name: np.concatenate([np.atleast_1d(part[name]) for part in parts])
                for name in parts[0]
                if name not in Mode._fields
            }
            for mode, parts in found.items()
        }

    def cost(self, mode: Mode) -> Interval:
        """Mean iteration cost; those given up count with what they had."""
        return statistics.mean(self.modes[mode]["cost"])

    def reduction(self, mode: Mode) -> Interval:
        """By which share the mean cost is below the traditional one's; nan where that is 0 or less,
        so that there is nothing to save."""
        return statistics.mean_reduction(self.modes[mode]["cost"], self.modes[TRADITIONAL]["cost"])

    @cached_property
    def name(self) -> str:
        """What is learnt from what, and C where it is not the usual one."""
        period, usual = self.settings.period, type(self.settings).period
        return super().name + (f", C = {period}" if period != usual else "")

    def given_up(self, mode: Mode) -> int:
        """Trials that did not come to the target."""
        return int((~self.modes[mode]["reached"].astype(bool)).sum())

    def share_lost(self, mode: Mode) -> float:
        """Of the blocks: p, as whole blocks allow."""
        return float(self.modes[mode]["lost_blocks"][0] / self.result["blocks"])


class Points(Cell):
    """Of the kind `perturbed`: a value a perturbation, over all runs."""

    @cached_property
    def columns(self) -> Mapping[str, np.ndarray]:
        """seed, kind, clean, at, norm, cost, reached, bound, cautious, and those of Speed."""
        names = self.rows[0]["points"]
        return {n: np.concatenate([row["points"][n] for row in self.rows]) for n in names}

    @property
    def kinds(self) -> list[str]:
        """Of perturbations, in the order of the rows."""
        return list(dict.fromkeys(self.columns["kind"].tolist()))


class Timed(Cell):
    """Of the kind `overhead`."""

    @cached_property
    def seconds(self) -> dict[str, np.ndarray]:
        """Variant → seconds per iteration of each block of iterations."""
        names = self.rows[0]["seconds"]
        return {n: np.concatenate([row["seconds"][n] for row in self.rows]) for n in names}

    def share(self, variant: str) -> Interval:
        """How much longer an iteration is than without checkpoints, as a share: the median over
        blocks of iterations, each held against the one without of its own round."""
        plain = self.seconds["none"]
        return statistics.median(self.seconds[variant] / plain - 1)


OF_KIND = {"trials": Trials, "perturbed": Points, "overhead": Timed}


def cells(rows: Iterable[Row], kind: str) -> list[Any]:
    """The cells of a kind among the rows, in the order of their names."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        if row.get("kind") == kind and row["status"] != "failed":
            found.setdefault(row["cell"], []).append(row)
    of_kind = OF_KIND[kind]
    return [of_kind(tuple(sorted(found[name], key=lambda r: r["seed"]))) for name in sorted(found)]


def percent(saved: Interval) -> str:
    """A reduction as text, such as `62 [55, 70] %`."""
    if math.isnan(saved.mean):
        return "nothing to save"
    return f"{saved.map(lambda share: 100 * share).text('z.0f')} %"


def setting(cells: Iterable[Cell]) -> str:
    """What is learnt, to which targets, in how many trials; without it no number means anything."""
    cells = list(cells)
    parts = ["; ".join(dict.fromkeys(map(_of, cells)))]
    periods = sorted({c.settings.period for c in cells})
    if not all(isinstance(c, Points) for c in cells):
        parts.append(f"C = {', '.join(map(str, periods))}")
    if any(c.result.get("notice") for c in cells):
        parts.append("NOT the original data")
    return " · ".join(parts)


def _of(cell: Cell) -> str:
    """A cell in the setting's words."""
    if isinstance(cell, Timed):
        return f"{cell.cut}, {cell.result['dim']:,} values"
    trials = len(cell.rows) * cell.settings.trials
    return f"{cell.cut}, to {cell.settings.target:g}, {trials} trial{'s' * (trials > 1)}"
