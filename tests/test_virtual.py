"""The virtual cluster itself: time, order, waiting, collectives, and how it reports a deadlock."""

import numpy as np
import pytest

from cbdybw.algorithms.plan import message
from cbdybw.clusters.network import Network
from cbdybw.clusters.trace import Event, Span, Trace, decode
from cbdybw.clusters.virtual import VirtualCluster
from cbdybw.clusters.worker import INTERRUPTED, Kind, Message, keyed_rng
from cbdybw.errors import Stalled


class Notes:
    """A recorder and a saver that keep what they are told."""

    def __init__(self):
        self.records, self.saved, self.commits = [], [], []

    def record(self, rank, time, event, fields):
        self.records.append((rank, time, event, fields))

    def save(self, rank, state):
        self.saved.append((rank, state))

    def commit(self, cluster):
        self.commits.append(cluster.time)


def new_cluster(size, delay=lambda rank, index: 1.0, notes=None, **network):
    notes = notes or Notes()
    return VirtualCluster(
        size, delay=delay, network=Network(**network), seed=5, trace=Trace(), recorder=notes,
        saver=notes,
    )  # fmt: skip


def run(size, main, delay=lambda rank, index: 1.0, start=0.0, **network):
    return new_cluster(size, delay, **network).run(main, start)


def of_kind(*kinds):
    return lambda m: m.kind in kinds


def anything(m):
    return True


async def computing(worker, index=0, **kwargs):
    return await worker.compute(lambda: "done", index=index, **kwargs)


# Time


def test_a_computation_lasts_as_long_as_its_rank_and_index_say():
    async def main(worker):
        await computing(worker, 3)
        first = worker.now()
        await computing(worker, 4, work=2.5)
        return first, worker.now()

    law = {(0, 3): 1.0, (0, 4): 2.0, (1, 3): 0.5, (1, 4): 0.0}
    done = run(2, main, lambda rank, index: law[rank, index], start=10.0)
    assert done == {0: (11.0, 16.0), 1: (10.5, 10.5)}


def test_a_computation_without_work_is_free_and_returns_its_result():
    async def main(worker):
        return await worker.compute(lambda a, b: a - b, 7, 3, index=0, work=0), worker.now()

    assert run(1, main) == {0: (4, 0.0)}


def test_recording_costs_no_time_and_tells_when():
    notes = Notes()

    async def main(worker):
        await computing(worker)
        worker.record("skip", k=4, used=True)
        return worker.now()

    assert new_cluster(1, notes=notes).run(main) == {0: 1.0}
    assert notes.records == [(0, 1.0, "skip", {"k": 4, "used": True})]


def test_generators_are_keyed_by_seed_purpose_rank_and_index():
    async def main(worker):
        return worker.rng("init", 9).random()

    draws = run(2, main)
    assert draws == {rank: keyed_rng(5, "init", rank, 9).random() for rank in (0, 1)}
    assert draws[0] != draws[1]


# Order within an instant


def test_at_equal_times_data_comes_before_control():
    async def main(worker):
        await computing(worker)
        if worker.rank == 0:  # the first to act at time 1
            worker.send(2, Message(Kind.THRESHOLD, 0, 0))
        elif worker.rank == 1:
            worker.send(2, Message(Kind.UPDATE, 0, 1))
        return [(await worker.receive(anything)).kind for _ in range(2 * (worker.rank == 2))]

    for network in ({}, {"latency": 0.5}):
        assert run(3, main, **network)[2] == [Kind.UPDATE, Kind.THRESHOLD]


def test_a_worker_that_finishes_when_control_comes_in_has_finished_before():
    async def main(worker):
        if worker.rank == 0:
            await computing(worker)
            worker.send(1, Message(Kind.THRESHOLD, 0, 0))
            return None
        return await computing(worker, until=of_kind(Kind.THRESHOLD)), worker.now()

    delays = {0: 1.0, 1: 3.0}
    assert run(2, main, lambda rank, _: delays[rank], latency=2.0)[1] == ("done", 3.0)
    assert run(2, main, lambda rank, _: 1.0)[1] == ("done", 1.0)
    assert run(2, main, lambda rank, _: delays[rank], latency=1.9)[1] == (INTERRUPTED, 2.9)


@pytest.mark.parametrize("network", [{}, {"latency": 1.0}, {"jitter": 1.0}, {"bandwidth": 99.0}])
def test_data_never_overtakes_what_its_sender_said_before(network):
    kinds = [Kind.CLOSE, Kind.UPDATE, Kind.THRESHOLD, Kind.UPDATE, Kind.UPDATE, Kind.VISITED]

    async def main(worker):
        if worker.rank == 0:
            for k, kind in enumerate(kinds):
                worker.send(1, Message(kind, k, 0))
            return None
        await computing(worker)
        return [(await worker.receive(anything)).iteration for _ in kinds]

    assert run(2, main, **network)[1] == list(range(6))


# Messages


def test_a_message_to_oneself_arrives_at_once_behind_the_data_of_this_instant():
    async def main(worker):
        await computing(worker)
        if worker.rank == 0:
            worker.send(0, Message(Kind.THRESHOLD, 0, 0))
            return [(await worker.receive(anything)).kind for _ in range(2)], worker.now()
        return worker.send(0, Message(Kind.UPDATE, 0, 1))

    assert run(2, main)[0] == ([Kind.UPDATE, Kind.THRESHOLD], 1.0)

    async def alone(worker):
        worker.send(0, Message(Kind.THRESHOLD, 0, 0))
        worker.send(0, Message(Kind.UPDATE, 1, 0))
        return [(await worker.receive(anything)).kind for _ in range(2)], worker.now()

    assert run(1, alone, latency=7.0)[0] == ([Kind.THRESHOLD, Kind.UPDATE], 0.0)


def test_a_broadcast_reaches_everybody_but_its_sender():
    async def main(worker):
        if worker.rank == 1:
            worker.broadcast(Message(Kind.THRESHOLD, 6, 1, (2,)))
        await computing(worker)
        return [(m.iteration, m.source, m.body) for m in worker.take(anything)]

    for network in ({}, {"latency": 0.1}):
        assert run(3, main, **network) == {0: [(6, 1, (2,))], 1: [], 2: [(6, 1, (2,))]}


def test_the_receiver_gets_the_very_vector_that_was_sent():
    vector = np.arange(3, dtype=np.float32)

    async def main(worker):
        if worker.rank == 0:
            worker.send(1, Message(Kind.UPDATE, 0, 0, vector=vector))
            return None
        return (await worker.receive(anything)).vector

    assert run(2, main)[1] is vector


def test_receive_gives_the_oldest_that_matches_and_leaves_the_rest():
    async def main(worker):
        if worker.rank == 0:
            for k, kind in enumerate([Kind.CLOSE, Kind.VISITED, Kind.CLOSE, Kind.VISITED]):
                worker.send(1, Message(kind, k, 0))
            return None
        await computing(worker)
        visited = await worker.receive(of_kind(Kind.VISITED))
        taken = worker.take(of_kind(Kind.CLOSE))
        rest = worker.take(anything)
        return [[m.iteration for m in ms] for ms in ([visited], taken, rest, worker.take(anything))]

    assert run(2, main)[1] == [[1], [0, 2], [3], []]


def test_a_timeout_gives_none_at_its_time():
    async def main(worker):
        if worker.rank == 0:
            await computing(worker)
            worker.send(1, Message(Kind.CLOSE, 0, 0))
            return None
        early = await worker.receive(anything, timeout=0.25)
        at = worker.now()
        late = await worker.receive(anything, timeout=5.0)
        return early, at, late.kind, worker.now()

    assert run(2, main)[1] == (None, 0.25, Kind.CLOSE, 1.0)


def test_a_message_at_the_very_instant_of_a_timeout_comes_first():
    async def main(worker):
        if worker.rank == 0:
            await computing(worker)
            worker.send(1, Message(Kind.CLOSE, 0, 0))
            return None
        return (await worker.receive(anything, timeout=1.0)).kind

    assert run(2, main)[1] == Kind.CLOSE


def test_the_timer_of_an_earlier_receive_does_not_ring_in_a_later_one():
    async def main(worker):
        if worker.rank == 0:
            for index in range(2):
                await computing(worker, index)
                worker.send(1, Message(Kind.CLOSE, index, 0))
            return None
        await worker.receive(anything, timeout=1.5)
        second = await worker.receive(anything, timeout=9.0)  # the same match object
        return second.iteration, worker.now()

    assert run(2, main)[1] == (1, 2.0)


# Interrupting


def test_what_interrupts_a_computation_is_left_for_receive():
    async def main(worker):
        if worker.rank == 0:
            await computing(worker)
            worker.send(1, Message(Kind.VISITED, 0, 0))
            worker.send(1, Message(Kind.THRESHOLD, 0, 0))
            return None
        got = await computing(worker, until=of_kind(Kind.THRESHOLD))
        return got, worker.now(), [m.kind for m in worker.take(anything)]

    law = {0: 1.0, 1: 8.0}
    found = run(2, main, lambda rank, _: law[rank])[1]
    assert found == (INTERRUPTED, 1.0, [Kind.VISITED, Kind.THRESHOLD])


def test_a_computation_is_interrupted_at_once_by_what_is_here_already():
    ran = []

    async def main(worker):
        worker.send(0, Message(Kind.THRESHOLD, 0, 0))
        await computing(worker)
        got = await worker.compute(ran.append, 1, index=1, until=of_kind(Kind.THRESHOLD))
        return got, worker.now()

    assert run(1, main)[0] == (INTERRUPTED, 1.0)
    assert ran == []


def test_the_end_of_an_interrupted_computation_does_not_end_the_next():
    async def main(worker):
        if worker.rank == 0:
            await computing(worker)
            worker.send(1, Message(Kind.THRESHOLD, 0, 0))
            return None
        await computing(worker, 0, until=of_kind(Kind.THRESHOLD))  # would have ended at 3
        worker.take(anything)
        got = await computing(worker, 1, until=of_kind(Kind.THRESHOLD))
        return got, worker.now()

    law = {(0, 0): 1.0, (1, 0): 3.0, (1, 1): 9.0}
    assert run(2, main, lambda rank, index: law[rank, index])[1] == ("done", 10.0)


def test_interrupted_computations_do_not_fill_the_memory():
    longest = []

    async def main(worker):
        for k in range(500):
            if worker.rank == 0:
                await computing(worker, k)
                worker.broadcast(Message(Kind.THRESHOLD, k, 0))
                longest.append(len(cluster._heap))
            else:
                await computing(worker, k, until=of_kind(Kind.THRESHOLD))
                worker.take(anything)

    cluster = new_cluster(10, lambda rank, _: 1e9 if rank else 1.0)
    cluster.run(main)
    assert max(longest) < 40


# Several activities, and ends


def test_a_spawned_activity_runs_beside_the_main_one_and_ends_with_it():
    heard, closed = [], []

    async def listen(worker):
        try:
            while True:
                heard.append((await worker.receive(of_kind(Kind.CLOSE))).iteration)
        finally:
            closed.append(worker.now())

    async def main(worker):
        if worker.rank == 0:
            for k in range(3):
                worker.send(1, Message(Kind.CLOSE, k, 0))
                await computing(worker, k)
        else:
            worker.spawn(listen(worker))
            await computing(worker)
            await computing(worker)

    run(2, main)
    assert heard == [0, 1]  # the main one ends before control of the same instant comes in
    assert closed == [2.0]


def test_a_spawned_activity_may_end_before_the_main_one():
    done = []

    async def brief(worker):
        await computing(worker)
        done.append(worker.now())

    async def main(worker):
        for _ in range(3):
            worker.spawn(brief(worker))
            await computing(worker)
        return "main"

    assert run(1, main) == {0: "main"}
    assert done == [1.0, 2.0]  # the third ends with the main one, which is first in that instant


def test_a_timer_of_an_activity_that_has_ended_rings_for_nobody():
    async def listen(worker):
        await worker.receive(anything, timeout=2.0)

    async def main(worker):
        if worker.rank == 0:
            worker.spawn(listen(worker))
        await computing(worker)
        return worker.now()

    assert run(2, main, lambda rank, _: 1.0 if rank == 0 else 5.0) == {0: 1.0, 1: 5.0}


def test_messages_to_a_finished_worker_are_recorded_and_dropped():
    async def main(worker):
        if worker.rank == 0:
            await computing(worker)
            worker.send(1, Message(Kind.CLOSE, 0, 0, vector=np.zeros(9, np.float32)))
            await computing(worker)

    cluster = new_cluster(2)
    cluster.run(main)
    assert Kind.CLOSE in decode(cluster.trace.events["code"])[1]
    assert cluster._nodes[1]._mailbox == []


def test_an_error_in_one_worker_ends_the_run_and_closes_the_others():
    closed = []

    async def main(worker):
        try:
            await computing(worker)
            if worker.rank == 1:
                raise ZeroDivisionError("in rank 1")
            await worker.receive(anything)
        finally:
            closed.append(worker.rank)

    with pytest.raises(ZeroDivisionError, match="in rank 1"):
        run(3, main)
    assert sorted(closed) == [0, 1, 2]


# Deadlock


def test_a_deadlock_names_who_waits_for_what():
    async def main(worker):
        await computing(worker)
        if worker.rank == 0:
            await worker.receive(message(Kind.UPDATE, 3, source=1))
        elif worker.rank == 1:
            await worker.barrier(range(2))

    with pytest.raises(Stalled) as error:
        run(3, main)
    text = str(error.value)
    assert "no event is left at 1 s" in text
    assert "rank 0 waits for message(k=3, kind=<Kind.UPDATE: 0>, source=1)" in text
    assert "rank 1 waits for the others in a barrier" in text
    assert "rank 2" not in text


def test_a_cluster_of_workers_that_all_end_is_no_deadlock():
    async def main(worker):
        return worker.rank

    assert run(3, main) == {0: 0, 1: 1, 2: 2}


# Collectives


def test_a_barrier_lets_nobody_go_before_the_last_has_come():
    async def main(worker):
        await computing(worker)
        if worker.rank != 1:
            await worker.barrier([0, 2])
        return worker.now()

    law = {0: 1.0, 1: 2.0, 2: 5.0}
    assert run(3, main, lambda rank, _: law[rank]) == {0: 5.0, 1: 2.0, 2: 5.0}
    assert run(3, main, lambda rank, _: law[rank], latency=0.5)[0] == 5.5  # one round of two


def test_allreduce_sums_in_rank_order_and_takes_the_time_of_a_ring():
    vectors = {rank: np.array(x, np.float32) for rank, x in enumerate([[1e8], [1.0], [-1e8]])}

    async def main(worker):
        await computing(worker)
        return (await worker.allreduce(vectors[worker.rank], worker.workers)), worker.now()

    law = {0: 3.0, 1: 2.0, 2: 1.0}  # they arrive in the opposite order
    done = run(3, main, lambda rank, _: law[rank], latency=0.1, bandwidth=4.0)
    expected = (vectors[0] + vectors[1]) + vectors[2]
    for total, time in done.values():
        assert total.tobytes() == expected.tobytes()
        assert time == pytest.approx(3.0 + 2 * 2 * (0.1 + 4 / 3 / 4.0))


def test_a_cut_waits_for_messages_under_way_and_saves_each_worker_once():
    notes = Notes()

    async def main(worker):
        await computing(worker)
        if worker.rank == 1:
            worker.send(0, Message(Kind.VISITED, 0, 1))
        await worker.checkpoint(lambda: [m.kind for m in worker.take(anything)])
        return worker.now()

    assert new_cluster(2, notes=notes, latency=4.0).run(main) == {0: 5.0, 1: 5.0}
    assert notes.saved == [(0, [Kind.VISITED]), (1, [])]
    assert notes.commits == [5.0]


@pytest.mark.parametrize("network", [{}, {"links": {(1, 0): (1.0, 1.0)}}])
def test_links_are_as_new_behind_a_cut(network):
    async def main(worker):
        if worker.rank == 0:
            worker.send(1, Message(Kind.CLOSE, 0, 0))  # control, at the instant of the cut
        await worker.checkpoint(lambda: None)
        if worker.rank == 0:
            worker.send(1, Message(Kind.UPDATE, 1, 0))
        await computing(worker, 0)
        return [m.kind for m in worker.take(anything)]

    cluster = new_cluster(2, lambda rank, _: 0.0, **network)
    assert cluster.run(main)[1] == [Kind.CLOSE, Kind.UPDATE]
    kinds = decode(cluster.trace.events["code"])[1].tolist()
    assert kinds.index(Kind.UPDATE) < kinds.index(Event.COMPUTED)  # delivered there and then


# Trace


def test_the_trace_has_all_spans_and_events_in_order():
    async def main(worker):
        await computing(worker, 7)
        if worker.rank == 0:
            worker.send(1, Message(Kind.UPDATE, 7, 0))
        else:
            await worker.receive(anything)
        worker.record("average", k=7, active=())

    law = {0: 2.0, 1: 1.0}
    cluster = new_cluster(2, lambda rank, _: law[rank], latency=0.5)
    cluster.run(main)
    spans, events = cluster.trace.spans, cluster.trace.events
    rank, kind, iteration, _ = (column.tolist() for column in decode(spans["code"]))
    times = spans["start"].tolist(), spans["end"].tolist()
    assert list(zip(rank, kind, iteration, *times, strict=True)) == [
        (1, Span.COMPUTE, 7, 0.0, 1.0),
        (0, Span.COMPUTE, 7, 0.0, 2.0),
        (0, Span.AVERAGE, 7, 2.0, 2.0),
        (1, Span.WAIT, 7, 1.0, 2.5),
        (1, Span.AVERAGE, 7, 2.5, 2.5),
    ]
    columns = (column.tolist() for column in decode(events["code"]))
    assert list(zip(events["time"].tolist(), *columns, strict=True)) == [
        (1.0, 1, Event.COMPUTED, 7, 1),
        (2.0, 0, Event.COMPUTED, 7, 0),
        (2.5, 1, Kind.UPDATE, 7, 0),
    ]
