"""Result rows as figures and verdicts read them: settings in full, names in words."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from cbdybw import specs
from experiments import comparison, statistics
from experiments.settings import Settings
from experiments.statistics import Values

TITLES = {
    "cb_full": "cb-Full",
    "cb_dybw": "cb-DyBW",
    "cb_static": "cb-static",
    "dsgd_aau": "DSGD-AAU",
    "ad_psgd": "AD-PSGD",
    "allreduce": "AllReduce",
    "bsp": "BSP",
    "asp": "ASP",
    "ssp": "SSP",
    "ps_backup": "PS, fixed b",
    "dbw": "DBW",
    "adsp": "ADSP",
    "adsp_plus": "ADSP+",
    "adsp_plus_plus": "ADSP++",
    "adacomm": "ADACOMM",
    "fixed_adacomm": "Fixed ADACOMM",
    "cb_adsp": "cb-ADSP",
}
LAWS = comparison.LAWS | {
    "none": "no delay",
    "constant": "{mean} s always",
    "shifted_exponential": "{base} s + Exp(mean {mean} s)",
    "pareto": "Pareto(α={alpha}, from {scale} s)",
    "lognormal": "lognormal(mean {mean} s, σ={sigma})",
    "persistent": "rank {ranks} always {slowdown}× slower",
    "random_straggler": "a random rank {slowdown}× slower",
    "trace": "recorded times",
}
WORKLOAD = ("workers", "dataset", "workload", "partition", "graph", "delay", "batch_size")
"""What runs have in common that are compared with each other."""


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

    @cached_property
    def curve(self) -> dict[str, np.ndarray]:
        """Column → evaluations; nan where a number was not finite."""
        return {name: np.array(values, float) for name, values in self.row["curve"].items()}

    def value(self, name: str) -> float:
        """A number of the result; nan where it has none."""
        number = self.row["result"].get(name)
        return math.nan if number is None else float(number)

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


def title(settings: Settings) -> str:
    """The algorithm, with what sets it apart from its default form."""
    name = TITLES[settings.algorithm]
    if settings.algorithm == "cb_full" and settings.barrier == "neighbours":
        return f"{name}, neighbours"
    return f"{name} {settings.policy}" if settings.policy != "carry" else name


def law(delay: str) -> str:
    """A delay law in words."""
    name, keys = specs.parse(delay, "--delay")
    return LAWS[name].format_map({"slowdown": "", "ranks": "", **keys})


def model(settings: Settings) -> str:
    """What is learnt from what: `2NN, MNIST, shards:2`."""
    name = specs.parse(settings.workload, "--workload")[0]
    if name not in ("lrm", "2nn"):
        return settings.workload
    return f"{name.upper()}, {settings.dataset.upper()}, {settings.partition}"


def slug(*parts: object) -> str:
    """A file's name, such as learning-n6-mnist-lrm-iid."""
    return "-".join(str(part).replace(":", "").replace("_", "") for part in parts)


def setting(results: Sequence[Result]) -> str:
    """Law, graph, policy, clock, seeds: without them no number means anything."""
    runs = [r.settings for r in results]
    dybw = [s for s in runs if s.algorithm == "cb_dybw"] or runs
    seeds = sorted({r.seed for r in results})
    sizes = _listed(sorted(s.workers for s in runs))
    parts = [
        _listed(law(s.delay) for s in runs),
        f"{_listed(s.graph.partition(':')[0] for s in runs)} of {sizes}",
        f"policy {_listed(s.straggler_policy for s in dybw if s.clock == 'event') or 'none'}",
        f"{_listed(s.clock for s in dybw)} clock",
        _listed(map(_cluster, runs)),
        f"{'seed' if len(seeds) == 1 else 'seeds'} {_listed(seeds)}",
    ]
    if any(r.learns for r in results):
        learning = [r.settings for r in results if r.learns]
        parts.insert(0, _listed(model(s) for s in learning))
        parts.insert(1, f"batch {_listed(s.batch_size for s in learning)}")
    return " · ".join(parts)


def _cluster(s: Settings) -> str:
    if s.cluster == "mpi":
        return "MPI, wall clock"
    return f"virtual cluster, {s.network or 'instant'} network"


def _listed(items: Iterable[object]) -> str:
    return ", ".join(dict.fromkeys(map(str, items)))
