"""Result rows as figures and verdicts read them: settings in full, numbers as arrays, by cell."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from experiments import statistics
from experiments.rows import LOOKS
from experiments.settings import Settings
from experiments.statistics import Values
from experiments.words import TITLES, title

WORKLOAD = ("workers", "dataset", "workload", "partition", "graph", "delay", "batch_size")
"""What runs have in common that are compared with each other."""


class CheckPoint(NamedTuple):
    """A check point of adsp: seconds, the C_target that it ends, least and most c_i."""

    seconds: float
    target: float
    least: float
    most: float


class Probe(NamedTuple):
    """What a search tried (ΔC, τ, μ, the divisor of η'), its reward, nan where there was no fit,
    and the losses that it saw, by seconds."""

    rate: float
    tau: float
    momentum: float
    divisor: float
    reward: float
    seconds: tuple[float, ...]
    losses: tuple[float, ...]


@dataclass(frozen=True)
class Result:
    """A row (see `experiments.rows`) of a run that came to its end."""

    row: dict[str, Any]

    @cached_property
    def settings(self) -> Settings:
        return Settings(**self.row["flags"], seed=self.row["seed"])

    @property
    def cell(self) -> str:
        return self.row["cell"]

    @property
    def seed(self) -> int:
        return self.row["seed"]

    @property
    def learns(self) -> bool:
        """Whether there is a loss."""
        return not self.settings.workload.startswith("timing")

    @property
    def notice(self) -> str:
        """What has to be said of the data, such as that it is generated; empty where nothing."""
        return self.row["result"].get("notice") or ""

    @cached_property
    def curve(self) -> dict[str, np.ndarray]:
        """Column → evaluations; nan where a number was not finite."""
        return {name: np.array(values, float) for name, values in self.row["curve"].items()}

    @cached_property
    def looks(self) -> dict[str, np.ndarray]:
        """Column → looks at the clock: seconds, steps (gradients used), held_out_loss (nan where
        it was not finite); empty arrays where there were none."""
        columns = self.row.get("looks", {})
        return {name: np.array(columns.get(name, []), float) for name in LOOKS}

    def value(self, name: str) -> float:
        """A number of the result; nan where it has none."""
        number = self.row["result"].get(name)
        return math.nan if number is None else float(number)

    def of_workers(self, name: str) -> np.ndarray:
        """A number of the result that each worker has, shape (N,); empty where it is not kept."""
        return np.array(self.row["result"].get(name) or [], float)

    @property
    def computing(self) -> np.ndarray:
        """Seconds that each worker computed."""
        return self.of_workers("computing_seconds")

    @property
    def waiting(self) -> np.ndarray:
        """Seconds that each worker waited for messages, those on their way included."""
        return self.of_workers("waiting_seconds")

    @property
    def steps(self) -> np.ndarray:
        """Minibatches of each worker, for algorithms that go local steps."""
        return self.of_workers("steps")

    @property
    def commits(self) -> np.ndarray:
        """Commits of each worker, for algorithms that commit."""
        return self.of_workers("commits")

    @property
    def held_out_time(self) -> float:
        """Seconds to the first look that finds the held-out loss at the target; nan for never."""
        return self.value("held_out_time_to_target")

    @property
    def held_out_tenth(self) -> float:
        """Seconds to the tenth such look, as ADSP's authors count; nan where there are not ten."""
        return self.value("held_out_tenth_time")

    @property
    def search_seconds(self) -> float:
        """When a search before training was over; 0 where none was, nan where nobody commits."""
        return self.value("search_seconds")

    @property
    def check_points(self) -> list[CheckPoint]:
        """Of adsp, ascending; empty where none are kept."""
        return [CheckPoint(*row) for row in self.row["result"].get("check_points") or []]

    @property
    def probes(self) -> list[Probe]:
        """Of a search, in the order in which they were made."""
        rows = [np.array(row, float).tolist() for row in self.row["result"].get("probes") or []]
        return [Probe(*row[:5], tuple(row[5::2]), tuple(row[6::2])) for row in rows]

    @property
    def share_used(self) -> float:
        """Gradients used in an iteration, as a share of the N workers'."""
        return self.value("gradients_used") / self.value("iterations") / self.settings.workers

    def to_loss(self, target: float, axis: str) -> float:
        """Iterations or seconds (`axis`: a column of the curve) to a training loss."""
        return statistics.crossing(self.curve[axis], self.curve["train_loss"], target)

    def loss_at(self, seconds: float) -> float:
        """Training loss at a time on the cluster's clock."""
        return float(np.interp(seconds, self.curve["clock_seconds"], self.curve["train_loss"]))


def read(rows: Iterable[dict[str, Any]]) -> list[Result]:
    """The rows, but of runs that failed."""
    return [Result(row) for row in rows if row["status"] != "failed"]


def select(results: Iterable[Result], **wanted: object) -> list[Result]:
    """Those whose settings have the given values."""
    return [r for r in results if all(getattr(r.settings, name) == v for name, v in wanted.items())]


def split(results: Iterable[Result], *fields: str) -> dict[tuple, list[Result]]:
    """By the values of these settings, ascending."""
    parts: dict[tuple, list[Result]] = {}
    for r in results:
        parts.setdefault(tuple(getattr(r.settings, name) for name in fields), []).append(r)
    return dict(sorted(parts.items()))


def by_cell(results: Iterable[Result]) -> dict[str, list[Result]]:
    """Runs that differ in nothing but the seed, in the order of `TITLES`."""
    parts: dict[str, list[Result]] = {}
    for r in sorted(results, key=lambda r: (list(TITLES).index(r.settings.algorithm), r.cell)):
        parts.setdefault(r.cell, []).append(r)
    return parts


def by_title(results: Iterable[Result]) -> dict[str, list[Result]]:
    """By algorithm, with the policy where it is not the default."""
    parts: dict[str, list[Result]] = {}
    for r in results:
        parts.setdefault(title(r.settings), []).append(r)
    return dict(sorted(parts.items()))


def values(results: Iterable[Result], number: Callable[[Result], float]) -> Values:
    """Seed → number of the run."""
    return {r.seed: number(r) for r in results}
