"""Deterministic simulation: runs whose ranks die, stand still, slow down or are cut off.

    python -m tests.simulation_faults --seed=123

runs that seed alone and prints what was drawn: algorithm, sizes, graph, delays, network, recovery,
running checkpoints, and one to four faults, by iteration and by time, some at one instant, some
during the repair of another, some of a worker that has been replaced. What has to hold is in
`faulty_consensus`, `faulty_scar` and, for ADSP, here.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from cbdybw import topology
from cbdybw.algorithms import ALGORITHMS
from cbdybw.algorithms.plan import Pace, Plan, State, Survival
from cbdybw.clusters.faults import Schedule
from cbdybw.clusters.network import Network
from cbdybw.clusters.virtual import VirtualCluster
from cbdybw.clusters.watch import DISCONNECT, KILL, PAUSE, SLOW, Fault
from cbdybw.errors import FallenApart, PeerLost
from cbdybw.learning.quadratic import Quadratic
from cbdybw.scar.checkpoint import POLICIES
from tests import faulty_consensus, faulty_scar, simulation, simulation_adsp, simulation_server
from tests.drawn import Saved, Served

ALGORITHM = ("cb_full", "cb_full", "cb_dybw", "cb_dybw", "cb_dybw", "adsp", "scar", "scar", "scar")
CONSENSUS = ("cb_full", "cb_dybw")
DIM = 6
LAWS = tuple(law for law in simulation.LAWS if law != "none")


@dataclass(frozen=True)
class Scenario(Served):
    """All that a run depends on, beside the algorithm's code."""

    faults: tuple[Fault, ...] = ()

    @property
    def command(self) -> str:
        return f"python -m tests.simulation_faults --seed={self.seed}"

    @property
    def ranks(self) -> int:
        return self.workers + self.servers


def draw(seed: int) -> Scenario:
    """The scenario of a seed; its times of faults lie within the time that it takes without."""
    rng = np.random.default_rng((seed, 7))
    algorithm = str(rng.choice(ALGORITHM))
    consensus, scar = algorithm in CONSENSUS, algorithm == "scar"
    n = int(rng.integers(2, 8) if consensus else rng.integers(1, 5))
    servers = 0 if consensus else int(rng.integers(1, 5)) if scar else 1
    graph = simulation.random_graph(rng, n)
    recoveries = ("without", "neighbour", "partial", "full") if consensus else ("partial", "full")
    survival = Survival(
        recovery=str(rng.choice(recoveries)) if consensus or scar else "none",
        fraction=float(rng.choice([1 / 8, 1 / 3, 1.0])),
        period=int(rng.choice([1, 3, 8])),
        policy=str(rng.choice(POLICIES)),
        seed=seed,
    )
    plan = Plan(
        topology.neighbours(graph) if consensus else [()] * n,
        topology.connecting_edges(graph).edges if consensus else (),
        diameter=0,
        eta=(lambda k: 0.3) if consensus else simulation_server.eta,
        iterations=int(rng.integers(1, 16)),
        policy=str(rng.choice(ALGORITHMS[algorithm].policies)),
        edge_rule=str(rng.choice(["one", "all"])),
        barrier=str(rng.choice(["global", "neighbours"])),
        pace=Pace(rate=int(rng.choice([1, 3])), period=5.0, eta=0.5, restarts=rng.random() < 0.3),
        survival=survival,
    )
    network = simulation.random_network(rng, n + servers)
    network |= {"bandwidth": 100 * network.get("bandwidth", math.inf)}  # vectors are long
    scenario = Scenario(seed, algorithm, plan, servers, str(rng.choice(LAWS)), network)
    return replace(scenario, faults=tuple(_faults(rng, scenario)))


def _faults(rng: np.random.Generator, scenario: Scenario) -> list[Fault]:
    """One to four. The root is not killed; nor are ADSP's server and, mostly, SCAR's last one."""
    n, k = scenario.workers, scenario.plan.iterations
    mortal = list(range(1, n if scenario.algorithm == "adsp" else scenario.ranks))
    if scenario.algorithm == "scar" and rng.random() < 0.95:
        mortal.remove(scenario.ranks - 1)
    end = run(scenario).time
    faults: list[Fault] = []
    times: list[float] = []
    for _ in range(int(rng.integers(1, 5))):
        kind = str(rng.choice([KILL, KILL, KILL, KILL, PAUSE, SLOW, DISCONNECT]))
        if kind == KILL and not mortal:
            continue
        rank = int(rng.choice(mortal) if kind == KILL else rng.integers(scenario.ranks))
        iteration = time = None
        if rng.random() < 0.5:
            iteration = int(rng.integers(k + 1))
        elif (
            times and rng.random() < 0.7
        ):  # at the same instant, or in the repair of an earlier one
            time = times[-1] + float(rng.choice([0, 0.01, 0.02, 0.0201, 0.03, 0.3, 0.6, 1.01]))
        else:
            time = float(rng.uniform(0, 1.1 * end))
        times += [] if time is None else [time]
        seconds = 0.0 if kind == KILL else float(rng.choice([0.01, 0.03, 0.5, 3.0]))
        faults.append(Fault(kind, rank, iteration, time, seconds, 4.0 if kind == SLOW else 1.0))
        if kind == KILL and not scenario.plan.survival.replaces | (scenario.servers > 0):
            mortal = [r for r in mortal if r != rank]
    return faults


@dataclass
class Run(Saved):
    """A run that has ended in some way, and what its ranks said."""

    story: Any = None
    lost: list[int] = field(default_factory=list)
    loss: PeerLost | FallenApart | None = None  # what ended it before its time
    time: float = 0.0

    def sha256(self) -> str:
        return self.trace.sha256(self.states[rank].w for rank in sorted(self.states))


class Committed(simulation_adsp.Story):
    """What ADSP's ranks tell, some of whom die."""

    def record(self, rank: int, time: float, event: str, fields: dict[str, Any]) -> None:
        if event != "lost":
            super().record(rank, time, event, fields)


def run(scenario: Scenario) -> Run:
    """Run the scenario to its end."""
    result, plan, n = Run(), scenario.plan, scenario.workers
    law = simulation.delay_law(scenario)
    if scenario.algorithm == "scar":
        problem = faulty_scar.Ledger(plan.iterations, n)
        result.story = faulty_scar.Story(n, scenario.servers)
        store = result.story.store(problem.blocks)
        w = problem.initial(np.random.default_rng(0))
        states = {rank: State(0, w) for rank in range(scenario.ranks)}
    elif scenario.algorithm == "adsp":
        steps = simulation_adsp.MOST_STEPS
        problem = simulation_adsp.Committed(n, 1, steps, scenario.seed)
        result.story, store = Committed(), None
        states = simulation_server.first_states(problem, n, 1)
    else:
        problem = Quadratic(np.arange(n * DIM).reshape(n, DIM) % 7, 1.0, 0.5, scenario.seed)
        result.story = faulty_consensus.Story(plan)
        store = result.story.store(DIM)
        states = {j: State(0, np.arange(DIM, dtype=np.float32) + j) for j in range(n)}
    plan = replace(plan, survival=replace(plan.survival, store=store))
    cluster = VirtualCluster(
        scenario.ranks,
        delay=lambda rank, index: law(rank, index % 100),
        network=Network(**scenario.network),
        seed=scenario.seed,
        trace=result.trace,
        recorder=result.story,
        servers=scenario.servers,
        faults=Schedule(scenario.faults) if scenario.faults else None,
        replaces=plan.survival.replaces and scenario.algorithm in CONSENSUS,
    )

    def main(worker):
        if worker.restarts == 0:
            result.story.listen(worker)
        return ALGORITHMS[scenario.algorithm].run(worker, problem, plan, states[worker.rank])

    try:
        result.states = cluster.run(main)
    except (PeerLost, FallenApart) as loss:
        result.loss = loss
    result.lost, result.time = sorted(cluster.lost), cluster.time
    return result


def check(scenario: Scenario, result: Run) -> None:
    """Assert everything that must hold in a run."""
    killed = {fault.rank for fault in scenario.faults if fault.kind == KILL}
    assert killed.issuperset(result.lost)
    if result.loss is None:
        living = set(range(scenario.ranks)) - set(result.lost)
        assert result.states.keys() == living
        ends = {state.k for state in result.states.values()}
        assert ends == {scenario.plan.iterations}
    {"scar": faulty_scar.check, "adsp": _check_adsp}.get(
        scenario.algorithm, faulty_consensus.check
    )(scenario, result)


def _check_adsp(scenario: Scenario, result: Run) -> None:
    """All that the living have committed is in W, once; of the lost what they committed first."""
    assert result.loss is None
    story, n, steps = result.story, scenario.workers, simulation_adsp.MOST_STEPS
    w = result.states[n].w
    marks = -w[: n * steps].reshape(n, steps) / (0.5 * simulation_server.MARK)
    for j in range(n):
        pushed = [push.indices for push in story.pushes[j]]
        entered = np.flatnonzero(marks[j]).tolist()
        whole = [c for indices in pushed for c in indices]
        assert entered == whole[: len(entered)]
        assert len(entered) in np.cumsum([0, *map(len, pushed)])
        assert j in result.lost or entered == whole
        assert len(story.models[j]) >= len(whole)
        np.testing.assert_allclose(marks[j, entered], [simulation_server.eta(c) for c in entered])


def main() -> None:
    parser = argparse.ArgumentParser(description="Run and check the scenario of one seed.")
    parser.add_argument("--seed", type=int, required=True)
    scenario = draw(parser.parse_args().seed)
    print(scenario)
    result = run(scenario)
    check(scenario, result)
    print(f"fine: trace_sha256 {result.sha256()}")


if __name__ == "__main__":
    main()
