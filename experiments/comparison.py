"""What the demo compares: one algorithm a cell, each measured on MPI and predicted virtually.

Everything is read back from run folders. The terminal's table and the report's are `table(cells)`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cbdybw import specs, theory
from cbdybw.storage import atomic, datasets
from cbdybw.storage.run_directory import RunDirectory
from experiments.settings import Settings, from_flagfile

NONE = "–"
"""In a table: there is no such number."""


@dataclass(frozen=True)
class Run:
    """A finished run, as its folder tells it."""

    folder: Path

    @cached_property
    def settings(self) -> Settings:
        return from_flagfile(RunDirectory(self.folder).read_flags("run"))

    @cached_property
    def manifest(self) -> dict[str, Any]:
        return atomic.read_json(self.folder / "manifest.json")

    @property
    def result(self) -> dict[str, Any]:
        """The JSON line that `experiments.train` prints."""
        return self.manifest["result"]

    @cached_property
    def metrics(self) -> list[dict[str, Any]]:
        return RunDirectory(self.folder).metrics()

    @cached_property
    def arrays(self) -> dict[str, np.ndarray]:
        """What result.npz holds: edges, visits, connecting, last_close, active …"""
        with np.load(self.folder / "result.npz") as file:
            return dict(file)

    @cached_property
    def data(self) -> dict[str, Any] | None:
        """The manifest of the data set; None where nothing is learnt from data."""
        folder = self.settings.data_dir
        return datasets.read_manifest(folder) if folder else None

    @property
    def batch_size(self) -> int:
        """As it was: the stand-in for MNIST has fewer samples than the flag asks for."""
        asked = self.settings.batch_size
        return min(asked, self.data["batch_size"]) if self.data and self.data["notice"] else asked

    @property
    def ends(self) -> np.ndarray:
        """When iterations 0 … K-1 had ended at all workers, seconds, shape (K,)."""
        return np.maximum.accumulate(self.arrays["last_close"])

    @property
    def durations(self) -> np.ndarray:
        """Seconds from one end to the next, shape (K,)."""
        return np.diff(self.ends, prepend=0.0)

    @property
    def backup_workers(self) -> np.ndarray:
        """b(k), the mean over workers of |N_j| - p_j(k), shape (K,); on a ring |N_j| = 2."""
        return 2 - self.arrays["active"] / self.settings.workers


@dataclass(frozen=True)
class Cell:
    """One algorithm: `measured` on MPI by the wall clock, `predicted` on the virtual clock."""

    title: str
    measured: Run
    predicted: Run

    @property
    def exact(self) -> float | None:
        """Exact mean iteration time, seconds; None where no theory gives it.

        On a ring with Exp(mean) times: E[max] = H_N·mean for the global barrier, the path's
        Markov chain (`cbdybw.theory`) for cb-DyBW with `carry`.
        """
        settings = self.predicted.settings
        law, keys = specs.parse(settings.delay, "--delay")
        if law != "exponential" or settings.graph != "ring" or settings.policy != "carry":
            return None
        mean = float(keys["mean"])
        if settings.algorithm == "cb_dybw":
            return mean * theory.dtur_exponential(settings.workers, settings.edge_rule).mean
        if settings.barrier == "global":
            return mean * float(theory.harmonic(settings.workers))
        return None


class Row(NamedTuple):
    """A line of the table: a cell's title and the quantity by clock, as text with its unit."""

    title: str
    measured: str
    predicted: str
    exact: str = NONE


class Section(NamedTuple):
    """A quantity, with a row for each cell."""

    quantity: str
    rows: list[Row]


COLUMNS = (
    ("measured", "MPI ranks,", "wall clock"),
    ("predicted", "virtual", "clock"),
    ("exact", "theory"),
)
"""Heads of the columns of numbers: what, and by which clock."""


def reduction(seconds: float, full: float) -> float:
    """By how much `seconds` is shorter than `full`, as a fraction."""
    return 1 - seconds / full


def table(cells: list[Cell]) -> list[Section]:
    """All that is compared; the first cell is what the others are compared with."""
    target = cells[0].measured.settings.target_loss
    return [
        Section("Mean iteration", [_iteration_row(cell) for cell in cells]),
        Section("Iteration shorter by", [_reduction_row(cell, cells[0]) for cell in cells[1:]]),
        _section(f"Time to loss {target:.2f}", cells, "time_to_target", _time),
        _section("Final test error", cells, "test_error", lambda x: f"{100 * x:.2f} %"),
        _section("Gradients used", cells, "gradients_used", lambda n: f"{n:,}"),
        _section("Backup workers", cells, "mean_backup_workers", lambda b: f"{b:.2f}"),
    ]


def _section(quantity: str, cells: list[Cell], key: str, text: Callable[[Any], str]) -> Section:
    return Section(
        quantity,
        [Row(c.title, text(c.measured.result[key]), text(c.predicted.result[key])) for c in cells],
    )


def _iteration_row(cell: Cell) -> Row:
    times = (_mean(cell.measured), _mean(cell.predicted), cell.exact)
    return Row(cell.title, *(NONE if t is None else f"{t:.4f} s" for t in times))


def _reduction_row(cell: Cell, full: Cell) -> Row:
    pairs = (
        (_mean(cell.measured), _mean(full.measured)),
        (_mean(cell.predicted), _mean(full.predicted)),
        (cell.exact, full.exact),
    )
    return Row(
        cell.title,
        *(NONE if None in pair else f"{100 * reduction(*pair):.1f} %" for pair in pairs),
    )


def _mean(run: Run) -> float:
    return run.result["mean_iteration_seconds"]


def _time(seconds: float | None) -> str:
    return "not reached" if seconds is None else f"{seconds:.2f} s"


LAWS = {"exponential": "Exp(mean {mean} s)"}


def setting(run: Run, short: bool = False) -> str:
    """Law, policy, clock and seed, without which no number means anything."""
    s = run.settings
    law, keys = specs.parse(s.delay, "--delay")
    delay = LAWS[law].format(**keys) if law in LAWS else s.delay
    clock = "wall clock" if s.cluster == "mpi" else "virtual clock"
    if short:
        stand_in = ", digits instead of MNIST" if run.manifest.get("notice") else ""
        return f"{delay}, {s.policy}, {clock}, seed {s.seed}{stand_in}"
    return (
        f"delays {delay} · policy {s.policy} · {s.clock} clock · {s.graph} of {s.workers} · "
        f"{s.workload} on {run.data['dataset'] if run.data else 'no data'} · batch "
        f"{run.batch_size} · η(k) = {s.eta0:g}·{s.eta_decay:g}^{s.eta_decay_every} · "
        f"{s.iterations} iterations · seed {s.seed}"
    )


def machine(run: Run) -> str:
    """Where it was measured."""
    about = run.manifest["machine"]
    return f"{about['cores']} cores of {about['processor']}"


def notes(cells: list[Cell]) -> list[str]:
    """What must stand under the table: the setting, the clocks, the machine, any stand-in data."""
    run = cells[-1].measured
    lines = [
        setting(run),
        "measured: wall seconds of MPI ranks; predicted: seconds of the virtual clock with the "
        "same draws; shorter: against cb-Full with the global barrier",
        f"measured on {machine(run)}; time to loss: without evaluation, to the first of the "
        f"evaluations, every {run.settings.eval_every} iterations",
    ]
    notice = run.manifest.get("notice")
    return [f"NOTE: {notice}", *lines] if notice else lines
