"""Goes wrong in the way that its argument names, while the ranks of a ring exchange messages.

Started by tests/test_mpi_failures.py: `mpirun -n N python failures.py HOW`.
"""

import os
import signal
import sys

from cbdybw.clusters.guard import guard
from cbdybw.clusters.trace import Trace
from cbdybw.clusters.worker import Kind, Message
from cbdybw.errors import BadInput

HOW = sys.argv[1]
LAST = 2**20  # iterations: nobody gets there


def update(k, source):
    def matches(m):
        return m.kind == Kind.UPDATE and m.iteration == k and m.source == source

    return matches


def fail(rank):
    """What goes wrong in iteration 5, in the compute thread."""
    if rank == 1 and HOW == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == 1 and HOW == "raises in fn":
        raise ZeroDivisionError("in fn")


async def ring(worker):
    neighbours = {(worker.rank + 1) % worker.size, (worker.rank - 1) % worker.size}
    for k in range(3 if HOW.startswith("at the end") else LAST):
        await worker.compute(fail if k == 5 else id, worker.rank, index=k)
        if k == 5 and worker.rank == 1 and HOW == "raises":
            raise ZeroDivisionError("in the coroutine")
        if k == 5 and HOW == "all raise":
            raise ZeroDivisionError("everywhere")
        if k == 5 and worker.rank == 1 and HOW == "silent":
            await worker.receive(update(-1, 1))
        for i in neighbours:
            worker.send(i, Message(Kind.UPDATE, k, worker.rank))
        for i in neighbours:
            await worker.receive(update(k, i))
        if k == 5 and HOW == "at a barrier" and worker.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if k == 5 and HOW == "at a barrier":
            await worker.barrier(worker.workers)


class Recorder:
    def record(self, rank, time, event, fields):
        raise AssertionError("nothing is recorded here")


def refuse(where):
    rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
    if f"bad input {where}" == HOW or (rank == 1 and f"bad input {where} of rank 1" == HOW):
        raise BadInput("--graph=grid: 7 workers make no grid; use 6, 8 or 9, or --graph=ring")


with guard():
    refuse("before MPI")
    from cbdybw.clusters.mpi import MPI, MpiCluster

    size = MPI.COMM_WORLD.size
    cluster = MpiCluster(
        delay=lambda rank, index: 0.0,
        dim=10,
        neighbours=[[(j + 1) % size, (j - 1) % size] for j in range(size)],
        seed=0,
        trace=Trace(),
        recorder=Recorder(),
        stall_timeout=1.5 if HOW == "silent" else 30.0,
    )
    refuse("on the cluster")
    cluster.run(ring)
    if HOW == "at the end" and cluster.is_root:
        raise OSError("disk full")
    cluster.gather(None)
