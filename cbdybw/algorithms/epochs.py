"""Which edges an epoch has visited: what DTUR and Pathsearch know, without any network.

Source: Xiong et al., arXiv 2102.06280, Algorithm 2.
"""

from __future__ import annotations

import bisect
from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterable
from typing import Self

import numpy as np


class Epochs(ABC):
    """Which edges this epoch has visited (𝒫'_m): a log of visits, and what they come to.

    It knows edges and iterations by their numbers. Every worker replays the same VISITED messages
    in the order of k, so all agree, however late a message comes in. An epoch ends when the visited
    edges connect all workers; the next begins with the next iteration. Rule "one" counts the
    smallest new edge of an iteration, "all" counts, in ascending order, each that is still new.

    Attributes:
        epoch: m, the number of epochs that are complete.
    """

    def __init__(self, edges: int, rule: str):
        self._edges, self._one = edges, rule == "one"
        self._log = array("q")  # k · edges + number of the edge, ascending: 8 bytes a visit
        self._starts = [0]  # where in the log each epoch begins
        self.epoch = 0
        self._complete = -1  # the last iteration in which no more edges count
        self._begin()

    @abstractmethod
    def unvisited(self, n: int) -> bool:
        """Whether edge number n is new in this epoch."""

    @abstractmethod
    def _begin(self) -> None:
        """No edge is visited."""

    @abstractmethod
    def _add(self, n: int) -> bool:
        """Edge n, a new one, is visited; whether that completes the epoch."""

    @property
    def log(self) -> np.ndarray:
        """All visits (k, edge number), ascending, shape (n, 2)."""
        return np.column_stack(np.divmod(np.array(self._log, np.int64), max(1, self._edges)))

    def visit(self, k: int, n: int) -> None:
        """Edge number n took part in iteration k."""
        log, entry = self._log, k * self._edges + n
        at = bisect.bisect_left(log, entry)
        if at == len(log):
            log.append(entry)
            self._count(at)
        elif log[at] != entry:
            log.insert(at, entry)
            self._recount(at)

    def restore(self, log: Iterable[tuple[int, int]]) -> Self:
        """Replay a saved log."""
        for k, n in log:
            self.visit(int(k), int(n))
        return self

    def _count(self, at: int) -> None:
        k, n = divmod(self._log[at], self._edges)
        if k <= self._complete or not self.unvisited(n):
            return
        connected = self._add(n)
        if self._one or connected:
            self._complete = k
        if connected:
            self._starts.append(at + 1)
            self.epoch += 1
            self._begin()

    def _recount(self, at: int) -> None:
        """A message came late: count again from the start of the epoch that it belongs to."""
        while self._starts[-1] > at:
            self._starts.pop()
            self.epoch -= 1
        first = self._starts[-1]
        self._complete = self._log[first - 1] // self._edges if first else -1
        self._begin()
        for later in range(first, len(self._log)):
            self._count(later)


class Dtur(Epochs):
    """The epochs of Algorithm 2: each visits every connecting edge once."""

    def unvisited(self, n: int) -> bool:
        return n not in self._visited

    def _begin(self) -> None:
        self._visited: set[int] = set()

    def _add(self, n: int) -> bool:
        self._visited.add(n)
        return len(self._visited) == self._edges
