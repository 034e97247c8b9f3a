"""Deterministic simulation: a whole run of a consensus algorithm, drawn from one seed, and checked.

    python -m tests.simulation --seed=123

runs that seed alone and prints what was drawn. Graph, connecting edges, delays (ties and zeros
among them), network, policy, order of a step, local steps, backup workers, cuts and time limit all
follow from the seed.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import networkx as nx
import numpy as np

from cbdybw import topology
from cbdybw.algorithms import ALGORITHMS
from cbdybw.algorithms.epochs import Dtur, Epochs
from cbdybw.algorithms.pathsearch import Pathsearch
from cbdybw.algorithms.plan import Plan, State
from cbdybw.algorithms.static import LEAD
from cbdybw.clusters import delays
from cbdybw.clusters.network import Network
from cbdybw.clusters.trace import Event, decode
from cbdybw.clusters.virtual import VirtualCluster
from cbdybw.clusters.worker import Kind, Worker
from cbdybw.learning.quadratic import Quadratic
from tests.drawn import Cut, Saved, alone
from tests.invariants import (
    Average,
    check_agreement,
    check_averages,
    check_epochs,
    watch_gradients,
)

DIM = 4

ALGORITHM = ("cb_full", "cb_dybw", "cb_dybw", "cb_static", "cb_static", "dsgd_aau")

LAWS = (
    "none",
    "constant:mean=1",
    "exponential:mean=1",
    "shifted_exponential:base=0.5,mean=0.5",
    "pareto:scale=0.5,alpha=1.5",
    "lognormal:mean=1,sigma=1",
    "random_straggler:slowdown=6",
    "persistent:ranks=0,slowdown=6",
    "whole seconds",
)


@dataclass(frozen=True)
class Scenario:
    """All that a run depends on, beside the algorithm's code."""

    seed: int
    algorithm: str
    plan: Plan
    law: str
    network: dict[str, Any]

    @property
    def workers(self) -> int:
        return len(self.plan.neighbours)

    @property
    def waits_for_all(self) -> bool:
        """Whether nobody is ever left out."""
        static = self.algorithm == "cb_static" and self.plan.backup_workers == 0
        return static or self.algorithm == "cb_full"

    @property
    def candidates(self) -> Sequence[tuple[int, int]]:
        """The edges that visits number."""
        return self.plan.connecting if self.algorithm == "cb_dybw" else self.plan.edges

    @property
    def epochs(self) -> Epochs:
        """What the algorithm's visits come to, without any."""
        if self.algorithm == "cb_dybw":
            return Dtur(len(self.candidates), self.plan.edge_rule)
        return Pathsearch(self.candidates, self.workers, self.plan.edge_rule)

    @property
    def command(self) -> str:
        return f"python -m tests.simulation --seed={self.seed}"


def draw(seed: int) -> Scenario:
    """The scenario of a seed."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 10))
    graph = random_graph(rng, n)
    algorithm = str(rng.choice(ALGORITHM))
    least = min(degree for _, degree in graph.degree)
    plan = Plan(
        topology.neighbours(graph),
        _connecting(rng, graph),
        nx.diameter(graph),
        eta=lambda k: 0.3,
        iterations=int(rng.integers(1, 40)),
        policy=str(rng.choice(ALGORITHMS[algorithm].policies)),
        edge_rule=str(rng.choice(["one", "all"])),
        barrier=str(rng.choice(["global", "neighbours"])),
        max_time=float(rng.choice([math.inf] * 5 + [0.0, 2.0, 6.0])),
        checkpoint_every=int(rng.choice([0, 0, 1, 3, 7])),
        combine=str(rng.choice(["atc", "cta"])),
        local_steps=int(rng.choice([1, 1, 3])),
        backup_workers=int(rng.integers(least + 1)),
    )
    return Scenario(seed, algorithm, plan, str(rng.choice(LAWS)), random_network(rng, n))


def random_graph(rng: np.random.Generator, n: int) -> nx.Graph:
    """A random tree and some more edges."""
    graph = nx.empty_graph(n)
    graph.add_edges_from((j, int(rng.integers(j))) for j in range(1, n))
    density = rng.random()
    graph.add_edges_from((i, j) for j in range(n) for i in range(j) if rng.random() < density**2)
    return graph


def _connecting(rng: np.random.Generator, graph: nx.Graph) -> tuple[tuple[int, int], ...]:
    """The path or tree that the package would choose, or a random tree numbered at random."""
    if rng.random() < 0.3:
        return topology.connecting_edges(graph).edges
    for _, _, data in graph.edges(data=True):
        data["weight"] = rng.random()
    edges = [(min(e), max(e)) for e in nx.minimum_spanning_tree(graph).edges]
    return tuple(edges[n] for n in rng.permutation(len(edges)))


def random_network(rng: np.random.Generator, n: int) -> dict[str, Any]:
    if rng.random() < 0.25:
        return {}
    network = {
        "latency": float(rng.choice([0.0, 0.01, 0.5, 1.0])),  # 1: as long as many computations
        "bandwidth": float(rng.choice([math.inf, math.inf, 100.0, 1000.0])),  # bytes/s
        "jitter": float(rng.choice([0.0, 0.0, 0.02, 0.5])),
        "seed": int(rng.integers(2**31)),
    }
    if rng.random() < 0.4:
        network["links"] = {
            (i, j): (float(rng.choice([0.0, 0.3, 1.0, 3.0])), float(rng.choice([math.inf, 100.0])))
            for i, j in rng.integers(n, size=(2 * n, 2)).tolist()
        }
    return network


def delay_law(scenario: Scenario) -> Callable[[int, int], float]:
    """(rank, iteration) → seconds."""
    if scenario.law == "whole seconds":
        table = np.random.default_rng(scenario.seed).integers(4, size=(scenario.workers, 100))
        return lambda rank, index: float(table[rank, index])
    return delays.parse(scenario.law, scenario.workers, scenario.seed)


@dataclass
class Run(Saved):
    """A finished run, and everything its workers said."""

    averages: list[Average] = field(default_factory=list)
    skips: list[tuple[int, int]] = field(default_factory=list)  # (k, rank)
    resumed: list[tuple[int, int]] = field(default_factory=list)  # (k, rank)
    estimates: dict[tuple[int, int], np.ndarray] = field(default_factory=dict)  # as they came
    gradients: dict[tuple[int, int], np.ndarray] = field(default_factory=dict)  # the last by then
    sent: dict[tuple[int, int], np.ndarray] = field(default_factory=dict)  # UPDATE(k) of a rank
    closes: dict[tuple[int, int], tuple[int, ...]] = field(default_factory=dict)  # S_j(k)
    posted: dict[tuple[int, int], list] = field(default_factory=lambda: defaultdict(list))
    heard: dict[int, int] = field(default_factory=dict)  # rank → VISITED it got before its end
    _gradient: dict[int, np.ndarray] = field(default_factory=dict)

    def record(self, rank: int, time: float, event: str, fields: dict[str, Any]) -> None:
        k = fields["k"]
        if event == "resume":
            self.resumed.append((k, rank))
            return
        self.estimates[k, rank] = fields["w"]
        self.gradients[k, rank] = self._gradient.get(rank)  # None: all were abandoned
        if event == "skip":
            self.skips.append((k, rank))
        else:
            members = tuple(fields["active"])
            self.averages.append(Average(k, rank, members, fields["row"], fields["w"]))

    def listen(self, worker: Worker, state: State) -> None:
        """Write down what the worker begins with, computes and sends."""
        self.estimates[state.k - 1, worker.rank] = state.w
        self._gradient[worker.rank] = state.gradient
        watch_gradients(worker, partial(self._gradient.__setitem__, worker.rank))
        send, broadcast = worker.send, worker.broadcast

        def note(dest, message):
            if message.kind is Kind.UPDATE:
                self.sent[message.iteration, worker.rank] = message.vector
            elif message.kind is Kind.CLOSE:
                self.closes[message.iteration, worker.rank] = message.body
            self.posted[worker.rank, dest].append((int(message.kind), message.iteration))

        def noted_send(dest, message):
            note(dest, message)
            send(dest, message)

        def noted_broadcast(message):
            for dest in set(range(worker.size)) - {worker.rank}:
                note(dest, message)
            broadcast(message)

        worker.send, worker.broadcast = noted_send, noted_broadcast


def run(scenario: Scenario, cut: Cut | None = None) -> Run:
    """Run the scenario from its start, or from a cut of an earlier run."""
    result, n = Run(), scenario.workers
    cluster = VirtualCluster(
        n,
        delay=delay_law(scenario),
        network=Network(**scenario.network),
        seed=scenario.seed,
        trace=result.trace,
        recorder=result,
        saver=result,
    )
    problem = Quadratic(np.arange(n * DIM).reshape(n, DIM) % 7, 1.0, 0.5, scenario.seed)
    algorithm = ALGORITHMS[scenario.algorithm].run

    async def main(worker):
        first = State(0, problem.initial(worker.rng("init", 0)))
        state = cut.states[worker.rank] if cut else first
        result.listen(worker, state)
        state = await algorithm(worker, problem, scenario.plan, state)
        rank, kind, _, _ = decode(result.trace.events["code"])
        result.heard[worker.rank] = int(((rank == worker.rank) & (kind == Kind.VISITED)).sum())
        return state

    result.states = cluster.run(main, start=cut.time if cut else 0.0)
    return result


def check(scenario: Scenario, result: Run) -> None:
    """Assert everything that must hold in a run, at every iteration."""
    plan, n = scenario.plan, scenario.workers
    steps = {}
    if plan.combine == "cta":
        steps = {(a.k, a.j): plan.eta(a.k) * result.gradients[a.k, a.j] for a in result.averages}
    edges = check_averages(n, plan.neighbours, result.averages, result.sent, steps)
    _check_estimates(scenario, result)
    _check_ends(scenario, result)
    _check_links(result)
    if scenario.waits_for_all:
        assert not result.skips
        assert len(edges) == result.states[0].k * sum(map(len, plan.neighbours)) / 2
    elif scenario.algorithm == "cb_static":
        _check_backup_workers(scenario, result)
        _check_lead(scenario, result)
    else:
        logs = [result.states[rank].visits for rank in range(n)]
        complete = check_epochs(n, scenario.candidates, plan.edge_rule, edges, logs)
        _check_logs(scenario, result, logs, complete)


def _check_estimates(scenario: Scenario, result: Run) -> None:
    """What is sent, and what a straggler has afterwards, is a step from the estimate before."""
    plan, skips = scenario.plan, set(result.skips)
    for (k, rank), w in result.estimates.items():
        if (k - 1, rank) not in result.estimates:
            continue  # what the worker began with
        expected, g = result.estimates[k - 1, rank], result.gradients[k, rank]
        steps = plan.policy in ("late", "paper") if (k, rank) in skips else plan.combine == "atc"
        if steps:
            expected = expected - plan.eta(k) * g
        there = w if (k, rank) in skips else result.sent.get((k, rank), expected)
        assert there.tobytes() == expected.tobytes(), f"worker {rank}, iteration {k}"


def _check_ends(scenario: Scenario, result: Run) -> None:
    """Every worker has averaged or skipped each iteration once; where they agree on it, they end
    together."""
    plan = scenario.plan
    done = sorted([(a.k, a.j) for a in result.averages] + result.skips)
    ends = {rank: state.k for rank, state in result.states.items()}
    assert done == sorted((k, rank) for rank, end in ends.items() for k in range(end))
    by_themselves = scenario.algorithm == "cb_static" and not scenario.waits_for_all
    if plan.max_time == math.inf:
        assert set(ends.values()) == {plan.iterations}
    elif plan.checkpoint_every or scenario.waits_for_all or not (scenario.network or by_themselves):
        assert len(set(ends.values())) == 1
    everybody = [(k, rank) for k in result.cuts for rank in ends if k < ends[rank]]
    assert sorted(result.resumed) == sorted(everybody)


def _check_backup_workers(scenario: Scenario, result: Run) -> None:
    """At most b neighbours are left out, and those that had skipped the iteration or left."""
    skips = set(result.skips)
    for k, j, active, _, _ in result.averages:
        members = set(result.closes.get((k, j), ()))
        assert set(active) == {i for i in members if j in result.closes[k, i]}
        missing = set(scenario.plan.neighbours[j]) - members
        gone = all((k, i) in skips or result.states[i].k <= k for i in missing)
        assert gone or len(missing) <= scenario.plan.backup_workers, f"worker {j}, iteration {k}"


def _check_lead(scenario: Scenario, result: Run) -> None:
    """Nobody closes an iteration that a neighbour is more than LEAD iterations away from."""
    at = dict.fromkeys(result.states, 0)
    for k, j in result.closes:  # in the order in which they were said
        for i in scenario.plan.neighbours[j]:
            assert k - at[i] <= LEAD or at[i] == result.states[i].k, f"worker {j}, iteration {k}"
        at[j] = k + 1


def _check_links(result: Run) -> None:
    """What came in over a link is what was sent over it, in the same order."""
    delivered = defaultdict(list)
    for rank, kind, k, peer in zip(*decode(result.trace.events["code"]), strict=True):
        if kind < Event.COMPUTED:
            delivered[peer, rank].append((kind, k))
    for link, messages in delivered.items():
        assert result.posted[link][: len(messages)] == messages, f"link {link}"


def _check_logs(scenario: Scenario, result: Run, logs: list[np.ndarray], complete: int) -> None:
    """The logs of visits: they agree at cuts, and lack at the end only what was still under way."""
    for cut in result.cuts.values():
        check_agreement([cut.states[rank].visits for rank in range(scenario.workers)])
    low = [i for i, _ in scenario.candidates]
    for rank, log in enumerate(logs):
        own = sum(low[number] == rank for _, number in log.tolist())
        assert len(log) == own + result.heard[rank]
    every = sorted({tuple(visit) for log in logs for visit in log.tolist()})
    assert scenario.epochs.restore(every).epoch == complete


if __name__ == "__main__":
    alone(draw, run, check)
