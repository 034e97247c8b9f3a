"""Faults on the virtual cluster: who hears what when, and what becomes of the words of the dead."""

import numpy as np
import pytest

from cbdybw.clusters.faults import Schedule
from cbdybw.clusters.mortality import NOTICED_AFTER
from cbdybw.clusters.network import Network
from cbdybw.clusters.trace import Trace
from cbdybw.clusters.virtual import VirtualCluster
from cbdybw.clusters.watch import DISCONNECT, KILL, PAUSE, SLOW, Fault
from cbdybw.clusters.worker import Kind, Message
from cbdybw.errors import PeerLost
from tests import simulation


class Recorder:
    def __init__(self):
        self.lost = []

    def record(self, rank, time, event, fields):
        if event == "lost":
            self.lost.append((rank, time, fields))


def run(main, size, *faults, network=None, replaces=False):
    recorder = Recorder()
    cluster = VirtualCluster(
        size,
        delay=lambda rank, index: 1.0,
        network=network or Network(),
        seed=0,
        trace=Trace(),
        recorder=recorder,
        faults=Schedule(faults),
        replaces=replaces,
    )
    return cluster.run(main), cluster, recorder


def update(m):
    return m.kind is Kind.UPDATE


def never(m):
    return False


async def sends_every_second(worker):
    """Rank 0 says the time to rank 1, which says when it heard it."""
    heard = []
    for k in range(6):
        if worker.rank == 0:
            await worker.compute(int, index=k)
            worker.send(1, Message(Kind.UPDATE, k, 0, (), np.ones(1, np.float32)))
        else:
            heard.append(((await worker.receive(update)).iteration, worker.now()))
    return heard


@pytest.mark.parametrize("kind", [PAUSE, DISCONNECT])
def test_what_comes_to_a_rank_that_cannot_hear_comes_afterwards_in_order(kind):
    results, *_ = run(sends_every_second, 2, Fault(kind, 1, time=1.5, seconds=2.0))
    assert results[1] == [(0, 1.0), (1, 3.5), (2, 3.5), (3, 4.0), (4, 5.0), (5, 6.0)]


def test_what_a_disconnected_rank_says_leaves_afterwards_in_order():
    results, *_ = run(sends_every_second, 2, Fault(DISCONNECT, 0, time=1.5, seconds=2.5))
    assert results[1] == [(0, 1.0), (1, 4.0), (2, 4.0), (3, 4.0), (4, 5.0), (5, 6.0)]


def test_a_rank_that_stands_still_computes_later_and_one_that_is_slow_longer():
    results, *_ = run(sends_every_second, 2, Fault(PAUSE, 0, time=1.5, seconds=2.0))
    assert [time for _, time in results[1]] == [1, 4, 5, 6, 7, 8]
    slow = Fault(SLOW, 0, iteration=2, seconds=3.0, factor=3.0)
    results, *_ = run(sends_every_second, 2, slow)
    assert [time for _, time in results[1]] == [1, 2, 5, 6, 7, 8]


def test_links_keep_their_order_through_spells_that_end_when_something_comes():
    """Whole seconds: what waits comes at the very instant at which more is said."""

    async def main(worker):
        if worker.rank == 0:
            for k in range(8):
                kind = Kind.UPDATE if k % 2 else Kind.VISITED
                worker.send(1, Message(kind, k, 0))
                await worker.compute(int, index=k)
            return None
        return [(await worker.receive(lambda m: True)).iteration for _ in range(8)]

    faults = [Fault(PAUSE, 1, time=t, seconds=2.0) for t in (0.0, 3.0)]
    for network in (Network(), Network(latency=1.0)):
        results, *_ = run(main, 2, *faults, network=network)
        assert results[1] == list(range(8))


@pytest.mark.parametrize("seed", range(40))
def test_links_keep_their_order_whatever_stands_still_when(seed):
    """Random spells, by time and by iteration, random latencies, ties; a wrong order has its
    seed in the name of the test."""
    rng = np.random.default_rng(seed)
    size, k_end = 3, 25

    async def main(worker):
        heard = []
        for k in range(k_end):
            await worker.compute(int, index=k, work=int(rng.integers(1, 3)) / 2)
            for dest in range(size):
                kind = [Kind.UPDATE, Kind.VISITED, Kind.MODEL][int(rng.integers(3))]
                worker.send(dest, Message(kind, k, worker.rank))
            heard += worker.take(lambda m: True)
        while len(heard) < size * k_end:
            heard.append(await worker.receive(lambda m: True))
        return heard

    faults = []
    for _ in range(8):
        kind, rank = [PAUSE, DISCONNECT][int(rng.integers(2))], int(rng.integers(size))
        seconds = float(rng.choice([0.5, 1.0, 3.0, 0.3]))
        when = int(rng.integers(k_end))
        at = {"iteration": when} if rng.random() < 0.5 else {"time": float(when)}
        faults.append(Fault(kind, rank, seconds=seconds, **at))
    jitter = float(rng.choice([0.0, 0.0, 1.0]))
    network = Network(latency=float(rng.choice([0.0, 0.5, 1.0])), jitter=jitter)
    results, *_ = run(main, size, *faults, network=network)
    for heard in results.values():
        for source in range(size):
            assert [m.iteration for m in heard if m.source == source] == list(range(k_end))


def test_a_rank_that_stands_still_leaves_a_barrier_and_runs_out_of_time_when_it_goes_on():
    async def main(worker):
        await worker.barrier(range(2))
        met = worker.now()
        await worker.receive(never, timeout=0.25)
        return met, worker.now()

    results, *_ = run(main, 2, Fault(PAUSE, 1, time=0.0, seconds=2.0))
    assert results == {0: (0.0, 0.25), 1: (2.0, 2.25)}


def test_a_death_is_known_a_moment_later_and_by_who_stands_still_when_it_goes_on():
    async def main(worker):
        with pytest.raises(PeerLost, match="rank 2 was lost"):
            await worker.receive(never)
        return worker.now()

    pause = Fault(PAUSE, 1, time=0.5, seconds=3.0)
    results, cluster, recorder = run(main, 3, Fault(KILL, 2, time=1.0), pause)
    assert results == {0: 1.0 + NOTICED_AFTER, 1: 3.5}
    assert cluster.lost == [2]
    assert recorder.lost == [(2, 1.0 + NOTICED_AFTER, {"k": 0, "replaced": False})]


def test_nothing_is_heard_of_the_dead_once_their_death_is_known_nor_by_their_successors():
    async def main(worker):
        dest = 0 if worker.rank == 2 else 2
        worker.send(dest, Message(Kind.UPDATE, worker.restarts, worker.rank))
        await worker.compute(int, index=0, work=9)
        return [(m.source, m.iteration) for m in worker.take(update)]

    slow = Network(latency=2.0)
    results, *_ = run(main, 3, Fault(KILL, 2, time=1.0), network=slow, replaces=True)
    assert results == {0: [(2, 1)], 1: [], 2: []}


def test_who_waits_in_a_barrier_is_told_of_a_death_even_if_the_dead_had_come():
    async def main(worker):
        if worker.rank == 1:
            await worker.compute(int, index=0, work=5)
        try:
            await worker.barrier(range(3))
        except PeerLost as loss:
            worker.take(lambda m: m.kind is Kind.PEER_LOST)
            return loss.rank, worker.now()

    results, *_ = run(main, 3, Fault(KILL, 2, time=1.0))
    assert results == {0: (2, 1.0 + NOTICED_AFTER), 1: (2, 5.0)}


def test_a_successor_has_not_come_to_the_barrier_its_predecessor_died_in():
    async def main(worker):
        if worker.restarts:
            await worker.compute(int, index=0, work=8)
        try:
            await worker.barrier(range(2))
        except PeerLost:
            worker.take(lambda m: m.kind is Kind.PEER_LOST)
            await worker.barrier(range(2))
        return worker.now()

    async def late(worker):
        if worker.rank == 0:
            await worker.compute(int, index=0, work=5)
        return await main(worker)

    results, *_ = run(late, 2, Fault(KILL, 1, time=1.0), replaces=True)
    assert results == dict.fromkeys((0, 1), 9.0 + NOTICED_AFTER)


@pytest.mark.parametrize("seed", range(12))
def test_faults_that_never_come_change_nothing(seed):
    """The same trace and parameters to the bit as on a cluster without faults."""
    scenario = simulation.draw(seed)

    class Haunted(VirtualCluster):
        def __init__(self, size, **settings):
            never_comes = Fault(KILL, size - 1, time=1e12)
            super().__init__(size, faults=Schedule((never_comes,)), **settings)

    plain = simulation.run(scenario).sha256()
    simulation.VirtualCluster = Haunted
    try:
        assert simulation.run(scenario).sha256() == plain
    finally:
        simulation.VirtualCluster = VirtualCluster
