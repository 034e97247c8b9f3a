"""Mixing matrices: Metropolis weights, the average they define, and checks.

Source: cb-DyBW, Algorithm 1 and assumption A1 (the Metropolis rule).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import networkx as nx
import numpy as np

_BLOCK = 1 << 17
"""Values averaged at a time, so that what is added up stays in cache."""


def metropolis(j: int, size: int, sizes: Mapping[int, int]) -> dict[int, float]:
    """Row j of P in rank order: P_ij = 1 / (1 + max(p_i, p_j)) for active i, P_jj is the rest.

    `size` is p_j, `sizes` maps each active neighbour i to p_i. The matrix of all rows is
    symmetric and doubly stochastic iff membership is symmetric (i active for j iff j for i).
    """
    row = {i: 1.0 / (1 + max(size, p)) for i, p in sizes.items()}
    row[j] = 1.0 - sum(row.values())
    return {i: row[i] for i in sorted(row)}


def descend(w: np.ndarray, eta: float, g: np.ndarray) -> np.ndarray:
    """w̃ = w - η g, as a new vector.

    Written as a sum because numpy reuses the memory of a product for a sum with it only: vectors
    that are in cache are worth more than the arithmetic.
    """
    return w + -eta * g


def combine(row: Mapping[int, float], vectors: Mapping[int, np.ndarray]) -> np.ndarray:
    """Σ_i P_ij w̃_i over the ranks of `row`, summed in its order, as a new vector."""
    first, *others = row
    if not isinstance(vectors[first], np.ndarray):  # Weightless
        return vectors[first]
    mean = np.empty_like(vectors[first])
    term = np.empty(min(_BLOCK, len(mean)), mean.dtype)
    for start in range(0, len(mean), _BLOCK):
        block = slice(start, start + _BLOCK)
        part = np.multiply(vectors[first][block], row[first], out=mean[block])
        for i in others:
            part += np.multiply(vectors[i][block], row[i], out=term[: len(part)])
    return mean


def full_matrix(graph: nx.Graph) -> np.ndarray:
    """P when every neighbour is active (cb-Full), shape (N, N)."""
    n = graph.number_of_nodes()
    return matrix(n, [tuple(graph[j]) for j in range(n)])


def matrix(
    n: int, active: Sequence[Sequence[int]], sizes: Sequence[int] | None = None
) -> np.ndarray:
    """P from each worker's active neighbours; `sizes` are the announced |S_j| where they differ
    from the number of active ones. Shape (n, n), float64."""
    sizes = sizes if sizes is not None else [len(s) for s in active]
    p = np.zeros((n, n))
    for j, members in enumerate(active):
        for i, weight in metropolis(j, sizes[j], {i: sizes[i] for i in members}).items():
            p[j, i] = weight
    return p


def violation(p: np.ndarray) -> float:
    """How far P is from symmetric, doubly stochastic and non-negative (0: not at all)."""
    return max(
        float(np.abs(p - p.T).max()),
        float(np.abs(p.sum(0) - 1).max()),
        float(np.abs(p.sum(1) - 1).max()),
        float(-min(p.min(), 0.0)),
    )


def second_eigenvalue(p: np.ndarray) -> float:
    """|λ₂| of a symmetric P: the factor by which one averaging shrinks disagreement."""
    return float(np.sort(np.abs(np.linalg.eigvalsh(p)))[-2])
