"""Looks at a run at the clock: what the estimates were at times 0, Δ, 2Δ, …

Iterations of different algorithms take different times and use different numbers of gradients; at
equal times their estimates can be compared. A rank's estimate at time t is the last one that it had
told of by then, t included. Nobody is woken for a look: it is taken when the first event after it
is told, for until then nothing has changed.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np


class Looks:
    """Copies of the estimates of the ranks of one process.

    Args:
        every: Δ, seconds between two looks.
        holders: ranks, of all processes, that hold an estimate or a shard of it.
        loss: of the model that these estimates make; called as soon as all holders have given
            theirs, so that they need not be kept.

    Attributes:
        losses: n → loss.
        copies: n → rank → estimate, of looks that have no loss yet.
        steps: gradients that had entered an estimate by look n, as far as told here.
    """

    def __init__(
        self,
        every: float,
        holders: int,
        loss: Callable[[dict[int, np.ndarray]], float] | None = None,
    ):
        self.every, self._holders, self._loss = every, holders, loss
        self.losses: dict[int, float] = {}
        self.copies: dict[int, dict[int, np.ndarray]] = {}
        self.steps: list[int] = []
        self._used = 0
        self._held: dict[int, np.ndarray] = {}
        self._next: dict[int, int] = {}
        self._latest: tuple[dict[int, np.ndarray], float] = {}, math.nan

    def hold(self, rank: int, w: np.ndarray) -> None:
        """The estimate of `rank` at the start, or where a resumed run goes on."""
        self._held[rank] = w
        self._next.setdefault(rank, 0)

    def tell(self, rank: int, time: float, w: np.ndarray, gradients: int) -> None:
        """So many gradients have entered an estimate, and that of `rank` is `w` now."""
        self._count(time)
        self._used += gradients
        if rank in self._held:
            self._look(rank, time)
            self._held[rank] = w

    def finish(self, time: float) -> None:
        """The run has ended at this time: the looks up to it, itself included."""
        after = np.nextafter(time, np.inf)
        self._count(after)
        for rank in sorted(self._held):
            self._look(rank, after)

    def _count(self, time: float) -> None:
        """Looks before `time` come before what happens then."""
        while len(self.steps) * self.every < time:
            self.steps.append(self._used)

    def _look(self, rank: int, time: float) -> None:
        while (n := self._next[rank]) * self.every < time:
            self._next[rank] = n + 1
            estimates = self.copies.setdefault(n, {})
            estimates[rank] = self._held[rank]
            if self._loss is not None and len(estimates) == self._holders:
                self.losses[n] = self._known_loss(self.copies.pop(n), self._loss)

    def merge(self, other: Looks) -> None:
        """Add what another process of the same run was told; one of them may have ended sooner."""
        n = max(len(self.steps), len(other.steps))
        for looks in (self, other):
            looks.steps += [looks._used] * (n - len(looks.steps))
        self.steps = [mine + theirs for mine, theirs in zip(self.steps, other.steps, strict=True)]
        self._used += other._used
        for n, estimates in other.copies.items():
            self.copies.setdefault(n, {}).update(estimates)

    def evaluate(self, loss: Callable[[dict[int, np.ndarray]], float]) -> None:
        """The losses that are missing, of looks to which all holders have come."""
        for n in sorted(self.copies):
            if len(self.copies[n]) == self._holders:
                self.losses[n] = self._known_loss(self.copies.pop(n), loss)

    def _known_loss(
        self, estimates: dict[int, np.ndarray], loss: Callable[[dict[int, np.ndarray]], float]
    ) -> float:
        """Nothing has to be evaluated again where nothing has changed since the last look."""
        before, known = self._latest
        if before.keys() != estimates.keys() or any(before[r] is not estimates[r] for r in before):
            known = loss(estimates)
            self._latest = estimates, known
        return known

    def table(self) -> np.ndarray:
        """Seconds, gradients used and loss of the looks, ascending, shape (n, 3)."""
        rows = [(n * self.every, self.steps[n], loss) for n, loss in sorted(self.losses.items())]
        return np.array(rows, float).reshape(-1, 3)

    def to_arrays(self) -> dict[str, np.ndarray]:
        """What lasts at a consistent cut, beside the estimates that the ranks hold then."""
        arrays = {
            "looks/steps": np.array(self.steps, np.int64),
            "looks/used": np.array(self._used),
            "looks/losses": np.array(sorted(self.losses.items()), float).reshape(-1, 2),
            "looks/next": np.array(sorted(self._next.items()), np.int64).reshape(-1, 2),
        }
        for n, estimates in self.copies.items():
            arrays |= {f"look/{n}/{rank}": w for rank, w in estimates.items()}
        return arrays

    def from_arrays(self, arrays: dict[str, np.ndarray]) -> None:
        """Go back to a cut."""
        self.steps, self._used = arrays["looks/steps"].tolist(), int(arrays["looks/used"])
        self._next = dict(arrays["looks/next"].tolist())
        self.losses = {int(n): loss for n, loss in arrays["looks/losses"].tolist()}
        for key, w in arrays.items():
            if key.startswith("look/"):
                _, n, rank = key.split("/")
                self.copies.setdefault(int(n), {})[int(rank)] = w
