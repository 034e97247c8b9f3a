"""cb-Full and cb-DyBW on real ranks: everything that their invariants are about, from every rank.

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
from tests.invariants import Average

CELLS = [("cb_full", "carry", "one"), ("cb_full", "carry", "one")] + [
    ("cb_dybw", policy, rule) for policy in ("carry", "drop", "late") for rule in ("one", "all")
]
ITERATIONS = 40


class Observer:
    """Keeps what this rank averaged, and its log of visits at every consistent cut."""

    def __init__(self):
        self.averages, self.skipped, self.cuts = [], [], {}

    def save(self, rank, state):
        self.cuts[state.k] = state.visits

    def commit(self, cluster):
        """The cut is complete."""

    def record(self, rank, time, event, fields):
        if event == "average":
            members = tuple(fields["active"])
            self.averages.append(Average(fields["k"], rank, members, fields["row"], fields["w"]))
        elif event == "skip":
            self.skipped.append((fields["k"], rank))


def main(seed: int, out: str) -> None:
    from mpi4py import MPI

    n = MPI.COMM_WORLD.size
    found = []
    for number, (algorithm, policy, rule) in enumerate(CELLS):
        graph = topology.build(f"erdos_renyi:p={0.5 if n > 2 else 1}", n, seed + number)
        plan = Plan(
            topology.neighbours(graph),
            topology.connecting_edges(graph).edges,
            diameter=n,
            eta=lambda k: 0.1,
            iterations=ITERATIONS,
            policy=policy,
            edge_rule=rule,
            checkpoint_every=10,
            barrier="global" if number else "neighbours",
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

        def start(worker, problem=problem, plan=plan, algorithm=algorithm, sent=sent):
            hand_over = worker.send

            def send(dest, message):
                if message.kind is Kind.UPDATE:
                    sent[message.iteration] = message.vector
                hand_over(dest, message)

            worker.send = send
            first = State(0, np.random.default_rng(worker.rank).standard_normal(50).astype("f4"))
            return ALGORITHMS[algorithm].run(worker, problem, plan, first)

        state = cluster.run(start)[cluster.rank]
        parts = cluster.gather(
            (observer.averages, observer.skipped, sent, state.visits, observer.cuts)
        )
        if cluster.is_root:
            found.append(((algorithm, policy, rule), plan.neighbours, plan.connecting, parts))
    if found:
        with open(out, "wb") as file:
            pickle.dump(found, file)


if __name__ == "__main__":
    with guard():
        main(int(sys.argv[1]), sys.argv[2])
