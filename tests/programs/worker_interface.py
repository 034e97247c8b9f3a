"""Uses all that an algorithm can ask of `MpiCluster`; the root prints what came of it as JSON.

Started by tests/test_mpi_cluster.py, which judges: `mpirun -n N python worker_interface.py SEED`.
"""

import json
import sys
import time
import zlib

import numpy as np

from cbdybw.clusters.guard import guard
from cbdybw.clusters.trace import Event, Span, Trace, decode
from cbdybw.clusters.worker import INTERRUPTED, Kind, Message, keyed_rng
from cbdybw.problem import Weightless

SEED = int(sys.argv[1])
DIM = 5000  # 20 kB: too large for MPI's eager protocol
DELAY = 0.03


def kind(wanted, source=None, iteration=None):
    def matches(m):
        return (
            m.kind == wanted
            and (source is None or m.source == source)
            and (iteration is None or m.iteration == iteration)
        )

    return matches


def others(worker):
    return [rank for rank in range(worker.size) if rank != worker.rank]


async def links(worker):
    """Numbered messages of random sizes on all links; rank → the numbers that came from it."""
    rng = worker.rng("links", SEED)
    sent = dict.fromkeys(others(worker), 0)
    for _ in range(300):
        dest = int(rng.choice(others(worker)))
        vector = rng.random(rng.integers(DIM + 1), np.float32) if rng.random() < 0.5 else None
        extra = tuple(rng.integers(-(2**62), 2**62, rng.integers(6)).tolist())
        check = zlib.crc32(b"" if vector is None else vector) ^ zlib.crc32(repr(extra).encode())
        body = (sent[dest], check, *extra)
        worker.send(dest, Message(Kind.UPDATE, sent[dest], worker.rank, body, vector))
        sent[dest] += 1
        if rng.random() < 0.1:
            await worker.compute(time.sleep, 0.001, index=0)
    for dest, count in sent.items():
        worker.send(dest, Message(Kind.CLOSE, 2**20, worker.rank, (count,)))
    counts = {i: (await worker.receive(kind(Kind.CLOSE, i))).body[0] for i in others(worker)}
    numbers, corrupt = {i: [] for i in others(worker)}, 0
    for m in worker.take(kind(Kind.UPDATE)):
        number, check, *extra = m.body
        found = zlib.crc32(b"" if m.vector is None else m.vector)
        corrupt += found ^ zlib.crc32(repr(tuple(extra)).encode()) != check
        numbers[m.source].append(number)
    return {"numbers": numbers, "counts": counts, "corrupt": corrupt}


async def ping_pong(worker):
    """A vector goes to and fro between ranks 0 and 1 and is one larger each time."""
    if worker.rank > 1:
        return None
    vector, body = np.zeros(DIM, np.float32), (0,)
    for k in range(40):
        if k % 2 == worker.rank:
            worker.send(1 - worker.rank, Message(Kind.UPDATE, k, worker.rank, body, vector))
        else:
            m = await worker.receive(kind(Kind.UPDATE, iteration=k))
            vector, body = m.vector + 1, (m.body[0] + 2,)
    return {"values": sorted(set(vector.tolist())), "body": body}


async def kept_vectors(worker):
    """Vectors that are kept stay as they came, however many follow."""
    for k in range(30):
        worker.broadcast(Message(Kind.UPDATE, k, worker.rank, (), np.full(DIM, k, np.float32)))
    kept = [
        (k, (await worker.receive(kind(Kind.UPDATE, i, k))).vector[::2])
        for k in range(30)
        for i in others(worker)
    ]
    return all((vector == k).all() for k, vector in kept)


async def mailbox(worker):
    """What `take`, `receive` with a time-out, and a message to oneself return."""
    if worker.rank == 0:
        for k in (3, 1, 2):
            worker.send(1, Message(Kind.VISITED, k, 0, (k, k + 1)))
    found = {}
    if worker.rank == 1:
        await worker.receive(kind(Kind.VISITED, iteration=2))
        found["taken"] = [m.iteration for m in worker.take(kind(Kind.VISITED))]
        found["again"] = worker.take(kind(Kind.VISITED))
    before = worker.now()
    found["timeout"] = await worker.receive(kind(Kind.STOP), timeout=0.02)
    found["waited"] = worker.now() - before
    worker.send(worker.rank, Message(Kind.STOP, 7, worker.rank))
    found["own"] = worker.take(kind(Kind.STOP))
    found["own later"] = (await worker.receive(kind(Kind.STOP))).iteration
    return found


async def activities(worker):
    """A responder answers while the main activity computes; it ends with the main one."""

    async def responder():
        while True:
            m = await worker.receive(kind(Kind.VISITED))
            worker.send(m.source, Message(Kind.CLOSE, m.iteration + 1, worker.rank))

    worker.spawn(responder())
    worker.broadcast(Message(Kind.VISITED, 10 * worker.rank, worker.rank))
    await worker.compute(time.sleep, 0.02, index=1)
    answers = [(await worker.receive(kind(Kind.CLOSE, i))).iteration for i in others(worker)]
    await worker.barrier(worker.workers)
    return answers


async def computing(worker):
    """Results, delays and errors of computations."""
    before = len(worker._trace.spans)
    doubled = await worker.compute(lambda x: 2 * x, 21, index=4)
    free = await worker.compute(lambda: "free", index=4, work=0)
    longer = await worker.compute(time.sleep, 1.5 * DELAY, index=5)
    try:
        await worker.compute(lambda: 1 / 0, index=6)
        error = None
    except ZeroDivisionError as raised:
        error = str(raised)
    spans = worker._trace.spans[before:]
    _, _, iteration, _ = decode(spans["code"])
    seconds = dict(zip(iteration.tolist(), (spans["end"] - spans["start"]).tolist(), strict=True))
    return {"doubled": doubled, "free": free, "longer": longer, "error": error, "seconds": seconds}


async def dropping(worker):
    """Rank 1 interrupts the others: once in their injected delay of 60 s, once in `fn` itself."""
    if worker.rank == 1:
        await worker.compute(time.sleep, 0, index=1)
        worker.broadcast(Message(Kind.THRESHOLD, 1, 1))
        for i in others(worker):
            await worker.receive(kind(Kind.VISITED, i))
        worker.broadcast(Message(Kind.THRESHOLD, 2, 1))
        return None
    ran = []
    start = worker.now()
    first = await worker.compute(
        ran.append, 1, index=100, work=2000, until=kind(Kind.THRESHOLD, iteration=1)
    )
    whole = worker.now() - start

    def slow():
        time.sleep(0.1)
        ran.append(2)

    worker.broadcast(Message(Kind.VISITED, 0, worker.rank))
    second = await worker.compute(slow, index=101, until=kind(Kind.THRESHOLD, iteration=2))
    left = [m.iteration for m in worker.take(kind(Kind.THRESHOLD))]
    unhurt = await worker.compute(lambda: 5, index=102, until=kind(Kind.THRESHOLD))
    return {
        "first": first is INTERRUPTED, "whole": whole, "ran": ran,
        "second": second is INTERRUPTED, "left": left, "unhurt": unhurt,
    }  # fmt: skip


async def sums(worker):
    """crc of the sum over all ranks and over the first two, and of the expected sums."""
    parts = [keyed_rng(SEED, "sum", r, 0).standard_normal(1001, np.float32) for r in worker.workers]
    parts = [part * 10.0 ** (r % 5) for r, part in enumerate(parts)]
    found = [await worker.allreduce(np.float32(parts[worker.rank]), worker.workers)]
    expected = [parts[0].astype(np.float32)]
    for part in parts[1:]:
        expected[0] = expected[0] + np.float32(part)
    if worker.rank < 2:
        found.append(await worker.allreduce(np.float32(parts[worker.rank]), [0, 1]))
        expected.append(np.float32(parts[0]) + np.float32(parts[1]))
    return [[zlib.crc32(v) for v in vectors] for vectors in (found, expected)]


async def meeting(worker):
    """Nobody passes a barrier before the last has come: all have its message then."""
    late = worker.size - 1
    if worker.rank == late:
        await worker.compute(time.sleep, 0.02, index=9)
        worker.broadcast(Message(Kind.STOP, 1, worker.rank))
    await worker.barrier(worker.workers)
    return len(worker.take(kind(Kind.STOP, late)))


async def cut(worker):
    """Random traffic with answers, then a consistent cut: what each has sent and has."""
    rng, sent = worker.rng("cut", SEED), 0

    async def responder():
        nonlocal sent
        while True:
            m = await worker.receive(kind(Kind.VISITED))
            worker.send(m.source, Message(Kind.CLOSE, 0, worker.rank))
            sent += 1

    worker.spawn(responder())
    for _ in range(int(rng.integers(50, 150))):
        dest = int(rng.choice(others(worker)))
        question = rng.random() < 0.3
        vector = None if question else rng.random(DIM, np.float32)
        message = Message(Kind.VISITED if question else Kind.UPDATE, 0, worker.rank, (), vector)
        worker.send(dest, message)
        sent += not question
    await worker.checkpoint(lambda: (sent, len(worker._loop.mailbox)))
    return [*worker._cluster._saver.saved, worker._cluster._saver.commits]


async def events(worker):
    """Whether `now` is the time of the last event of the trace, and its times ascend."""
    first, same = len(worker._trace.events), []
    for k in range(20):
        worker.broadcast(Message(Kind.UPDATE, k, worker.rank))
        for i in others(worker):
            before = len(worker._trace.events)
            await worker.receive(kind(Kind.UPDATE, i, k))
            if len(worker._trace.events) > before:
                same.append(worker.now() == worker._trace.events["time"][-1])
        await worker.compute(int, index=k)
        same.append(worker.now() == worker._trace.events["time"][-1])
    events = worker._trace.events[first:]
    _, kinds, iterations, _ = decode(events["code"])
    return {
        "same": all(same),
        "ascending": bool((np.diff(events["time"]) >= 0).all()),
        "computed": iterations[kinds == Event.COMPUTED].tolist(),
        "arrived": int((kinds == Kind.UPDATE).sum()),
    }


async def weightless(worker):
    """Estimates without content."""
    worker.broadcast(Message(Kind.UPDATE, 1, worker.rank, (4, 5), Weightless(800)))
    worker.broadcast(Message(Kind.CLOSE, 1, worker.rank, (6,)))
    told = [await worker.receive(kind(Kind.UPDATE, i)) for i in others(worker)]
    plain = [await worker.receive(kind(Kind.CLOSE, i)) for i in others(worker)]
    total = await worker.allreduce(told[0].vector, worker.workers)
    return {
        "vectors": all(isinstance(v, Weightless) for v in [total, *(m.vector for m in told)]),
        "bodies": [m.body for m in told + plain],
        "none": all(m.vector is None for m in plain),
    }


class Saver:
    def __init__(self):
        self.saved, self.commits = [], 0

    def save(self, rank, state):
        self.saved.append(state)

    def commit(self, cluster):
        self.commits += 1


class Recorder:
    def record(self, rank, time, event, fields):
        raise AssertionError("nothing is recorded here")


def main():
    from cbdybw.clusters.mpi import MPI, MpiCluster

    def build(dim):
        everybody = [[i for i in range(size) if i != j] for j in range(size)]
        return MpiCluster(
            delay=lambda rank, index: DELAY if index else 0.0, dim=dim, neighbours=everybody,
            seed=SEED, trace=Trace(), recorder=Recorder(), saver=Saver(), stall_timeout=30.0,
        )  # fmt: skip

    size = MPI.COMM_WORLD.size
    cluster, timing = build(DIM), build(0)
    results = {}
    for check in (links, ping_pong, kept_vectors, mailbox, activities, computing, dropping, sums,
                  meeting, cut, events):  # fmt: skip
        results[check.__name__] = cluster.run(check)[cluster.rank]
    results["weightless"] = timing.run(weightless, start=5.0)[cluster.rank]
    results["pool"] = len(cluster._wire._pool)
    kinds = set(decode(cluster.trace.spans["code"])[1].tolist())
    results["spans"] = sorted(Span(span).name for span in kinds)
    gathered = cluster.gather(results)
    if cluster.is_root:
        print(json.dumps(gathered))


with guard():
    main()
