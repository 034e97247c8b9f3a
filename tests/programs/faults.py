"""Five ranks to whom the faults of a file happen, and what each of them saw, as JSON of the root.

Started by tests/test_mpi_faults.py: `mpirun -n 5 python faults.py SCENARIO FILE NOTES DEATHS`.
"""

import json
import sys
import time

import numpy as np

from cbdybw.clusters.faults import read
from cbdybw.clusters.guard import guard
from cbdybw.clusters.mpi import MpiCluster
from cbdybw.clusters.trace import Trace, decode
from cbdybw.clusters.worker import INTERRUPTED, Kind, Message
from cbdybw.errors import PeerLost

SCENARIO, FILE, NOTES, DEATHS = *sys.argv[1:4], int(sys.argv[4])
DIM = 5000  # 20 kB: too large for MPI's eager protocol
LAST = 40  # iterations
STEP = 0.01  # seconds
FOREVER = 10**6  # the index of a computation that lasts
DOOMED = 3
LOST = object()

corrupted = []


def update(k):
    def matches(m):
        return m.kind is Kind.UPDATE and m.iteration == k

    return matches


def is_update(m):
    return m.kind is Kind.UPDATE


def is_loss(m):
    return m.kind is Kind.PEER_LOST


def never(m):
    return False


class Survivor:
    """Forgives whoever dies when it has died, and tells of it."""

    def __init__(self, worker):
        self.worker, self.lost = worker, []

    @property
    def living(self):
        return [rank for rank in range(self.worker.size) if rank not in self.lost]

    async def attempt(self, act):
        """What the awaitable `act` returns, or LOST."""
        try:
            return await act
        except PeerLost as loss:
            self.lost.append(loss.rank)
            self.worker.forgive(self.lost)
            return LOST

    async def outlive(self, make):
        """What `make()` returns in the end, begun again after each loss."""
        while (result := await self.attempt(make())) is LOST:
            pass
        return result

    async def end(self, **said):
        """Meet and sum with those who live."""
        worker = self.worker
        await self.outlive(lambda: worker.barrier(self.living))
        vector = np.full(DIM, 2.0**worker.rank, np.float32)
        total = await self.outlive(lambda: worker.allreduce(vector, self.living))
        assert (total == total[0]).all()
        left = [m.source for m in worker.take(is_loss)]
        return {"lost": sorted(self.lost), "left": sorted(left), "sum": float(total[0]), **said}


async def everybody(worker):
    """Exchange with all the living in each iteration."""
    me, seen = Survivor(worker), [0] * worker.size
    for k in range(LAST):
        await worker.compute(int, index=k)
        worker.broadcast(Message(Kind.UPDATE, k, worker.rank, vector=np.ones(DIM, np.float32)))
        here = {worker.rank}
        while not here.issuperset(me.living):
            m = await me.attempt(worker.receive(update(k)))
            if m is not LOST:
                here.add(m.source)
                seen[m.source] += 1
        worker.record("iteration", k=k)
    return await me.end(seen=seen)


async def dies(worker):
    """Rank 3, and whoever else the file says, dies doing what the scenario says. Rank 0 does the
    same, 1 computes, 2 waits."""
    me, doing, all_ranks = Survivor(worker), SCENARIO.removeprefix("dies "), range(worker.size)
    acts = {
        "computing": lambda: worker.compute(time.sleep, 30 * (worker.rank != 0), index=0),
        "meeting": lambda: worker.barrier(all_ranks),
        "summing": lambda: worker.allreduce(np.ones(DIM, np.float32), all_ranks),
        "waiting": lambda: worker.receive(never),
    }
    interrupted = None
    if worker.rank == 1:
        interrupted = await worker.compute(int, index=FOREVER, until=is_loss) is INTERRUPTED
    elif worker.rank != 2:
        await me.attempt(acts[doing]())
    while len(me.lost) < DEATHS:
        await me.attempt(worker.receive(never))
    return await me.end(interrupted=interrupted)


async def ends(worker):
    """All but rank 3, which dies, are in the meeting at the end, where nobody can forgive."""
    if SCENARIO == "ends, forgiven":
        worker.forgive([DOOMED])
    if worker.rank == DOOMED:
        await worker.receive(never)
    return worker.rank


async def hurt(worker):
    """Ranks 1 and 2 compute, and send to rank 1, rank 1 by way of rank 0: who took how long for
    each computation, and what came in at rank 1 when."""
    steps, came = [], []

    async def listen():
        for _ in range(2 * LAST):
            m = await worker.receive(is_update)
            came.append((m.source, m.iteration, m.vector is None, worker.now()))

    if worker.rank == 0:
        for k in range(LAST):
            worker.send(1, (await worker.receive(update(k)))._replace(source=0))
    if worker.rank == 1:
        worker.spawn(listen())
    for k in range(LAST if worker.rank in (1, 2) else 0):
        start = worker.now()
        # The time of the function itself counts as much as the injected one.
        await worker.compute(time.sleep, 2 * STEP if k % 2 else 0, index=k)
        steps.append(worker.now() - start)
        vector = np.full(DIM, k, np.float32) if k % 3 else None  # small ones must not overtake
        worker.send(worker.rank - 1, Message(Kind.UPDATE, k, worker.rank, vector=vector))
    while worker.rank == 1 and len(came) < 2 * LAST:
        await worker.receive(never, timeout=STEP)
    return {"steps": steps, "came": came}


async def sums(worker):
    """Rank 1 is cut off from an iteration on, and then sums with the others."""
    await worker.compute(int, index=5)
    total = await worker.allreduce(np.ones(DIM, np.float32), range(worker.size))
    return {"sum": float(total[0]), "end": worker.now()}


class Recorder:
    def record(self, rank, time, event, fields):
        assert event == "iteration"


def delay(rank, iteration):
    return 30.0 if iteration == FOREVER else STEP


def main():
    trace = Trace()
    cluster = MpiCluster(
        delay=delay,
        dim=DIM,
        neighbours=[range(5)] * 5,
        seed=0,
        trace=trace,
        recorder=Recorder(),
        stall_timeout=20.0,
        faults=read(FILE, 5, 0),
        corrupt=corrupted.append,
        fault_notes=NOTES,
    )
    act = {"everybody": everybody, "dies": dies, "hurt": hurt, "sums": sums}
    result = cluster.run(act.get(SCENARIO.split()[0], ends))[cluster.rank]
    _, kind, _, peer = decode(trace.events["code"])
    noticed = kind == Kind.PEER_LOST
    losses = dict(zip(peer[noticed].tolist(), trace.events["time"][noticed].tolist(), strict=True))
    parts = cluster.gather({"result": result, "corrupted": corrupted, "noticed": losses})
    if parts is not None:
        print(json.dumps(parts), flush=True)


if __name__ == "__main__":
    with guard():
        main()
