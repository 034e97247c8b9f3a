"""allreduce on real ranks: what every rank ends with.

mpirun -n N python tests/programs/allreduce.py BY OUT, BY being mpi4py or horovod. Instead of a file
OUT may be what becomes of rank 1 in iteration 5: killed, or late by more than the stall time-out.
"""

import os
import pickle
import signal
import sys
import time

import numpy as np

from cbdybw import topology
from cbdybw.algorithms import ALGORITHMS
from cbdybw.algorithms.plan import Plan, State
from cbdybw.clusters import delays
from cbdybw.clusters.guard import guard
from cbdybw.clusters.mpi import MPI, MpiCluster
from cbdybw.clusters.trace import Trace
from cbdybw.learning.quadratic import Quadratic
from cbdybw.recorder import Recorder

BY, OUT = sys.argv[1:3]
ITERATIONS = 30


class Mishap(Quadratic):
    """The sixth gradient of rank 1 is its undoing."""

    def gradient(self, w, batch):
        self.calls = getattr(self, "calls", 0) + 1
        if MPI.COMM_WORLD.rank == 1 and self.calls == 6:
            if OUT == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            elif OUT == "late":
                time.sleep(8)
        return super().gradient(w, batch)


def summing():
    if BY == "mpi4py":
        return None
    from cbdybw.learning.horovod import Horovod

    return Horovod()


def main() -> None:
    n = MPI.COMM_WORLD.size
    problem = Mishap(np.eye(n, 1000), 1.0, 1.0, seed=7)
    graph = topology.build("ring", n, 0)
    found = []
    for max_time in (float("inf"), 0.1):
        plan = Plan(topology.neighbours(graph), [], n, lambda k: 0.1, ITERATIONS, max_time=max_time)
        cluster = MpiCluster(
            delay=delays.parse("exponential:mean=0.01", n, 3),
            dim=problem.dim,
            neighbours=plan.neighbours,
            seed=3,
            trace=Trace(),
            recorder=Recorder(ITERATIONS, holders=n),
            stall_timeout=3.0 if OUT == "late" else 60.0,
            horovod=summing(),
        )
        first = State(0, np.ones(1000, np.float32))
        states = cluster.run(
            lambda worker, plan=plan, first=first: ALGORITHMS["allreduce"].run(
                worker, problem, plan, first
            )
        )
        parts = cluster.gather(states)
        found.append((parts, cluster.allreduce_by))
    if cluster.is_root:
        with open(OUT, "wb") as file:
            pickle.dump(found, file)


if __name__ == "__main__":
    with guard():
        main()
