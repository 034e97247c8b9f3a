"""The consensus family on real ranks: everything that its invariants are about, from every rank.

mpirun -n N python tests/programs/consensus.py SEED OUT
"""

import pickle
import sys

import numpy as np

from cbdybw import topology
from cbdybw.algorithms import ALGORITHMS
from cbdybw.algorithms.plan import Plan, State
from cbdybw.clusters import delays
from cbdybw.clusters.guard import guard
from cbdybw.clusters.mpi import MpiCluster
from cbdybw.clusters.trace import Trace
from cbdybw.clusters.worker import Kind
from cbdybw.learning.quadratic import Quadratic
from tests.invariants import Average, watch_gradients

POLICIES = ("carry", "drop", "late")
CELLS = [  # algorithm, policy, edge rule, order of a step
    ("cb_full", "carry", "one", "atc"),
    ("cb_full", "carry", "one", "cta"),
    *[("cb_dybw", policy, rule, "atc") for policy in POLICIES for rule in ("one", "all")],
    ("cb_dybw", "carry", "one", "cta"),
    *[("cb_static", policy, "one", order) for policy in POLICIES for order in ("atc", "cta")],
    ("dsgd_aau", "carry", "one", "cta"),
    ("dsgd_aau", "carry", "all", "atc"),
]
ITERATIONS = 40
ETA = 0.1


class Observer:
    """Keeps what this rank averaged, with its last gradient by then, and its log of visits at every
    consistent cut."""

    def __init__(self):
        self.averages, self.skipped, self.cuts, self.gradients = [], [], {}, {}
        self._gradient = None

    def finished(self, gradient):
        self._gradient = gradient

    def save(self, rank, state):
        self.cuts[state.k] = state.visits

    def commit(self, cluster):
        """The cut is complete."""

    def record(self, rank, time, event, fields):
        if event == "average":
            self.gradients[fields["k"]] = self._gradient
            members = tuple(fields["active"])
            self.averages.append(Average(fields["k"], rank, members, fields["row"], fields["w"]))
        elif event == "skip":
            self.skipped.append((fields["k"], rank))


def main(seed: int, out: str) -> None:
    from mpi4py import MPI

    n = MPI.COMM_WORLD.size
    found = []
    for number, (algorithm, policy, rule, order) in enumerate(CELLS):
        name = "ring" if algorithm == "cb_static" else f"erdos_renyi:p={0.5 if n > 2 else 1}"
        graph = topology.build(name, n, seed + number)
        plan = Plan(
            topology.neighbours(graph),
            topology.connecting_edges(graph).edges,
            diameter=n,
            eta=lambda k: ETA,
            iterations=ITERATIONS,
            policy=policy,
            edge_rule=rule,
            checkpoint_every=10,
            barrier="global" if number else "neighbours",
            combine=order,
            local_steps=1 + number % 2,
            backup_workers=1 if n > 2 else 0,
        )
        problem = Quadratic(np.zeros((1, 50)), 1.0, 1.0, seed)
        observer, sent = Observer(), {}
        cluster = MpiCluster(
            delay=delays.parse("exponential:mean=0.002", n, seed),
            dim=problem.dim,
            neighbours=plan.neighbours,
            seed=seed,
            trace=Trace(),
            recorder=observer,
            saver=observer,
        )

        def start(
            worker, problem=problem, plan=plan, algorithm=algorithm, observer=observer, sent=sent
        ):
            hand_over = worker.send

            def send(dest, message):
                if message.kind is Kind.UPDATE:
                    sent[message.iteration] = message.vector
                hand_over(dest, message)

            worker.send = send
            watch_gradients(worker, observer.finished)
            first = State(0, np.random.default_rng(worker.rank).standard_normal(50).astype("f4"))
            return ALGORITHMS[algorithm].run(worker, problem, plan, first)

        state = cluster.run(start)[cluster.rank]
        steps = {k: ETA * g for k, g in observer.gradients.items()} if order == "cta" else {}
        parts = cluster.gather(
            (observer.averages, observer.skipped, sent, steps, state.visits, observer.cuts)
        )
        if cluster.is_root:
            candidates = plan.edges if algorithm == "dsgd_aau" else plan.connecting
            found.append((CELLS[number], plan.neighbours, candidates, parts))
    if found:
        with open(out, "wb") as file:
            pickle.dump(found, file)


if __name__ == "__main__":
    with guard():
        main(int(sys.argv[1]), sys.argv[2])
