"""DSGD-AAU: cb-DyBW along edges that are found on the way.

Source: Xiong et al., arXiv 2306.06559 (Pathsearch), the later version of cb-DyBW. Nothing is laid
down in advance: any edge that joins two parts of the graph which the epoch has not yet connected
ends an iteration, and the epoch ends when all workers are connected. Stragglers keep computing
(policy carry). Details beyond that idea are this project's [choice].
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from cbdybw.algorithms.dybw import average_by_threshold
from cbdybw.algorithms.epochs import Epochs
from cbdybw.algorithms.plan import Plan, State
from cbdybw.clusters.worker import Worker
from cbdybw.problem import Problem


async def dsgd_aau(worker: Worker, problem: Problem, plan: Plan, state: State) -> State:
    """Worker j = `worker.rank` from `state.k` on; returns its last state.

    Visits are numbered by `plan.edges`. On a tree this is cb_dybw with the tree's edges.
    """
    j = worker.rank
    epochs = Pathsearch(plan.edges, plan.workers, plan.edge_rule)
    edges = {i: bisect_left(plan.edges, (min(i, j), max(i, j))) for i in plan.neighbours[j]}
    return await average_by_threshold(worker, problem, plan, state, epochs, edges)


class Pathsearch(Epochs):
    """Epochs whose visited edges grow a spanning forest of the graph until it is one tree.

    An edge is new when its ends are in different trees. Two edges of one iteration may stand for
    each other, and whoever is told of one first does not report the other: the log may then hold
    either, but it joins the same trees.

    A union-find over the workers that this epoch has touched only, in one dictionary: there is one
    for each of ten thousand workers, and most epochs of a large graph never end.
    """

    def __init__(self, edges: Sequence[tuple[int, int]], workers: int, rule: str):
        self._ends, self._workers = edges, workers
        super().__init__(len(edges), rule)

    def unvisited(self, n: int) -> bool:
        i, j = self._ends[n]
        return self._root(i) != self._root(j)

    def _begin(self) -> None:
        self._parents: dict[int, int] = {}
        self._trees = self._workers

    def _add(self, n: int) -> bool:
        i, j = self._ends[n]
        self._parents[self._root(i)] = self._root(j)
        self._trees -= 1
        return self._trees == 1

    def _root(self, i: int) -> int:
        """The worker that stands for the tree of i; paths are halved on the way."""
        parents = self._parents
        while i in parents:
            above = parents[i]
            if above in parents:
                parents[i] = parents[above]
            i = above
        return i
