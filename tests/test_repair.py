"""Meetings after a loss, and plans of those who are left."""

import networkx as nx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cbdybw.algorithms.plan import Plan
from cbdybw.algorithms.repair import END, Living
from cbdybw.clusters.faults import Schedule
from cbdybw.clusters.network import Network
from cbdybw.clusters.trace import Trace
from cbdybw.clusters.virtual import VirtualCluster
from cbdybw.clusters.watch import KILL, PAUSE, Fault
from cbdybw.clusters.worker import Kind, Message
from cbdybw.errors import FallenApart, PeerLost


class Silent:
    def record(self, rank, time, event, fields):
        """Nothing is looked at."""


def run(main, size, *faults, links=None, replaces=False, latency=0.0):
    cluster = VirtualCluster(
        size,
        delay=lambda rank, index: 1.0,
        network=Network(latency=latency, links=links),
        seed=0,
        trace=Trace(),
        recorder=Silent(),
        faults=Schedule(faults),
        replaces=replaces,
    )
    return cluster.run(main), cluster


def never(m):
    return False


async def survives(worker, living):
    """Wait for a loss, and take it in."""
    try:
        await worker.receive(never)
    except PeerLost as loss:
        living.outlive(loss)


def test_all_who_live_hear_the_same_at_a_meeting():
    async def main(worker):
        living = Living(worker)
        await survives(worker, living)
        told = await living.meet(10 + worker.rank, worker.rank**2)
        return told, living.lost, living.ranks, living.met

    results, _ = run(main, 5, Fault(KILL, 3, time=1.0), latency=0.1)
    for result in results.values():
        assert result == ({r: (10 + r, r * r) for r in (0, 1, 2, 4)}, [3], [0, 1, 2, 4], 1)
    assert results.keys() == {0, 1, 2, 4}


def test_a_death_during_a_meeting_is_news_to_it():
    async def main(worker):
        living = Living(worker)
        await survives(worker, living)
        return sorted(await living.meet(worker.rank)), living.met

    results, _ = run(main, 5, Fault(KILL, 3, time=1.0), Fault(KILL, 2, time=1.05), latency=0.1)
    assert results == dict.fromkeys((0, 1, 4), ([0, 1, 4], 2))


def test_what_was_said_before_a_loss_is_dropped_and_what_is_said_after_it_stays():
    async def main(worker):
        living = Living(worker)
        for dest in range(worker.size):
            if dest != worker.rank:
                worker.send(dest, Message(Kind.UPDATE, 1, worker.rank))
        await survives(worker, living)
        await living.meet(0)
        for dest in living.ranks:
            if dest != worker.rank:
                worker.send(dest, Message(Kind.UPDATE, 2, worker.rank))
        await worker.receive(never, timeout=50.0)
        return sorted((m.iteration, m.source) for m in worker.take(lambda m: m.kind < 8))

    links = {(3, 1): (20.0, np.inf), (0, 2): (7.0, np.inf)}
    results, _ = run(main, 4, Fault(KILL, 3, time=1.0), links=links, latency=0.1)
    assert results == {0: [(2, 1), (2, 2)], 1: [(2, 0), (2, 2)], 2: [(2, 0), (2, 1)]}


def test_the_root_lets_all_go_when_all_have_said_end():
    async def main(worker):
        await worker.compute(int, index=0, work=worker.rank)
        done = await Living(worker).part()
        return done, worker.now()

    results, _ = run(main, 3, latency=0.5)
    assert results == {0: (True, 2.5), 1: (True, 3.0), 2: (True, 3.0)}


def test_who_has_nothing_left_to_do_comes_to_a_meeting_that_others_call():
    async def main(worker):
        living = Living(worker)
        if worker.rank != 2:
            first = await living.part()
        else:
            first = None
            await survives(worker, living)
        told = await living.meet(worker.rank)
        return first, sorted(told), await living.part()

    results, _ = run(main, 4, Fault(KILL, 3, time=1.0), latency=0.1)
    met = [0, 1, 2]
    assert results == {0: (False, met, True), 1: (False, met, True), 2: (None, met, True)}


def test_a_death_is_none_of_the_business_of_those_who_have_all_ended():
    async def main(worker):
        if worker.rank == 2:
            await worker.receive(never)
        return await Living(worker).part()

    results, cluster = run(main, 3, Fault(KILL, 2, time=1.0))
    assert (results, cluster.lost) == ({0: True, 1: True}, [2])


def test_nobody_takes_the_place_of_who_dies_when_the_root_has_ended_the_run():
    async def main(worker):
        living = Living(worker, replaced=True)
        return await living.part() or await living.meet(0)

    far = {(0, 2): (1.0, np.inf)}
    results, cluster = run(main, 3, Fault(KILL, 2, time=0.9), links=far, replaces=True)
    assert (results, cluster.lost) == ({0: True, 1: True}, [2])


def test_whoever_waits_in_a_meeting_when_the_root_ends_the_run_is_told():
    """Rank 1 hears of the death before it hears that the run is over."""

    async def main(worker):
        living = Living(worker, replaced=True)
        if await living.part():
            return "over"
        return await living.meet(0)

    slow = {(0, 1): (1.0, np.inf), (0, 2): (1.0, np.inf)}
    results, cluster = run(main, 3, Fault(KILL, 2, time=0.9), links=slow, replaces=True)
    assert (results, cluster.lost) == ({0: "over", 1: {}}, [2])


def test_an_end_of_before_the_last_meeting_does_not_count():
    async def main(worker):
        living = Living(worker)
        if worker.rank == 1:
            worker.send(0, Message(END, 0, 1, (0,)))
        await survives(worker, living)
        await living.meet(0)
        if worker.rank == 1:
            await worker.compute(int, index=0, work=5)
        assert await living.part()
        return worker.now()

    results, _ = run(main, 3, Fault(KILL, 2, time=1.0), latency=0.1)
    assert results[0] > 6


def test_the_loss_of_the_root_is_the_end():
    async def main(worker):
        Living(worker).outlive(PeerLost(0))

    with pytest.raises(PeerLost, match="rank 0 was lost"):
        run(main, 2)


def test_a_rank_that_stands_still_comes_late_to_the_meeting_and_all_wait_for_it():
    async def main(worker):
        living = Living(worker)
        await survives(worker, living)
        told = await living.meet(0)
        return sorted(told), worker.now()

    pause = Fault(PAUSE, 1, time=0.5, seconds=3.0)
    results, _ = run(main, 4, Fault(KILL, 3, time=1.0), pause)
    assert results == dict.fromkeys((0, 1, 2), ([0, 1, 2], 3.5))


# Plans of the living


@given(st.integers(0, 10**6), st.data())
@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
def test_the_living_have_the_edges_among_them_and_a_path_that_connects_them(seed, data):
    graph = nx.gnp_random_graph(7, 0.5, seed=seed)
    plan = Plan([tuple(sorted(graph[j])) for j in range(7)], (), 0, float, 1)
    living = sorted({0, *data.draw(st.sets(st.integers(1, 6)))})
    left = graph.subgraph(living)
    if not nx.is_connected(left):
        with pytest.raises(FallenApart, match="no path connects the living workers 0"):
            plan.among(living)
        return
    here = plan.among(living)
    assert here.members == tuple(living)
    assert set(here.edges) == {tuple(sorted(e)) for e in left.edges}
    tree = nx.Graph(here.connecting)
    assert len(here.connecting) == len(living) - 1
    if len(living) > 1:
        assert set(tree) == set(living)
        assert nx.is_connected(tree)
        assert all(left.has_edge(*edge) for edge in here.connecting)
