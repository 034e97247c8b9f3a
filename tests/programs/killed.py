"""A run in which ranks are killed, on real ranks; the root says how it went.

mpirun -n RANKS python tests/programs/killed.py NAME ITERATIONS FAULTS FOLDER

NAME is one of CASES, FAULTS the fault schedule, FOLDER where running checkpoints are kept and the
root leaves result.pickle. `virtually` does the same on the virtual cluster.
"""

import pickle
import sys
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import networkx as nx
import numpy as np

from cbdybw import topology
from cbdybw.algorithms import ALGORITHMS
from cbdybw.algorithms.plan import Plan, State, Survival
from cbdybw.clusters import faults
from cbdybw.clusters.guard import guard
from cbdybw.clusters.trace import Trace
from cbdybw.learning.quadratic import Quadratic

SECONDS = 0.01  # of a minibatch
SEED = 3
SAVED_EVERY = 8  # iterations


class Case(NamedTuple):
    algorithm: str
    workload: str
    workers: int
    servers: int
    recovery: str
    barrier: str = "global"
    policy: str = "carry"


CASES = {
    "mlr": Case("scar", "mlr", 3, 3, "partial"),
    "mlr full": Case("scar", "mlr", 3, 3, "full"),
    "lda": Case("scar", "lda", 2, 3, "partial"),
    "cb_full": Case("cb_full", "quadratic", 6, 0, "without"),
    "cb_full neighbours": Case("cb_full", "quadratic", 6, 0, "without", "neighbours"),
    "cb_dybw": Case("cb_dybw", "quadratic", 6, 0, "without"),
    "cb_dybw drop": Case("cb_dybw", "quadratic", 6, 0, "without", policy="drop"),
    "mortal": Case("scar", "mlr", 3, 3, "none"),
    "mortal cb_full": Case("cb_full", "quadratic", 6, 0, "none"),
    "path": Case("cb_full", "quadratic", 6, 0, "without"),
}


class Said:
    """What the ranks of this process record of losses, and of averages."""

    def __init__(self):
        self.recovered, self.averages = [], []

    def record(self, rank, time, event, fields):
        if event == "recovered":
            self.recovered.append((fields["k"], fields["lost"]))
        elif event == "average":
            self.averages.append((fields["k"], rank, fields["row"]))


def problem_of(case: Case):
    if case.workload == "mlr":
        from cbdybw.learning.softmax import SoftmaxRegression

        rng = np.random.default_rng(SEED)
        y = rng.integers(10, size=600)
        x = (np.eye(10)[y] @ rng.standard_normal((10, 20)) + rng.standard_normal((600, 20))) / 4
        x = x.astype(np.float32)
        data = SimpleNamespace(train_x=x, train_y=y, test_x=x, test_y=y, classes=10)
        return SoftmaxRegression(data, 60, 0.5, SEED)
    if case.workload == "lda":
        from cbdybw.learning.corpus import generate
        from cbdybw.learning.topics import Topics

        return Topics(generate(60, 30, 100, 5, seed=SEED)[0], 5, seed=SEED)
    return Quadratic(np.arange(12).reshape(6, 2) % 5, 1.0, 0.1, SEED)


def plan_of(case: Case, name: str, iterations: int, store) -> Plan:
    graph = nx.path_graph(6) if name == "path" else nx.circulant_graph(6, [1, 2])
    consensus = not case.servers
    return Plan(
        topology.neighbours(graph) if consensus else [()] * case.workers,
        topology.connecting_edges(graph).edges if consensus else (),
        diameter=0,
        eta=lambda k: 0.2,
        iterations=iterations,
        policy=case.policy,
        barrier=case.barrier,
        survival=Survival(case.recovery, 1 / 4, 4 * SAVED_EVERY, "priority", store, SEED),
    )


def delay(rank: int, index: int) -> float:
    return SECONDS * (1 + (7 * rank + 3 * index) % 5 / 4)


def on_ranks(name: str, iterations: int, file: str, folder: str) -> None:
    from cbdybw.clusters.mpi import MpiCluster
    from cbdybw.scar.log import Log

    case, said = CASES[name], Said()
    problem = problem_of(case)

    @cache
    def store(rank):
        return Log(Path(folder, f"running-{rank}"), problem.blocks, name)

    plan = plan_of(case, name, iterations, store)
    cluster = MpiCluster(
        delay=delay,
        dim=problem.dim,
        neighbours=plan.neighbours,
        seed=SEED,
        trace=Trace(),
        recorder=said,
        servers=case.servers,
        stall_timeout=100.0,
        faults=faults.read(file, case.workers, case.servers),
        fault_notes=folder,
    )
    state = _run(cluster, case, plan, problem)[cluster.rank]
    parts = cluster.gather((state.k, state.w, said.recovered, said.averages))
    if parts is not None:
        Path(folder, "result.pickle").write_bytes(pickle.dumps(parts))


def virtually(name: str, iterations: int, file: str):
    """{rank: its last state}, and what was recorded."""
    from cbdybw.clusters.network import Network
    from cbdybw.clusters.virtual import VirtualCluster
    from cbdybw.scar.checkpoint import Memory

    case, said = CASES[name], Said()
    problem = problem_of(case)
    store = cache(lambda rank: Memory(problem.blocks))
    plan = plan_of(case, name, iterations, store)
    cluster = VirtualCluster(
        case.workers + case.servers,
        delay=delay,
        network=Network(),
        seed=SEED,
        trace=Trace(),
        recorder=said,
        servers=case.servers,
        faults=faults.read(file, case.workers, case.servers),
    )
    return _run(cluster, case, plan, problem), said


def _run(cluster, case: Case, plan: Plan, problem):
    run = ALGORITHMS[case.algorithm].run
    w = problem.initial(np.random.default_rng(SEED))
    if case.servers:
        problem.part(w, 0, case.workers, 0)  # what has to be compiled is
    return cluster.run(lambda worker: run(worker, problem, plan, State(0, w)))


if __name__ == "__main__":
    with guard():
        on_ranks(sys.argv[1], int(sys.argv[2]), *sys.argv[3:5])
