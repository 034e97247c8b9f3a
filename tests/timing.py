"""Runs of an algorithm on the virtual cluster of which only the times matter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import networkx as nx
import numpy as np

from cbdybw import topology
from cbdybw.algorithms import ALGORITHMS
from cbdybw.algorithms.plan import Plan, State, shards
from cbdybw.clusters import delays
from cbdybw.clusters.delays import DelayLaw
from cbdybw.clusters.network import Network
from cbdybw.clusters.trace import Trace
from cbdybw.clusters.virtual import VirtualCluster
from cbdybw.clusters.worker import Worker, keyed_rng
from cbdybw.problem import Problem, Timing
from cbdybw.recorder import Recorder


class Timed(NamedTuple):
    """What a run leaves behind."""

    recorder: Recorder
    states: dict[int, State]
    plan: Plan

    @property
    def mean(self) -> float:
        """Mean iteration time."""
        return self.recorder.mean_iteration_seconds()

    @property
    def active(self) -> float:
        """Mean fraction of workers that have finished at θ(k)."""
        return float(self.recorder.finishers.mean()) / len(self.plan.neighbours)

    @property
    def used(self) -> float:
        """Mean fraction of workers whose gradient enters an iteration."""
        return float(self.recorder.used.mean()) / len(self.plan.neighbours)


def run(
    algorithm: str,
    graph: nx.Graph,
    delay: DelayLaw | str,
    iterations: int,
    *,
    network: Network | None = None,
    problem: Problem | None = None,
    recorder: Recorder | None = None,
    eta: float = 0.1,
    seed: int = 0,
    servers: int = 0,
    meet: Callable[[Worker], Any] = lambda worker: None,
    **plan: Any,
) -> Timed:
    """Run it from iteration 0; `delay` may be a flag's text, `meet` is shown every worker."""
    n = len(graph)
    problem, recorder = problem or Timing(), recorder or Recorder(iterations, holders=servers or n)
    settings = Plan(
        topology.neighbours(graph),
        topology.connecting_edges(graph).edges,
        nx.diameter(graph),
        lambda k: eta,
        iterations,
        **plan,
    )
    cluster = VirtualCluster(
        n + servers,
        delay=delays.parse(delay, n, seed) if isinstance(delay, str) else delay,
        network=network or Network(),
        seed=seed,
        trace=Trace(),
        recorder=recorder,
        servers=servers,
    )
    first = problem.initial(keyed_rng(seed, "init", 0, 0))
    estimates = [first] * n + shards(first, servers)

    def main(worker):
        meet(worker)
        return ALGORITHMS[algorithm].run(
            worker, problem, settings, State(0, estimates[worker.rank])
        )

    return Timed(recorder, cluster.run(main), settings)


class Watched:
    """A problem that notes which gradients worker 2 takes: (iteration of the minibatch, w)."""

    dim = 1

    def __init__(self):
        self.taken = []

    def initial(self, rng):
        return np.zeros(1, np.float32)

    def batch(self, rank, index):
        return rank, index

    def gradient(self, w, batch):
        rank, index = batch
        if rank == 2:
            self.taken.append((index, float(w[0])))
        return np.full(1, 0.0 if rank < 2 else -12.0, np.float32)
