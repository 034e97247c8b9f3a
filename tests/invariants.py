"""What must hold in every iteration of a consensus run, checked from what its workers recorded."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import networkx as nx
import numpy as np
from networkx.utils import UnionFind

from cbdybw import mixing
from cbdybw.clusters.worker import INTERRUPTED, Worker


class Average(NamedTuple):
    """Worker j averaged in iteration k: its active neighbours, its row of P, w_j(k)."""

    k: int
    j: int
    active: tuple[int, ...]
    row: Mapping[int, float]
    w: np.ndarray


def watch_gradients(worker: Worker, told: Callable[[np.ndarray], None]) -> None:
    """Have `told` called with every gradient that the worker finishes."""
    compute = worker.compute

    async def watched(*args, **keys):
        g = await compute(*args, **keys)
        if g is not INTERRUPTED:
            told(g)
        return g

    worker.compute = watched


def check_averages(
    workers: int,
    neighbours: Sequence[Sequence[int]],
    averages: Iterable[Average],
    sent: Mapping[tuple[int, int], np.ndarray],
    steps: Mapping[tuple[int, int], np.ndarray],
) -> set[tuple[int, int, int]]:
    """Assert the invariants of every executed P(k); the active edges (k, i, j), i < j.

    `sent[k, j]` is what worker j sent in k (without neighbours it sends nothing), `steps[k, j]`
    what it took off the average afterwards: η(k) g_j under cta, nothing under atc.
    """
    by_iteration: dict[int, dict[int, Average]] = defaultdict(dict)
    for average in averages:
        assert average.j not in by_iteration[average.k], "one average a worker and iteration"
        by_iteration[average.k][average.j] = average
    edges = set()
    for k, done in by_iteration.items():
        p = np.eye(workers)
        for j, average in done.items():
            assert set(average.active) <= set(neighbours[j])
            for i in average.active:
                assert j in done[i].active, f"iteration {k}: {j} has {i}, {i} has not {j}"
                edges.add((k, min(i, j), max(i, j)))
            p[j] = [average.row.get(i, 0.0) for i in range(workers)]
        assert mixing.violation(p) < 1e-12, f"P({k})"
        local = {j: sent[k, j] for j in done if neighbours[j]}
        if not local:
            continue
        before = np.array([local[j] for j in sorted(done)], np.float64)
        after = np.array([done[j].w + steps.get((k, j), 0) for j in sorted(done)], np.float64)
        rows = sorted(done)
        tolerance = 1e-6 * max(1e-30, np.abs(before).max())
        # Only vectors sent for k are averaged at k ...
        assert np.abs(p[np.ix_(rows, rows)] @ before - after).max() <= tolerance
        # ... and the mean is preserved.
        assert np.abs(before.mean(0) - after.mean(0)).max() <= tolerance
    return edges


def check_epochs(
    workers: int,
    candidates: Sequence[tuple[int, int]],
    rule: str,
    edges: set[tuple[int, int, int]],
    logs: Sequence[np.ndarray],
) -> int:
    """Assert that visits are true and that epochs connect; the number of complete epochs.

    `candidates` are the edges that visits number: DTUR's connecting edges, Pathsearch's edges of
    the graph. An edge of either is new in an epoch when it joins what the epoch has not joined yet.
    `logs[j]` is the log of worker j, (k, number of the edge), of a run that has ended or of a
    consistent cut. At the end workers may lack what was still under way when they finished; at a
    cut they agree: see `check_agreement`.
    """
    known = set().union(*(map(tuple, log.tolist()) for log in logs))
    for k, n in known:
        assert (k, *candidates[n]) in edges, f"edge {candidates[n]} was not active in {k}"

    joined, joins, begin, complete = UnionFind(range(workers)), 0, 0, 0
    for k in sorted({k for k, _ in known}):
        counted = 0
        for i, j in (candidates[n] for n in sorted(n for at, n in known if at == k)):
            if joined[i] != joined[j] and not (rule == "one" and counted):
                joined.union(i, j)
                counted += 1
        joins += counted
        if joins == workers - 1:
            union = nx.empty_graph(workers)
            union.add_edges_from((i, j) for at, i, j in edges if begin <= at <= k)
            assert nx.is_connected(union), f"epoch {complete}: iterations {begin} to {k}"
            joined, joins, begin, complete = UnionFind(range(workers)), 0, k + 1, complete + 1
    return complete


def check_agreement(logs: Sequence[np.ndarray]) -> None:
    """Assert that at a consistent cut all workers know the same visits."""
    for log in logs[1:]:
        assert np.array_equal(log, logs[0])
