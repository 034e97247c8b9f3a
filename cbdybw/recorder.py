"""What the workers of one process tell during a run, added up as they tell it."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

import numpy as np

from cbdybw.looks import Looks

_OF_LOSSES = ("begin", "lost", "recovered")


class Recorder:
    """Counts, close times and copies of estimates, per iteration.

    Attributes:
        last_close: seconds at which the last rank of this process ended iteration k, shape (K,).
        finishers: workers that averaged in iteration k, or whose gradients a server took.
        active: Σ_j |active neighbours of j| in iteration k.
        used: gradients that entered an estimate in iteration k.
        resumed: k → seconds at which the workers went on after a consistent cut.
        copies: number of iterations done → rank → estimate; every `eval_every` and the last.
        looks: those at the clock, see `Looks`; None when there are none.
        recoveries: what was lost and made good; see `record`.
        busy: rank → seconds of computing and of waiting, once the run has ended.
    """

    def __init__(
        self,
        iterations: int,
        eval_every: int = 0,
        holders: int = 0,
        complete: Callable[[int, dict[int, np.ndarray]], None] | None = None,
        keep_edges: bool = False,
        looks: Looks | None = None,
    ):
        """`complete(n, estimates)` takes over the copies as soon as `holders` ranks (those that
        hold an estimate, or a shard of it) have given theirs."""
        # Items of an `array` are read and written faster than numpy's: one memory, two views.
        self._last_close = array("d", [-np.inf]) * iterations
        self._finishers, self._active, self._used = (array("q", [0]) * iterations for _ in range(3))
        self.last_close = np.asarray(self._last_close)
        self.finishers, self.active, self.used = (
            np.asarray(counts) for counts in (self._finishers, self._active, self._used)
        )
        self.resumed: dict[int, float] = {}
        self.copies: dict[int, dict[int, np.ndarray]] = {}
        self._eval_every, self._holders, self._complete = eval_every, holders, complete
        self._keep_edges, self._edges = keep_edges, array("q")
        self.looks = looks
        self.recoveries: list[dict[str, Any]] = []
        self._holding: set[int] = set()  # ranks of which there have been copies
        self.busy: dict[int, tuple[float, float]] = {}

    def record(self, rank: int, time: float, event: str, fields: dict[str, Any]) -> None:
        """Called by the cluster for each `Worker.record`."""
        k = fields["k"]
        if event == "resume":
            self.resumed[k] = max(time, self.resumed.get(k, -np.inf))
            return
        if event in _OF_LOSSES:
            self._record_loss(rank, time, event, fields)
            return
        if event == "average":
            gradients = fields.get("gradients", 1)
            self._finishers[k] += 1
            self._active[k] += len(fields["active"])
            if self._keep_edges:
                for i in fields["active"]:
                    if i < rank:
                        self._edges.extend((k, i, rank))
        elif event == "skip":
            gradients = fields["used"]
        else:  # a parameter server's: commit, or update, which ends an iteration
            gradients = fields["gradients"]
            self._finishers[k] += fields["finishers"] if event == "update" else gradients > 0
        self._used[k] += gradients
        if self.looks is not None:
            self.looks.tell(rank, time, fields["w"], gradients)
        if event in ("average", "update") and time > self._last_close[k]:
            self._last_close[k] = time
        if event != "commit" and self._eval_every and (k + 1) % self._eval_every == 0:
            self.copy(k + 1, rank, fields["w"])

    def _record_loss(self, rank: int, time: float, event: str, fields: dict[str, Any]) -> None:
        """begin: a server comes to iteration k. lost: a worker of the virtual cluster has died.
        recovered: the living go on from iteration k, having noticed a loss at that time."""
        if event == "lost" and not fields["replaced"]:
            self._holders -= rank in self._holding
        if event == "recovered":
            self.recoveries.append(
                {
                    "iteration": fields["k"],
                    "lost": fields["lost"],
                    "noticed_seconds": fields["noticed"],
                    "resumed_seconds": time,
                }
            )

    def copy(self, done: int, rank: int, w: np.ndarray) -> None:
        """Keep the estimate of `rank` after `done` iterations; a vector is never changed."""
        estimates = self.copies.setdefault(done, {})
        estimates[rank] = w
        self._holding.add(rank)
        if self._complete is not None and len(estimates) == self._holders:
            self._complete(done, self.copies.pop(done))

    @property
    def edges(self) -> np.ndarray:
        """Active edges (k, i, j), i < j, of all iterations, shape (n, 3), when they are kept."""
        return np.array(self._edges, np.int64).reshape(-1, 3)

    @edges.setter
    def edges(self, edges: np.ndarray) -> None:
        self._edges = array("q", edges.ravel().tolist())

    def merge(self, others: list[Recorder]) -> None:
        """Add what the other processes of the same run were told."""
        for other in others:
            np.maximum(self.last_close, other.last_close, out=self.last_close)
            for mine, theirs in (
                (self.finishers, other.finishers),
                (self.active, other.active),
                (self.used, other.used),
            ):
                mine += theirs
            self._edges.extend(other._edges)
            for k, time in other.resumed.items():
                self.resumed[k] = max(time, self.resumed.get(k, -np.inf))
            for done, estimates in other.copies.items():
                self.copies.setdefault(done, {}).update(estimates)
            if self.looks is not None:
                self.looks.merge(other.looks)
            self.recoveries += other.recoveries
            self.busy |= other.busy

    @property
    def iterations(self) -> int:
        """Iterations that at least one worker closed by averaging, or a server completed."""
        closed = np.flatnonzero(np.isfinite(self.last_close))
        return int(closed[-1]) + 1 if len(closed) else 0

    def paused(self, k: int) -> float:
        """Seconds before iteration k that consistent cuts took, outside any iteration."""
        return sum(time - self.last_close[cut - 1] for cut, time in self.resumed.items() if cut < k)

    def mean_iteration_seconds(self) -> float:
        """(last close of the last iteration - common start - time at cuts) / iterations."""
        n = self.iterations
        return (float(self.last_close[n - 1]) - self.paused(n)) / n if n else float("nan")
