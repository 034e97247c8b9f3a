"""Communication graphs, and the edges along which DTUR connects the workers.

Workers are the nodes 0 … N-1 of an undirected connected graph. DTUR (Xiong et al. 2021,
Algorithm 2) asks for "a shortest path that connects all nodes without loops": a Hamiltonian path.
Not every graph has one, so a spanning tree stands in for it; both have N-1 edges, the length of
an epoch.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable
from itertools import count, islice, pairwise
from pathlib import Path
from typing import NamedTuple

import networkx as nx
import numpy as np

from cbdybw import specs
from cbdybw.errors import BadInput
from cbdybw.specs import Choice, integer, number

DRAWS = 100  # of a random graph, before giving up on a connected one
STARTS = 4  # of the search for a Hamiltonian path
ROTATIONS = 30_000  # from each of them: a vain search takes 1 s for 10,000 workers


def build(spec: str, workers: int, seed: int) -> nx.Graph:
    """The connected graph over nodes 0 … workers-1 that `spec` describes (see `GRAPHS`).

    `seed` keys the random graphs: the same arguments always give the same graph. Raises BadInput
    for an unknown graph, a number of workers it does not exist for, or a graph in pieces.
    """
    if workers < 1:
        raise BadInput(f"--workers={workers}: a graph needs at least 1 worker")
    choice, values = specs.select(spec, "--graph", GRAPHS)
    drawn = choice.build(workers, seed, **values)
    graph = nx.empty_graph(workers)
    graph.add_edges_from(sorted(tuple(sorted(edge)) for edge in drawn.edges))
    unreached = set(graph) - nx.node_connected_component(graph, 0)
    if unreached:
        raise BadInput(
            f"--graph={spec}: not connected: worker {min(unreached)} cannot be reached "
            "from worker 0; add edges"
        )
    return graph


def neighbours(graph: nx.Graph) -> list[tuple[int, ...]]:
    """N_j for every worker j, ascending; j itself is not among them."""
    return [tuple(sorted(graph[j])) for j in range(len(graph))]


def colouring(workers: int, edges: Iterable[tuple[int, int]]) -> dict[int, int]:
    """Worker → colour 0, 1, …, such that neighbours have different ones. Deterministic.

    Greedy, each worker after one of its neighbours: a bipartite graph gets two colours.
    """
    graph = nx.empty_graph(workers)
    graph.add_edges_from(edges)
    return nx.greedy_color(graph, "connected_sequential_bfs")


def ring(workers: int, seed: int) -> nx.Graph:
    # networkx closes a ring of one node by a self-loop.
    return nx.cycle_graph(workers) if workers > 1 else nx.empty_graph(1)


def grid(workers: int, seed: int) -> nx.Graph:
    rows = _rows(workers)
    if rows == 1 < workers:
        below = [n for n in range(workers - 1, 3, -1) if _rows(n) > 1][:1]
        above = islice((n for n in count(workers + 1) if _rows(n) > 1), 2)
        *sizes, last = map(str, [*below, *above])
        raise BadInput(
            f"--graph=grid: {workers} workers make no grid; "
            f"use {', '.join(sizes)} or {last}, or --graph=ring"
        )
    return nx.convert_node_labels_to_integers(nx.grid_2d_graph(rows, workers // rows))


def _rows(workers: int) -> int:
    """Rows of the squarest grid; 1 when `workers` is prime."""
    return next(r for r in range(math.isqrt(workers), 0, -1) if workers % r == 0)


def hypercube(workers: int, seed: int) -> nx.Graph:
    dimension = workers.bit_length() - 1
    if workers != 2**dimension:
        raise BadInput(
            f"--graph=hypercube: {workers} is no power of 2; "
            f"use {2**dimension} or {2 ** (dimension + 1)} workers, or --graph=ring"
        )
    bits = [2**b for b in range(dimension)]
    return nx.Graph((i, i | bit) for i in range(workers) for bit in bits if not i & bit)


def erdos_renyi(workers: int, seed: int, p: float) -> nx.Graph:
    draws = random.Random(seed)
    return _connected(
        lambda: nx.fast_gnp_random_graph(workers, p, seed=draws),
        f"--graph=erdos_renyi:p={p:g}: {workers} workers",
        f"p well above ln(N)/N = {math.log(workers) / workers:.2g}",
    )


def random_regular(workers: int, seed: int, degree: int) -> nx.Graph:
    given = f"--graph=random_regular:degree={degree}: {workers} workers"
    if degree >= workers:
        raise BadInput(f"{given} have at most {workers - 1} neighbours each; use a smaller degree")
    if degree * workers % 2:
        raise BadInput(
            f"{given} of odd degree make no graph; use an even degree or {workers + 1} workers"
        )
    draws = random.Random(seed)
    return _connected(
        lambda: nx.random_regular_graph(degree, workers, seed=draws), given, "degree=3 or more"
    )


def _connected(draw: Callable[[], nx.Graph], given: str, instead: str) -> nx.Graph:
    """The first connected graph among `DRAWS` draws."""
    for _ in range(DRAWS):
        graph = draw()
        if nx.is_connected(graph):
            return graph
    raise BadInput(f"{given}: none of {DRAWS} draws is connected; use {instead}")


def from_file(workers: int, seed: int, path: str) -> nx.Graph:
    """Read an edge list: two workers a line; `#` begins a comment."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"--graph=file:{path}: cannot be read as text ({error})") from None
    graph = nx.empty_graph(workers)
    for at, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if words:
            i, j = _edge(words, workers, f"--graph=file:{path}: line {at}")
            if graph.has_edge(i, j):
                raise BadInput(
                    f"--graph=file:{path}: line {at} repeats the edge {i} {j}; name an edge once"
                )
            graph.add_edge(i, j)
    return graph


def _edge(words: list[str], workers: int, where: str) -> tuple[int, int]:
    if len(words) != 2 or not all(word.isdecimal() for word in words):
        raise BadInput(f"{where}: {' '.join(words)!r} is no edge; write two workers, such as 0 1")
    i, j = map(int, words)
    if max(i, j) >= workers:
        raise BadInput(f"{where}: there is no worker {max(i, j)}; use 0 … {workers - 1}")
    if i == j:
        raise BadInput(f"{where}: the edge {i} {j} is a self-loop; join two different workers")
    return i, j


GRAPHS = {
    "ring": Choice(ring, "each worker has the one before and the one after it"),
    "path": Choice(lambda workers, seed: nx.path_graph(workers), "a ring cut open"),
    "star": Choice(lambda workers, seed: nx.star_graph(workers - 1), "all are joined to worker 0"),
    "complete": Choice(lambda workers, seed: nx.complete_graph(workers), "all pairs are joined"),
    "grid": Choice(grid, "rows and columns, as square as the number of workers allows"),
    "hypercube": Choice(hypercube, "ranks that differ in one bit are joined; 2^m workers"),
    "erdos_renyi": Choice(
        erdos_renyi,
        "each pair is joined with probability p; drawn until connected",
        {"p": number(0, 1, above=True)},
    ),
    "random_regular": Choice(
        random_regular,
        "each worker has `degree` neighbours; drawn until connected",
        {"degree": integer(1)},
    ),
    "file": Choice(
        from_file, "an edge list: two workers a line, # for comments", {"path": specs.PATH}
    ),
}
"""All graphs by name; the builders take (workers, seed) and their keys."""


class Connection(NamedTuple):
    """The edges (low, high) that DTUR visits once in each epoch.

    `is_path`: they are a Hamiltonian path, in path order; otherwise a minimum spanning tree,
    ascending.
    """

    edges: tuple[tuple[int, int], ...]
    is_path: bool


def connecting_edges(graph: nx.Graph) -> Connection:
    """N-1 edges that connect all workers: a Hamiltonian path where one is found quickly.

    Deterministic. Whether a path exists is NP-complete, so a graph that has one may still get a
    tree; DTUR is correct on both.
    """
    path = _hamiltonian_path(neighbours(graph))
    if path is None:
        tree = nx.minimum_spanning_edges(graph, data=False)
        return Connection(tuple(sorted((min(e), max(e)) for e in tree)), is_path=False)
    return Connection(tuple((min(e), max(e)) for e in pairwise(path)), is_path=True)


def _hamiltonian_path(adjacent: list[tuple[int, ...]]) -> list[int] | None:
    """A path through all nodes, or None when a bounded search finds none."""
    degree = [len(nodes) for nodes in adjacent]
    if degree.count(1) > 2:
        return None
    draws = random.Random(0)
    for start in sorted(range(len(adjacent)), key=degree.__getitem__)[:STARTS]:
        path = _grow_path(adjacent, start, draws)
        if path is not None:
            return path
    return None


def _grow_path(
    adjacent: list[tuple[int, ...]], start: int, draws: random.Random
) -> list[int] | None:
    """Grow a path by Warnsdorff's rule, and turn its tail by Pósa's rotations where it is stuck.

    A rotation about a neighbour u of the tail reverses all that follows u on the path, which gives
    it another tail (Pósa 1976).
    """
    nodes = len(adjacent)
    unvisited = [len(around) for around in adjacent]  # neighbours that are not on the path
    path, length = np.empty(nodes, dtype=np.int64), 0
    visited = [False] * nodes
    rotations = 0
    new = start
    while True:
        path[length], visited[new] = new, True
        length += 1
        for u in adjacent[new]:
            unvisited[u] -= 1
        if length == nodes:
            return path.tolist()
        while not unvisited[path[length - 1]]:
            if rotations == min(ROTATIONS, 100 * nodes):
                return None
            rotations += 1
            turn = 0 if unvisited[path[0]] else _pivot(path[:length], adjacent, draws) + 1
            path[turn:length] = path[turn:length][::-1].copy()
        # The neighbour with the fewest ways on; a leaf last of all, for it ends the path for good.
        new = min(
            (u for u in adjacent[path[length - 1]] if not visited[u]),
            key=lambda u: (len(adjacent[u]) == 1, unvisited[u]),
        )


def _pivot(path: np.ndarray, adjacent: list[tuple[int, ...]], draws: random.Random) -> int:
    """Where on `path` a random neighbour of its tail stands; -1 (all turns) when there is none."""
    around = [u for u in adjacent[path[-1]] if u != path[-2]]
    return int(np.flatnonzero(path == draws.choice(around))[0]) if around else -1
