"""Three workers and a server that survive the death of a worker, of which the root tells as JSON.

Started by tests/test_mpi_losses.py: `mpirun -n 4 python losses.py RANK WHEN SEED`. The rank dies
WHEN: see `Doom`.
"""

import atexit
import json
import os
import random
import signal
import sys
import threading
import time
from functools import partial

import numpy as np

from cbdybw.clusters.guard import guard
from cbdybw.clusters.mpi import MpiCluster
from cbdybw.clusters.trace import Trace
from cbdybw.clusters.wire import MARK, Wire
from cbdybw.clusters.worker import Kind, Message

DOOMED, WHEN, SEED = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
DIM = 5000  # 20 kB: too large for MPI's eager protocol
CUTS = 10, 20, 30  # iterations; the last one ends the run
STEP = 0.004  # seconds
RNG = random.Random(SEED)


class Doom:
    """Where the doomed rank dies."""

    iteration = RNG.randrange(CUTS[-1])
    seconds = RNG.uniform(0, 1.5 * CUTS[-1] * STEP)  # after its start
    cut = RNG.choice(CUTS[:-1])
    marks = RNG.randrange(1, 4)  # "between marks": that have left; of a random meeting
    meeting = RNG.randrange(3 * len(CUTS))

    def __init__(self, rank):
        self.is_mine = rank == DOOMED

    def comes(self, when, at=True):
        if self.is_mine and when == WHEN and at:
            os.kill(os.getpid(), signal.SIGKILL)

    def start(self):
        def wait():
            time.sleep(self.seconds)
            self.comes("at any time")

        threading.Thread(target=wait, daemon=True).start()


class DoomedWire(Wire):
    """Dies between two of the marks of one meeting."""

    marks = 0

    def _start(self, dest, tag, payload):
        super()._start(dest, tag, payload)
        if tag & 31 == MARK:
            self.marks += 1
            doom.comes("between marks", self.marks == 3 * (1 + Doom.meeting) + Doom.marks)


class Saver:
    """Who has saved what, and which cuts count."""

    def __init__(self):
        self.saved, self.counting = [], []

    def save(self, rank, state):
        doom.comes("before it saves", state == Doom.cut)
        self.saved.append(state)
        doom.comes("when it has saved", state == Doom.cut)

    def commit(self, cluster):
        self.counting.append(self.saved[-1])


class Recorder:
    def record(self, rank, time, event, fields):
        raise AssertionError("nothing is recorded here")


def push_or_loss(m):
    return m.kind is Kind.PUSH or m.kind is Kind.PEER_LOST


def model(m):
    return m.kind is Kind.MODEL


async def learn(worker):
    """Push, and wait for the server's answer only, which is one more than what was pushed."""
    vector, done = np.zeros(DIM, np.float32), 0
    for cut in CUTS:
        for k in range(done, cut):
            await worker.compute(doom.comes, "computing", k == Doom.iteration, index=k)
            worker.send(worker.servers[0], Message(Kind.PUSH, k, worker.rank, vector=vector))
            doom.comes("sending", k == Doom.iteration)
            vector = (await worker.receive(model)).vector
        done = cut
        await worker.checkpoint(partial(int, cut))
    return vector[0]


async def serve(worker):
    """Answer, until all the living have come to the next cut; pushes of each worker."""
    living, pushes = set(worker.workers), dict.fromkeys(worker.workers, 0)
    for cut in CUTS:
        while any(pushes[j] < cut for j in living):
            m = await worker.receive(push_or_loss)
            if m.kind is Kind.PEER_LOST:
                living.remove(m.source)
                continue
            pushes[m.source] += 1
            answer = Message(Kind.MODEL, m.iteration, worker.rank, vector=m.vector + 1)
            worker.send(m.source, answer)
            doom.comes("serving", sum(pushes.values()) == 3 * Doom.iteration + 1)
        await worker.checkpoint(partial(int, cut))
    return pushes


def delay(rank, iteration):
    return STEP * (1 + rank / 2)  # everybody has a pace of its own


async def take_part(worker):
    worker.forgive(worker.workers)
    doom.start()
    return await (serve if worker.rank in worker.servers else learn)(worker)


def main():
    saver = Saver()
    cluster = MpiCluster(
        delay=delay,
        dim=DIM,
        neighbours=[()] * 3,
        seed=0,
        trace=Trace(),
        recorder=Recorder(),
        servers=1,
        saver=saver,
        stall_timeout=10.0,
    )
    doom.is_mine = cluster.rank == DOOMED
    cluster._wire.__class__ = DoomedWire
    atexit.register(doom.comes, "leaving")
    result = cluster.run(take_part)[cluster.rank]
    doom.comes("finished")
    parts = cluster.gather(result if cluster.rank in cluster.servers else float(result))
    doom.comes("gathered")
    if parts is not None:
        print(json.dumps({"parts": parts, "counting": saver.counting}), flush=True)


if __name__ == "__main__":
    doom = Doom(None)
    with guard():
        main()
