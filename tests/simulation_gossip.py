"""Deterministic simulation: a whole run of AD-PSGD, drawn from one seed, and checked.

    python -m tests.simulation_gossip --seed=123

runs that seed alone and prints what was drawn.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cbdybw import topology
from cbdybw.algorithms import ALGORITHMS
from cbdybw.algorithms.plan import Plan, State
from cbdybw.clusters.network import Network
from cbdybw.clusters.virtual import VirtualCluster
from cbdybw.clusters.worker import INTERRUPTED, Kind
from cbdybw.learning.quadratic import Quadratic
from tests import simulation
from tests.drawn import Cut, Saved, alone

DIM = 4
ETA = 0.3


@dataclass(frozen=True)
class Scenario:
    """All that a run depends on, beside the algorithm's code."""

    seed: int
    plan: Plan
    law: str
    network: dict[str, Any]

    @property
    def workers(self) -> int:
        return self.plan.workers

    @property
    def command(self) -> str:
        return f"python -m tests.simulation_gossip --seed={self.seed}"

    @property
    def instant(self) -> bool:
        """Whether everybody knows of everything at once."""
        return Network(**self.network).instant


def draw(seed: int) -> Scenario:
    """The scenario of a seed."""
    rng = np.random.default_rng((seed, 1))
    n = int(rng.integers(2, 10))
    plan = Plan(
        topology.neighbours(simulation.random_graph(rng, n)),
        connecting=(),
        diameter=0,
        eta=lambda k: ETA,
        iterations=int(rng.integers(1, 40)),
        max_time=float(rng.choice([math.inf] * 5 + [0.5, 2.0, 6.0])),
        checkpoint_every=int(rng.choice([0, 1, 3, 7])),
        local_steps=int(rng.choice([1, 1, 2])),
    )
    return Scenario(seed, plan, str(rng.choice(simulation.LAWS)), simulation.random_network(rng, n))


def delay_law(scenario: Scenario) -> Callable[[int, int], float]:
    """(rank, own step) → seconds. A fast worker makes many steps: their times come again."""
    law = simulation.delay_law(scenario)
    return lambda rank, index: law(rank, index % 100)


def problem_of(scenario: Scenario) -> Quadratic:
    n = scenario.workers
    return Quadratic(np.arange(n * DIM).reshape(n, DIM) % 7, 1.0, 0.5, scenario.seed)


@dataclass
class Observer:
    """A model of the estimates as the paper has them, moved by what the workers send.

    An exchange happens as a whole when it is answered. Whatever a worker shows of its estimate must
    then be the model's, bit for bit.
    """

    scenario: Scenario
    w: dict[int, np.ndarray] = field(default_factory=dict)
    gradient: dict[int, np.ndarray] = field(default_factory=dict)  # finished and not used
    asks: dict[int, tuple[int, int]] = field(default_factory=dict)  # whom, its number
    used: Counter = field(default_factory=Counter)
    exchanges: int = 0

    def sees(self, rank: int, w: np.ndarray) -> None:
        assert w.tobytes() == self.w[rank].tobytes(), f"worker {rank}"

    def watch(self, worker) -> None:
        """Have the worker tell what it sends and computes."""
        send, compute = worker.send, worker.compute

        def noted_send(dest, message):
            self.sent(worker.rank, dest, message)
            send(dest, message)

        async def noted_compute(fn, *args, **kwargs):
            self.sees(worker.rank, next(a for a in args if isinstance(a, np.ndarray)))
            assert worker.rank not in self.asks, "it computes while it waits for an answer"
            g = await compute(fn, *args, **kwargs)
            if g is not INTERRUPTED:
                self.gradient[worker.rank] = g
            return g

        worker.send, worker.compute = noted_send, noted_compute

    def sent(self, rank: int, dest: int, message) -> None:
        if dest == rank:
            return
        first_told = 0 if rank else 1
        if message.kind is Kind.ASK:
            self.sees(rank, message.vector)
            assert dest in self.scenario.plan.neighbours[rank]
            assert rank not in self.asks
            self.asks[rank] = dest, message.iteration
        elif message.kind is Kind.ANSWER:
            assert rank not in self.asks, "it answers while it waits for an answer"
            assert self.asks.pop(dest) == (rank, message.iteration)
            mean = (self.w[rank] + self.w[dest]) / np.float32(2)
            self.w[rank] = self.w[dest] = mean
            self.sees(rank, message.vector)
            self.exchanges += 1
        elif message.kind is Kind.STEP and dest == first_told:
            assert rank not in self.asks
            self.w[rank] = self.w[rank] - ETA * self.gradient.pop(rank)
            self.used[rank] += 1
            assert message.iteration == self.used[rank]


@dataclass
class Run(Saved):
    """A finished run, and everything its workers said."""

    observer: Observer = field(kw_only=True)
    averages: list[tuple[float, int, int, tuple, int]] = field(default_factory=list)
    resumed: list[tuple[int, int]] = field(default_factory=list)

    def record(self, rank: int, time: float, event: str, fields: dict[str, Any]) -> None:
        k = fields["k"]
        if event == "resume":
            self.resumed.append((k, rank))
            return
        self.averages.append((time, k, rank, fields["active"], fields["gradients"]))

    def save(self, rank: int, state: State) -> None:
        super().save(rank, state)
        self.observer.sees(rank, state.w)
        assert (state.gradient is None) == (rank not in self.observer.gradient)

    def commit(self, cluster: VirtualCluster) -> None:
        assert not self.observer.asks, "an exchange is under way at a cut"
        super().commit(cluster)


def run(scenario: Scenario, cut: Cut | None = None) -> Run:
    """Run the scenario from its start, or from a cut of an earlier run."""
    result = Run(observer=Observer(scenario))
    cluster = VirtualCluster(
        scenario.workers,
        delay=delay_law(scenario),
        network=Network(**scenario.network),
        seed=scenario.seed,
        trace=result.trace,
        recorder=result,
        saver=result,
    )
    problem, observer = problem_of(scenario), result.observer

    def main(worker):
        rank = worker.rank
        state = State(0, problem.initial(worker.rng("init", 0)))
        if cut:
            state = cut.states[rank]
            observer.used[rank] = int(state.memory["steps"])
            if state.gradient is not None:
                observer.gradient[rank] = state.gradient
        observer.w[rank] = state.w
        observer.watch(worker)
        return ALGORITHMS["ad_psgd"].run(worker, problem, scenario.plan, state)

    result.states = cluster.run(main, start=cut.time if cut else 0.0)
    return result


def check(scenario: Scenario, result: Run) -> None:
    """Assert everything that must hold in a run."""
    n, states, observer = scenario.workers, result.states, result.observer
    for rank, state in states.items():
        observer.sees(rank, state.w)
        assert state.memory["steps"] == observer.used[rank]
        assert state.memory["total"] == observer.used.total(), f"what worker {rank} knows"
    _check_iterations(scenario, result)
    _check_exchanges(result)
    for k, cut in result.cuts.items():
        used = sum(int(state.memory["steps"]) for state in cut.states.values())
        assert {int(state.memory["total"]) for state in cut.states.values()} == {used}
        assert used == k * n if scenario.instant else used >= k * n
        if used >= (k + 1) * n and (k, 0) in result.resumed:  # enough for k as well
            assert {time for time, at, *_ in result.averages if at == k} == {cut.time}
    resumed = [(k, rank) for k in result.cuts for rank in states if k < states[rank].k]
    assert sorted(result.resumed) == sorted(resumed)


def _check_iterations(scenario: Scenario, result: Run) -> None:
    """No gradient is lost or counted twice, and where nothing travels all know all at once."""
    plan, n, states = scenario.plan, scenario.workers, result.states
    closed = [(k, rank) for _, k, rank, _, _ in result.averages]
    assert sorted(closed) == sorted((k, rank) for rank in states for k in range(states[rank].k))
    left = sum(int(state.memory["used"]) for state in states.values())
    counted = sum(gradients for *_, gradients in result.averages)
    assert counted + left == result.observer.used.total()
    ends = {state.k for state in states.values()}
    if plan.max_time == math.inf:
        assert ends == {plan.iterations}
        assert left == 0
        assert counted >= n * plan.iterations
    if plan.checkpoint_every or scenario.instant:
        assert len(ends) == 1
    if scenario.instant:
        per_iteration = Counter()
        for time, k, _, _, gradients in result.averages:
            per_iteration[k, time] += gradients
        assert set(per_iteration.values()) == {n}
        assert len(per_iteration) == max(ends)
        if max(ends) not in result.cuts:  # what is being computed at the end is abandoned
            last = max((time for time, *_ in result.averages), default=0.0)
            assert result.trace.events["time"][-1] == last


def _check_exchanges(result: Run) -> None:
    """Each exchange is told of by both of its ends."""
    ends = Counter()
    for _, _, rank, active, _ in result.averages:
        ends.update((rank, i) for i in active)
    for rank, state in result.states.items():
        ends.update((rank, int(i)) for i in state.memory["partners"])
    assert ends.total() == 2 * result.observer.exchanges
    assert all(ends[j, i] == number for (i, j), number in ends.items())


if __name__ == "__main__":
    alone(draw, run, check)
