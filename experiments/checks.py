"""What a run of cb-DyBW must show, counted afresh from what the run recorded.

`Dtur` is not used: DTUR's log of visits is held against the edges that really took part in an
average. Mean times alone would look perfect even if new edges were never averaged.
"""

from __future__ import annotations

from typing import NamedTuple

import networkx as nx
import numpy as np

from experiments.comparison import Cell, reduction

WITHIN = 0.05  # of the exact reduction, as a fraction of cb-Full's iteration
LEAST_SHARE = 0.95  # of the iterations contain their new edge


class Check(NamedTuple):
    """A verdict and its numbers."""

    passed: bool
    says: str

    @property
    def mark(self) -> str:
        """✓ or ✗."""
        return "✓" if self.passed else "✗"


class Epochs(NamedTuple):
    """DTUR's log, counted: the complete epochs, and the new edge (i, j) of each iteration."""

    complete: list[range]
    new_edge: dict[int, tuple[int, int]]


def acceptance(full: Cell, dybw: Cell) -> list[Check]:
    """The three claims of the demo, on MPI."""
    run = dybw.measured
    visits, connecting = run.arrays["visits"], run.arrays["connecting"]
    edges, workers = run.arrays["edges"], run.settings.workers
    epochs = count_epochs(visits, connecting)
    return [
        exact_reduction(
            reduction(
                run.result["mean_iteration_seconds"], full.measured.result["mean_iteration_seconds"]
            ),
            reduction(dybw.exact, full.exact),
        ),
        new_edges(epochs, visits, connecting, edges, run.result["iterations"]),
        connected(epochs, edges, workers),
    ]


def exact_reduction(measured: float, exact: float) -> Check:
    """Iterations are shorter than cb-Full's by what theory says."""
    return Check(
        abs(measured - exact) <= WITHIN,
        f"an iteration is {100 * measured:.1f} % shorter than with the global barrier "
        f"(exact {100 * exact:.1f} %, ± {100 * WITHIN:.0f} points allowed)",
    )


def count_epochs(visits: np.ndarray, connecting: np.ndarray) -> Epochs:
    """Replay the log under the rule "one": the lowest unvisited edge of an iteration counts.

    Args:
        visits: (iteration, number of the connecting edge), shape (n, 2).
        connecting: the connecting edges, shape (N-1, 2).
    """
    every = set(range(len(connecting)))
    unvisited, begin, complete, new_edge = set(every), 0, [], {}
    for k in np.unique(visits[:, 0]).tolist():
        new = unvisited & set(visits[visits[:, 0] == k, 1].tolist())
        if not new:
            continue
        first = min(new)
        unvisited.remove(first)
        new_edge[k] = tuple(connecting[first].tolist())
        if not unvisited:
            complete.append(range(begin, k + 1))
            unvisited, begin = set(every), k + 1
    return Epochs(complete, new_edge)


def new_edges(
    epochs: Epochs, visits: np.ndarray, connecting: np.ndarray, edges: np.ndarray, iterations: int
) -> Check:
    """Iterations contain their new edge, and no visit names an edge that did not take part.

    `edges`: the active edges (iteration, i, j), i < j, shape (m, 3).
    """
    active = set(map(tuple, edges.tolist()))
    containing = sum((k, *edge) in active for k, edge in epochs.new_edge.items())
    untrue = sum((k, *connecting[n].tolist()) not in active for k, n in visits.tolist())
    share = containing / iterations
    says = (
        f"{containing} of {iterations} iterations ({100 * share:.1f} %) contain their new edge "
        f"(≥ {100 * LEAST_SHARE:.0f} % asked for)"
    )
    if untrue:
        says += f"; {untrue} visits name an edge that was not averaged"
    return Check(share >= LEAST_SHARE and not untrue, says)


def connected(epochs: Epochs, edges: np.ndarray, workers: int) -> Check:
    """The active edges of each complete epoch together connect all workers."""
    fine = sum(_connects(edges, epoch, workers) for epoch in epochs.complete)
    total = len(epochs.complete)
    return Check(fine == total > 0, f"{fine} of {total} epochs connect all {workers} workers")


def _connects(edges: np.ndarray, epoch: range, workers: int) -> bool:
    within = (edges[:, 0] >= epoch.start) & (edges[:, 0] < epoch.stop)
    union = nx.empty_graph(workers)
    union.add_edges_from(edges[within, 1:].tolist())
    return nx.is_connected(union)
