"""AD-PSGD on real ranks: all that each rank has sent and used.

mpirun -n N python tests/programs/ad_psgd.py SEED OUT
"""

import pickle
import sys

import numpy as np

from cbdybw import topology
from cbdybw.algorithms import ALGORITHMS
from cbdybw.algorithms.plan import Plan, State
from cbdybw.clusters import delays
from cbdybw.clusters.guard import guard
from cbdybw.clusters.mpi import MPI, MpiCluster
from cbdybw.clusters.trace import Trace
from cbdybw.learning.quadratic import Quadratic

DIM = 5000  # 20 kB: too large for MPI's eager protocol


class Observer:
    """Keeps what this rank recorded and its state at every consistent cut."""

    def __init__(self):
        self.averages, self.cuts = [], {}

    def save(self, rank, state):
        self.cuts[state.k] = state

    def commit(self, cluster):
        """The cut is complete."""

    def record(self, rank, time, event, fields):
        if event == "average":
            self.averages.append((fields["k"], fields["active"], fields["gradients"]))


def main(seed: int, out: str) -> None:
    n = MPI.COMM_WORLD.size
    graph = topology.build(f"erdos_renyi:p={0.7 if n > 2 else 1}", n, seed)
    problem = Quadratic(np.zeros((1, DIM)), 1.0, 1.0, seed)
    plan = Plan(topology.neighbours(graph), [], n, lambda k: 0.1, 40, checkpoint_every=15)
    observer, sent, gradients = Observer(), [], []
    cluster = MpiCluster(
        delay=delays.parse("exponential:mean=0.002", n, seed),
        dim=DIM,
        neighbours=plan.neighbours,
        seed=seed,
        trace=Trace(),
        recorder=observer,
        saver=observer,
    )
    first = np.random.default_rng(cluster.rank).standard_normal(DIM).astype("f4")

    def start(worker):
        send, compute = worker.send, worker.compute

        def noted_send(dest, message):
            sent.append((message.kind.name, dest, message.iteration, message.vector))
            send(dest, message)

        async def noted_compute(*args, **kwargs):
            gradients.append(await compute(*args, **kwargs))
            return gradients[-1]

        worker.send, worker.compute = noted_send, noted_compute
        return ALGORITHMS["ad_psgd"].run(worker, problem, plan, State(0, first))

    state = cluster.run(start)[cluster.rank]
    used = gradients[: int(state.memory["steps"])]
    parts = cluster.gather((first, sent, used, state, observer.averages, observer.cuts))
    if cluster.is_root:
        with open(out, "wb") as file:
            pickle.dump(parts, file)


if __name__ == "__main__":
    with guard():
        main(int(sys.argv[1]), sys.argv[2])
