"""What an algorithm is given beside the problem, and what lasts of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import networkx as nx
import numpy as np

from cbdybw import topology
from cbdybw.clusters.worker import Kind, Match, Message, Worker
from cbdybw.errors import FallenApart
from cbdybw.problem import Problem, Weightless

if TYPE_CHECKING:
    from cbdybw.scar.checkpoint import Store
    from cbdybw.scar.tuning import Expected

UPDATE, THRESHOLD, CLOSE = Kind.UPDATE, Kind.THRESHOLD, Kind.CLOSE
VISITED, STOP = Kind.VISITED, Kind.STOP


POLICIES = ("carry", "drop", "late", "paper")


@dataclass(frozen=True)
class Pace:
    """How often workers commit, and how that is found: ADSP, ADACOMM and their kin.

    Attributes:
        rate: ΔC, commits of a worker in a check period; 0: searched for.
        period: Γ, seconds between two check points.
        window: seconds of a probe.
        epoch: seconds after which the commit rate is searched for anew.
        shortest: seconds between two commits at least, where the timer restarts.
        restarts: whether a worker's timer starts again at each commit, or has due times.
        points: losses that a probe looks at, its first and last one among them.
        eta: the server's learning rate η; 0: 1/M.
        momentum: of the server.
        tau: τ of Fixed ADACOMM, local steps in an iteration.
        batch_size: b, samples of a minibatch, where workers have b_i of their own; 0: they do not.
    """

    rate: int = 0
    period: float = 60.0
    window: float = 60.0
    epoch: float = 1000.0
    shortest: float = 10.0
    restarts: bool = False
    points: int = 17
    eta: float = 0.0
    momentum: float = 0.0
    tau: int = 40
    batch_size: int = 0


RECOVERIES = ("none", "without", "neighbour", "partial", "full")


@dataclass(frozen=True)
class Survival:
    """What is done when a rank is lost, and what is saved for that case.

    Attributes:
        recovery: none: the run ends. without: the living go on. The others give what was lost a
            new start: neighbour: a worker's estimate from the average of its living neighbours',
            partial: lost blocks from the running checkpoint, full: all blocks from it.
        fraction: r, the share of the blocks that is saved each time.
        period: C, the iterations in which as much is saved as there is.
        policy: which blocks are saved (`scar.checkpoint.POLICIES`).
        store: rank → where its running checkpoint is kept; for all ranks to read.
        seed: of what is dealt out at random.
        expected: failures and costs by which servers choose r and C themselves; None: they stay.
    """

    recovery: str = "none"
    fraction: float = 1.0
    period: int = 8
    policy: str = "full"
    store: Callable[[int], Store] | None = None
    seed: int = 0
    expected: Expected | None = None

    @property
    def replaces(self) -> bool:
        """Whether a worker that is lost is replaced by a new one, in the consensus family."""
        return self.recovery in ("neighbour", "partial", "full")

    @property
    def saves(self) -> bool:
        """Whether there is a running checkpoint."""
        return self.recovery in ("partial", "full")


@dataclass(frozen=True)
class Plan:
    """The settings of an algorithm, the same on all ranks; each algorithm reads those it knows.

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
        combine: atc: adapt, then combine; cta: combine, then adapt.
        local_steps: m, minibatches of a worker in one iteration.
        backup_workers: b, how many are not waited for (cb_static, ps_backup).
        staleness: s, how many steps a worker may be ahead of the slowest (ssp).
        pace: how often workers commit.
        survival: what is done when a rank is lost.
        living: the workers of the graph; None: all of them.
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
    combine: str = "atc"
    local_steps: int = 1
    backup_workers: int = 0
    staleness: int = 0
    pace: Pace = Pace()
    survival: Survival = Survival()
    living: tuple[int, ...] | None = None

    @property
    def members(self) -> Sequence[int]:
        """The workers that take part, ascending."""
        return range(self.workers) if self.living is None else self.living

    def among(self, living: Sequence[int]) -> Plan:
        """The plan of these workers alone, with the edges between them and a connecting path, or
        tree, of their own. Raises FallenApart where they are not connected."""
        graph = nx.Graph(self.edges).subgraph(living)
        if len(living) > 1 and not (len(graph) == len(living) and nx.is_connected(graph)):
            those = ", ".join(map(str, living))
            raise FallenApart(f"no path connects the living workers {those}")
        around = [tuple(sorted(graph.adj.get(j, ()))) for j in range(self.workers)]
        places = nx.empty_graph(len(living))  # connecting_edges numbers workers from 0
        number = {j: n for n, j in enumerate(living)}
        places.add_edges_from((number[i], number[j]) for i, j in graph.edges)
        edges = topology.connecting_edges(places).edges if len(living) > 1 else ()
        connecting = tuple((living[i], living[j]) for i, j in edges)
        return replace(self, neighbours=around, connecting=connecting, living=tuple(living))

    @property
    def workers(self) -> int:
        """N, without parameter servers."""
        return len(self.neighbours)

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
    def edges(self) -> Sequence[tuple[int, int]]:
        """All edges (i, j) of the graph, i < j, ascending."""
        return [(i, j) for i, around in enumerate(self.neighbours) for j in around if i < j]

    @cached_property
    def connecting_edges(self) -> Sequence[dict[int, int]]:
        """For every worker j: neighbour i → number of the edge {i, j} in `connecting`."""
        numbers: list[dict[int, int]] = [{} for _ in self.neighbours]
        for n, (i, j) in enumerate(self.connecting):
            numbers[i][j] = numbers[j][i] = n
        return numbers

    @cached_property
    def asked(self) -> Sequence[tuple[int, ...]]:
        """For every worker j its neighbours of a higher colour, which AD-PSGD lets it ask."""
        colour = topology.colouring(self.workers, self.edges)
        return [
            tuple(i for i in around if colour[i] > colour[j])
            for j, around in enumerate(self.neighbours)
        ]


@dataclass
class State:
    """All that lasts of a rank between two iterations.

    Attributes:
        k: the next iteration.
        w: the estimate w_j(k-1); of a parameter server its shard.
        gradient: a finished gradient that has not entered an estimate yet.
        visits: the log of visits, shape (n, 2): (iteration, number of the edge), of the connecting
            edges for cb_dybw, of all edges for dsgd_aau.
        stop: the iteration before which `max_time` makes this worker stop, once it knows.
        memory: what else an algorithm has to remember, by name.
    """

    k: int
    w: np.ndarray
    gradient: np.ndarray | None = None
    visits: np.ndarray = field(default_factory=lambda: np.empty((0, 2), np.int64))
    stop: int | None = None
    memory: dict[str, np.ndarray] = field(default_factory=dict)

    def advance(self, k: int, w: np.ndarray, gradient: np.ndarray | None = None) -> None:
        """What lasts from here on, should a loss end the present call of the algorithm."""
        self.k, self.w, self.gradient = k, w, gradient


class Algorithm(NamedTuple):
    """A row of the table of algorithms.

    `family`: who meets whom: consensus (with neighbours, through a mixing matrix), gossip (with one
    neighbour), allreduce (with all workers), server (with parameter servers, further ranks).
    `policies`: what it can let a straggler do; where nobody is left out all mean the same.
    `omits`: of what the number of backup workers is counted: "neighbours", "workers" or "".
    `searches`: whether a scheduler looks at the whole model, so that there is one server only.
    `recoveries`: what can be done when a rank is lost (see `Survival`).
    `root_holds`: whether the first worker has the whole model, and nobody else is asked for it.
    """

    run: Callable[[Worker, Problem, Plan, State], Any]
    paper: str
    says: str
    family: str = "consensus"
    policies: tuple[str, ...] = POLICIES
    omits: str = "neighbours"
    searches: bool = False
    recoveries: tuple[str, ...] = ("none",)
    root_holds: bool = False


def shards(w: np.ndarray, servers: int) -> list[np.ndarray]:
    """The parts of `w` that the parameter servers hold, in rank order: consecutive, of sizes that
    differ by one at most. A timing-only `w` has no parts: each server has an equal share."""
    if isinstance(w, np.ndarray):
        return np.array_split(w, servers) if servers else []
    return [Weightless(w.nbytes // servers) for _ in range(servers)]


def message(kind: Kind, k: int, source: int | None = None) -> Match:
    """Matches messages of this kind and iteration (from `source`)."""

    def matches(m: Message) -> bool:
        return m.iteration == k and m.kind is kind and (source is None or m.source == source)

    return matches
