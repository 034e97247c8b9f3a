"""What an algorithm is given beside the problem, and what lasts of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from cbdybw.clusters.worker import Kind, Match, Message, Worker
from cbdybw.problem import Problem

UPDATE, THRESHOLD, CLOSE = Kind.UPDATE, Kind.THRESHOLD, Kind.CLOSE
VISITED, STOP = Kind.VISITED, Kind.STOP


@dataclass(frozen=True)
class Plan:
    """The settings of a consensus algorithm, the same on all workers.

    Attributes:
        neighbours: N_j of every worker j, ascending.
        connecting: DTUR's edges (i, j), i < j: a path or a spanning tree of the graph.
        diameter: of the graph; how many iterations news needs to reach everybody.
        eta: η(k), the learning rate of iteration k.
        iterations: K.
        policy: what a straggler does: carry, drop, late, or paper (spec: section 8).
        edge_rule: which of several new edges of one iteration count: one or all.
        barrier: cb-Full's: global or neighbours.
        max_time: seconds after which the workers agree to stop.
        checkpoint_every: iterations between two consistent cuts; 0: none.
    """

    neighbours: Sequence[tuple[int, ...]]
    connecting: Sequence[tuple[int, int]]
    diameter: int
    eta: Callable[[int], float]
    iterations: int
    policy: str = "carry"
    edge_rule: str = "one"
    barrier: str = "global"
    max_time: float = float("inf")
    checkpoint_every: int = 0

    def cut_before(self, k: int) -> bool:
        """Whether the workers save a consistent cut before iteration k."""
        every = self.checkpoint_every
        return every > 0 and 0 < k < self.iterations and k % every == 0

    def end_after(self, k: int) -> int:
        """The iteration before which cb-DyBW stops when the time is over in iteration k: the next
        cut, for all workers have to come to it, or the next iteration where there are none.
        """
        every = self.checkpoint_every
        return min((k // every + 1) * every, self.iterations) if every else k + 1

    @cached_property
    def connecting_edges(self) -> Sequence[dict[int, int]]:
        """For every worker j: neighbour i → number of the edge {i, j} in `connecting`."""
        numbers: list[dict[int, int]] = [{} for _ in self.neighbours]
        for n, (i, j) in enumerate(self.connecting):
            numbers[i][j] = numbers[j][i] = n
        return numbers


@dataclass
class State:
    """All that lasts of a worker between two iterations.

    Attributes:
        k: the next iteration.
        w: the estimate w_j(k-1).
        gradient: a finished gradient that has not entered an estimate yet (`carry`).
        visits: DTUR's log, shape (n, 2): (iteration, number of the connecting edge).
        stop: the iteration before which `max_time` makes this worker stop, once it knows.
    """

    k: int
    w: np.ndarray
    gradient: np.ndarray | None = None
    visits: np.ndarray = field(default_factory=lambda: np.empty((0, 2), np.int64))
    stop: int | None = None


class Algorithm(NamedTuple):
    """A row of the table of algorithms."""

    run: Callable[[Worker, Problem, Plan, State], Any]
    paper: str
    says: str


def message(kind: Kind, k: int, source: int | None = None) -> Match:
    """Matches messages of this kind and iteration (from `source`)."""

    def matches(m: Message) -> bool:
        return m.iteration == k and m.kind is kind and (source is None or m.source == source)

    return matches
