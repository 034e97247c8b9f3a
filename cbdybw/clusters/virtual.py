"""All workers in one process on a virtual clock: a heap of events, the same run every time.

Time passes only while workers compute and messages travel. Whatever happens at one instant happens
in a fixed order: ends of computations and data first, control messages after, each in the order
caused. So a worker that finishes exactly at θ(k) has finished by θ(k).
"""

from __future__ import annotations

import gc
import heapq
import math
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from cbdybw.clusters.batching import InFlight
from cbdybw.clusters.instants import CONTROL, DATA, LATE
from cbdybw.clusters.mortality import Mortality
from cbdybw.clusters.network import Network, Then
from cbdybw.clusters.trace import Event, Span, Trace
from cbdybw.clusters.virtual_worker import Activity, Alarm, Killed, VirtualWorker, suspend
from cbdybw.clusters.worker import FIRST_CONTROL, Match, Message, Worker, describe
from cbdybw.errors import Interrupted, PeerLost, Stalled

if TYPE_CHECKING:
    from cbdybw.clusters.faults import Schedule


class Recorder(Protocol):
    """Who is told what the workers record."""

    def record(self, rank: int, time: float, event: str, fields: dict[str, Any]) -> None: ...


class Saver(Protocol):
    """Who keeps the workers' states at a consistent cut."""

    def save(self, rank: int, state: Any) -> None: ...

    def commit(self, cluster: Any) -> None: ...


@contextmanager
def _rare_garbage_collection() -> Iterator[None]:
    """A run makes millions of containers and hardly a cycle: look for cycles less often."""
    usual = gc.get_threshold()
    gc.set_threshold(100 * usual[0], *usual[1:])
    try:
        yield
    finally:
        gc.set_threshold(*usual)


class Arrival(NamedTuple):
    """Somebody has come to a collective with a value."""

    activity: Activity
    value: Any
    start: float


def total(values: Sequence[np.ndarray | None]) -> np.ndarray | None:
    """The sum in the order given; None for barriers, whose members bring nothing."""
    result, *rest = values
    for value in rest:
        result = result + value if value is not None else None
    return result


class VirtualCluster:
    """`size` processes on one virtual clock, the last `servers` of them parameter servers.

    Args:
        delay: (rank, iteration) → seconds of one minibatch; see `clusters.delays`.
        network: how long messages travel; see `clusters.network`.
        batch: evaluate calls that are in flight at the same time together, where their function
            knows how; results are the same within rounding. See `clusters.batching`.
        faults: what strikes whom, and when.
        replaces, corrupt: see `clusters.mortality`.
        warned: whether the run is to stop at its next cut: Interrupted.

    Attributes:
        lost: ranks that have died and were not replaced.
    """

    process, is_root, allreduce_by = 0, True, "ring model"

    def __init__(
        self,
        size: int,
        *,
        delay: Callable[[int, int], float],
        network: Network,
        seed: int,
        trace: Trace,
        recorder: Recorder,
        servers: int = 0,
        saver: Saver | None = None,
        batch: bool = False,
        faults: Schedule | None = None,
        replaces: bool = False,
        corrupt: Callable[[int], None] | None = None,
        warned: Callable[[], bool] = lambda: False,
    ):
        self.size, self.seed, self.trace = size, seed, trace
        self.workers, self.servers = range(size - servers), range(size - servers, size)
        self.ranks = range(size)
        self.time = 0.0
        self._span, self._event = trace.span, trace.event
        self._delay, self._network, self._recorder, self._saver = delay, network, recorder, saver
        self._warned = warned
        self._begin = InFlight().begin if batch else None
        self._heap: list[tuple[float, int, Callable, Any]] = []
        self._number = 0  # of the events so far: ties are broken by age
        self._called_off = 0  # alarms that are still in the heap
        self._ready: deque[tuple[Activity, Any]] = deque()
        self._arrivals: dict[tuple, list[Arrival]] = {}  # of open collectives
        self._running: Activity
        self._unfinished = 0
        self._last_arrival = 0.0  # of any message of which it is known
        self._expected = 0  # the number of the last word on who passes shared cards next
        self._mortality = Mortality(self, replaces, corrupt) if faults else None
        self._deaths = self._mortality.deaths if faults else {}
        self.lost: list[int] = []
        self._nodes = [
            VirtualWorker(self, rank, faults.of(rank) if faults else None) for rank in self.ranks
        ]

    def run(self, main: Callable[[Worker], Coroutine], start: float = 0.0) -> dict[int, Any]:
        """Run `main(worker)` on every rank from time `start`; each rank's result.

        Those that have died and were not replaced have none. Raises Stalled when every worker waits
        and nothing is under way, PeerLost when nobody goes on without who has died, and whatever
        else an activity raises.
        """
        self.time, self._main = start, main
        self._unfinished, self._results = self.size, {}
        for node in self._nodes:
            self._start(node, main(node))
            if self._mortality is not None:
                self._mortality.watch_the_clock(node)
        try:
            with _rare_garbage_collection():
                self._loop()
        except PeerLost as loss:
            when = f"in iteration {self._nodes[loss.rank]._iteration}"
            loss.add_note(f"rank {loss.rank} was lost {when}; the run ends")
            raise
        finally:
            for node in self._nodes:
                node._close()
        return dict(sorted(self._results.items()))

    def gather(self, value: Any) -> list[Any]:
        """The values of all processes: there is one."""
        return [value]

    def _start(self, worker: VirtualWorker, coroutine: Coroutine) -> Activity:
        activity = Activity(worker, coroutine)
        worker._activities.append(activity)
        self._ready.append((activity, None))
        return activity

    def _loop(self) -> None:
        heap, ready = self._heap, self._ready
        pop, take = heapq.heappop, ready.popleft
        while True:
            while ready:
                activity, value = take()
                if activity.over:
                    continue
                self._running = activity
                try:
                    if type(value) is PeerLost:
                        activity.coroutine.throw(value)
                    else:
                        activity.coroutine.send(value)
                except StopIteration as end:
                    self._end(activity, end.value)
                except Killed:
                    self._mortality.bury(activity.worker)
            if not self._unfinished:
                return
            if not heap:
                raise Stalled(self._report())
            self.time, _, action, argument = pop(heap)
            action(argument)

    def _end(self, activity: Activity, result: Any) -> None:
        if activity is activity.worker._activities[0]:
            self._results[activity.worker.rank] = result
            self._unfinished -= 1
            activity.worker._finish()
        else:
            activity.worker._activities.remove(activity)

    def _at(self, time: float, place: int, action: Callable, argument: Any) -> None:
        self._number += 1
        heapq.heappush(self._heap, (time, place + self._number, action, argument))

    # Computing and waiting

    def _compute(self, worker: VirtualWorker, index: int, work: float, until: Match | None) -> None:
        """Resume the running activity with True at the end of its computation, with False when
        `until` matches first.
        """
        activity = self._running
        activity.waits = "the end of its computation"
        end = self.time + work * self._delay(worker.rank, index)
        if worker._watch is not None:
            end = worker._watch.finish(self.time, end - self.time)
        if until is None:
            self._at(end, DATA, self._ready.append, (activity, True))
        elif any(map(until, worker._mailbox)):
            self._ready.append((activity, False))
        else:
            alarm = Alarm(activity, until)
            worker._computing.append(alarm)
            self._at(end, DATA, self._computed, alarm)

    def _computed(self, alarm: Alarm) -> None:
        if alarm.activity is None:
            self._called_off -= 1
        elif not alarm.activity.over:
            alarm.activity.worker._computing.remove(alarm)
            self._ready.append((alarm.activity, True))

    def _interrupt(self, alarm: Alarm) -> None:
        self._ready.append((alarm.activity, False))
        self._call_off(alarm)

    async def _until_timeout(self, activity: Activity, timeout: float) -> Message | None:
        """The message that `activity` waits for, or None."""
        alarm = Alarm(activity)
        self._at(self.time + timeout, LATE, self._ring, alarm)
        try:
            message = await suspend()
        except PeerLost:
            self._call_off(alarm)
            raise
        if message is not None:
            self._call_off(alarm)
        return message

    def _ring(self, alarm: Alarm) -> None:
        if alarm.activity is None:
            self._called_off -= 1
            return
        worker = alarm.activity.worker
        if alarm.activity.over:
            return
        if worker._watch is not None and (at := worker._watch.wakes(self.time)) > self.time:
            self._at(at, LATE, self._ring, alarm)
            return
        worker._waiting.remove(alarm.activity)
        self.trace.event(worker.rank, self.time, Event.TIMEOUT, 0, worker.rank)
        self._ready.append((alarm.activity, None))

    def _call_off(self, alarm: Alarm) -> None:
        """Its event stays in the heap, until such events are the most there."""
        alarm.activity = None
        self._called_off += 1
        if 2 * self._called_off > len(self._heap):
            self._heap[:] = [
                event
                for event in self._heap
                if not (isinstance(event[3], Alarm) and event[3].activity is None)
            ]
            heapq.heapify(self._heap)
            self._called_off = 0

    # Messages

    def _post(self, sender: VirtualWorker, dest: int, message: Message) -> None:
        if self._mortality is not None:
            self._mortality.post(sender, dest, message)
            return
        now, control = self.time, message.kind >= FIRST_CONTROL
        if self._network.instant or dest == sender.rank:
            if control:
                sender._control_sent = now
            elif sender._control_sent != now:
                worker = self._nodes[dest]
                worker._event(dest, now, message.kind, message.iteration, message.source)
                worker._put(message)
                return
            # Data does not overtake what its sender said at this very instant.
            self._at(now, CONTROL, self._deliver, (self._nodes[dest], message))
            return
        delivery = self._nodes[dest], message
        if self._network.shares:
            then = partial(self._arrives, delivery)
            self._share(sender.rank, dest, message, then)
        else:
            self._arrives(delivery, *self._network.arrival(sender.rank, dest, message, now))

    def _arrives(self, delivery: tuple[VirtualWorker, Message], at: float, behind: bool) -> None:
        """It is known when a message arrives."""
        self._last_arrival = max(self._last_arrival, at)
        control = behind or delivery[1].kind >= FIRST_CONTROL
        self._at(at, CONTROL if control else DATA, self._deliver, delivery)

    def _share(self, source: int, dest: int, message: Message, then: Then) -> None:
        """Send a message over cards that are shared; `then` is told when it arrives, once it is
        through: what is sent in the meantime changes that."""
        self._network.share(source, dest, message, self.time, then)
        self._expect()

    def _expect(self) -> None:
        """Have the next message pass the cards; what was expected before is called off."""
        self._expected += 1
        if self._network.next < math.inf:
            self._at(self._network.next, DATA, self._through, self._expected)

    def _through(self, number: int) -> None:
        if number == self._expected:
            for then, at, behind in self._network.through(self.time):
                then(at, behind)
            self._expect()

    def _post_all(self, sender: VirtualWorker, message: Message) -> None:
        one_by_one = self._mortality is not None and not self._mortality.calm()
        if one_by_one or not self._network.instant:
            for dest in self.ranks:
                if dest != sender.rank:
                    self._post(sender, dest, message)
            return
        sender._control_sent = self.time
        self._at(self.time, CONTROL, self._deliver_all, message)

    def _deliver(self, delivery: tuple[VirtualWorker, Message]) -> None:
        worker, message = delivery
        self.trace.event(worker.rank, self.time, message.kind, message.iteration, message.source)
        worker._put(message)

    def _deliver_all(self, message: Message) -> None:
        self.trace.broadcast(self.size, self.time, message.kind, message.iteration, message.source)
        for worker in self._nodes:
            if worker.rank != message.source:
                worker._put(message)

    # Collectives

    async def _collective(
        self, worker: VirtualWorker, kind: str, group: Sequence[int], value: Any
    ) -> Any:
        """Wait until all ranks of the group have come with their value; the combined value."""
        activity = self._running
        activity.waits = f"the others in a {kind}"
        key = kind, group if isinstance(group, range) else tuple(group)
        arrivals = self._arrivals.setdefault(key, [])
        if self._deaths:
            worker._mourn()
        arrivals.append(Arrival(activity, value, self.time))
        self._look_at(key)
        return await suspend()

    def _look_at(self, key: tuple[str, Sequence[int]]) -> None:
        """Whether all who live have come: then they go on, when the time model says so."""
        (kind, group), arrivals = key, self._arrivals[key]
        here = len(arrivals)
        if self.lost:
            came = {arrival.activity.worker.rank for arrival in arrivals}
            here += sum(rank in group and rank not in came for rank in self.lost)
        if here == len(group):
            del self._arrivals[key]
            arrivals.sort(key=lambda arrival: arrival.activity.worker.rank)
            self._complete(kind, arrivals)

    def _complete(self, kind: str, arrivals: list[Arrival]) -> None:
        if kind == "checkpoint":
            end, release = max(self.time, self._last_arrival), self._save
        elif kind == "allreduce":
            end = self.time + self._network.allreduce(len(arrivals), arrivals[0].value)
            release = self._release
        else:
            end, release = self.time + self._network.barrier(len(arrivals)), self._release
        self._at(end, LATE, release, arrivals)

    def _release(self, arrivals: list[Arrival], span: Span = Span.COLLECTIVE) -> None:
        result = total([arrival.value for arrival in arrivals]) if span is Span.COLLECTIVE else None
        for activity, _, start in arrivals:
            rank = activity.worker.rank
            self.trace.span(rank, span, 0, start, self.time)
            self.trace.event(rank, self.time, Event.COLLECTED, 0, rank)
            if self._mortality is None:
                self._ready.append((activity, result))
            else:
                self._mortality.resume(activity, result)

    def _save(self, arrivals: list[Arrival]) -> None:
        """All workers are here and no message is under way: a consistent cut."""
        if self._network.shares:  # it is known only now when some of them come
            passes = self._network.next
            there = max(self._last_arrival, passes if passes < math.inf else 0.0)
            if there > self.time:
                self._at(there, LATE, self._save, arrivals)
                return
        self._release(arrivals, Span.CHECKPOINT)  # first: a resumed run has these in its trace too
        self._network.forget()
        for node in self._nodes:
            node._control_sent = -1.0
        if self._saver is not None and not self.lost:  # as on MPI: none does without the lost
            for activity, snapshot, _ in arrivals:
                self._saver.save(activity.worker.rank, state := snapshot())
            self._saver.commit(self)
            if self._warned():
                raise Interrupted(state.k)

    def _report(self) -> str:
        """Who waits for what."""
        lines = []
        for node in self._nodes:
            for activity in node._activities:
                what = activity.waits
                words = what if isinstance(what, str) else describe(what)
                lines.append(f"rank {node.rank} waits for {words}")
        return f"no event is left at {self.time:.6g} s and workers still wait: " + "; ".join(lines)
