"""All workers in one process on a virtual clock: a heap of events, the same run every time.

Time passes only while workers compute and messages travel. Whatever happens at one instant happens
in a fixed order: ends of computations and data first, control messages after, each in the order
caused. So a worker that finishes exactly at θ(k) has finished by θ(k).
"""

from __future__ import annotations

import gc
import heapq
import types
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import numpy as np

from cbdybw.clusters.network import Network
from cbdybw.clusters.trace import Event, Span, Trace
from cbdybw.clusters.worker import (
    INTERRUPTED,
    Kind,
    Match,
    Message,
    Worker,
    describe,
    keyed_rng,
)
from cbdybw.errors import Stalled

_DATA, _CONTROL, _LATE = 0, 1 << 60, 1 << 61  # added to an event's number: its place in an instant
_FIRST_CONTROL = int(Kind.THRESHOLD)
# Plain integers: arithmetic on members of an IntEnum is slow.
_COMPUTE, _WAIT, _AVERAGE = int(Span.COMPUTE), int(Span.WAIT), int(Span.AVERAGE)
_COMPUTED, _INTERRUPTED = int(Event.COMPUTED), int(Event.INTERRUPTED)


class Recorder(Protocol):
    """Who is told what the workers record."""

    def record(self, rank: int, time: float, event: str, fields: dict[str, Any]) -> None: ...


class Saver(Protocol):
    """Who keeps the workers' states at a consistent cut."""

    def save(self, rank: int, state: Any) -> None: ...

    def commit(self, cluster: Any) -> None: ...


@types.coroutine
def _suspend():
    """Hand control to the cluster; the value it resumes the coroutine with comes back."""
    return (yield)


@contextmanager
def _rare_garbage_collection() -> Iterator[None]:
    """A run makes millions of containers and hardly a cycle: look for cycles less often."""
    usual = gc.get_threshold()
    gc.set_threshold(100 * usual[0], *usual[1:])
    try:
        yield
    finally:
        gc.set_threshold(*usual)


class _Activity:
    """A coroutine of one worker, and what it waits for."""

    __slots__ = ("coroutine", "result", "waits", "worker")

    def __init__(self, worker: VirtualWorker, coroutine: Coroutine):
        self.worker, self.coroutine = worker, coroutine
        self.result: Any = None
        self.waits: Match | str = "its turn"  # a match, or words for the deadlock report


class _Alarm:
    """An event that may be called off: the end of an interruptible computation, or a timeout."""

    __slots__ = ("activity", "until")

    def __init__(self, activity: _Activity, until: Match | None = None):
        self.activity: _Activity | None = activity  # None: called off
        self.until = until  # what interrupts the computation


class _Arrival(NamedTuple):
    """Somebody has come to a collective with a value."""

    activity: _Activity
    value: Any
    start: float


def total(values: Sequence[np.ndarray | None]) -> np.ndarray | None:
    """The sum in the order given; None for barriers, whose members bring nothing."""
    result, *rest = values
    for value in rest:
        result = result + value if value is not None else None
    return result


class VirtualWorker(Worker):
    """One worker of a `VirtualCluster`."""

    __slots__ = (
        "_activities", "_cluster", "_computing", "_control_sent", "_event", "_finished", "_mailbox",
        "_span", "_waiting", "rank", "servers", "size", "workers",
    )  # fmt: skip

    def __init__(self, cluster: VirtualCluster, rank: int):
        self._cluster = cluster
        self._span, self._event = cluster._span, cluster._event
        self.rank, self.size = rank, cluster.size
        self.workers, self.servers = cluster.workers, cluster.servers
        self._mailbox: list[Message] = []
        self._waiting: list[_Activity] = []  # in `receive`, oldest first
        self._computing: list[_Alarm] = []  # in `compute` with an `until`
        self._activities: list[_Activity] = []  # the main one first
        self._finished = False
        self._control_sent = -1.0  # the last instant at which this worker sent control at once

    def now(self) -> float:
        return self._cluster.time

    @types.coroutine
    def compute(
        self,
        fn: Callable[..., Any],
        *args: Any,
        index: int,
        work: float = 1.0,
        until: Match | None = None,
    ) -> Any:
        if work == 0:
            return fn(*args)
        cluster, rank = self._cluster, self.rank
        start = cluster.time
        cluster._compute(self, index, work, until)
        finished = yield
        end = cluster.time
        self._span(rank, _COMPUTE, index, start, end)
        self._event(rank, end, _COMPUTED if finished else _INTERRUPTED, index, rank)
        return fn(*args) if finished else INTERRUPTED

    def send(self, dest: int, message: Message) -> None:
        self._cluster._post(self, dest, message)

    def broadcast(self, message: Message) -> None:
        self._cluster._post_all(self, message)

    @types.coroutine
    def receive(self, match: Match, timeout: float | None = None) -> Message | None:
        mailbox = self._mailbox
        for n, message in enumerate(mailbox):
            if match(message):
                del mailbox[n]
                return message
        cluster = self._cluster
        activity = cluster._running
        activity.waits = match
        self._waiting.append(activity)
        start = cluster.time
        if timeout is None:
            message = yield
        else:
            message = yield from cluster._until_timeout(activity, timeout)
        if cluster.time > start:
            iteration = message.iteration if message else 0
            self._span(self.rank, _WAIT, iteration, start, cluster.time)
        return message

    def take(self, match: Match) -> list[Message]:
        mailbox = self._mailbox
        if not mailbox:
            return []
        taken = [message for message in mailbox if match(message)]
        if taken:
            mailbox[:] = [message for message in mailbox if not match(message)]
        return taken

    def spawn(self, activity: Coroutine[Any, Any, Any]) -> None:
        self._cluster._start(self, activity)

    async def barrier(self, group: Sequence[int]) -> None:
        await self._cluster._collective(self, "barrier", group, None)

    async def allreduce(self, vector: np.ndarray, group: Sequence[int]) -> np.ndarray:
        return await self._cluster._collective(self, "allreduce", group, vector)

    async def checkpoint(self, snapshot: Callable[[], Any]) -> None:
        await self._cluster._collective(self, "checkpoint", self.workers, snapshot)

    def rng(self, purpose: str, index: int) -> np.random.Generator:
        return keyed_rng(self._cluster.seed, purpose, self.rank, index)

    def record(self, event: str, **fields: Any) -> None:
        cluster = self._cluster
        now = cluster.time
        if event == "average":
            self._span(self.rank, _AVERAGE, fields["k"], now, now)
        cluster._recorder.record(self.rank, now, event, fields)

    def _put(self, message: Message) -> None:
        """A message is here: for who waits for it, else for the mailbox."""
        for activity in self._waiting:
            if activity.waits(message):
                self._waiting.remove(activity)
                self._cluster._ready.append((activity, message))
                return
        if self._finished:
            return
        self._mailbox.append(message)
        for alarm in self._computing:
            if alarm.until(message):
                self._computing.remove(alarm)
                self._cluster._interrupt(alarm)
                return

    def _finish(self) -> None:
        """The main activity has ended, and with it what it has spawned."""
        self._finished = True
        self._mailbox.clear()
        self._waiting.clear()
        self._close()

    def _close(self) -> None:
        for activity in self._activities:
            activity.coroutine.close()
        self._activities.clear()


class VirtualCluster:
    """`size` processes on one virtual clock, the last `servers` of them parameter servers.

    Args:
        delay: (rank, iteration) → seconds of one minibatch; see `clusters.delays`.
        network: how long messages travel; see `clusters.network`.
    """

    process, is_root = 0, True

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
    ):
        self.size, self.seed, self.trace = size, seed, trace
        self.workers, self.servers = range(size - servers), range(size - servers, size)
        self.ranks = range(size)
        self.time = 0.0
        self._span, self._event = trace.span, trace.event
        self._delay, self._network, self._recorder, self._saver = delay, network, recorder, saver
        self._heap: list[tuple[float, int, Callable, Any]] = []
        self._number = 0  # of the events so far: ties are broken by age
        self._called_off = 0  # alarms that are still in the heap
        self._ready: deque[tuple[_Activity, Any]] = deque()
        self._arrivals: dict[tuple, list[_Arrival]] = {}  # of open collectives
        self._running: _Activity
        self._unfinished = 0
        self._last_arrival = 0.0  # of any message so far
        self._nodes = [VirtualWorker(self, rank) for rank in self.ranks]

    def run(self, main: Callable[[Worker], Coroutine], start: float = 0.0) -> dict[int, Any]:
        """Run `main(worker)` on every rank from time `start`; each rank's result.

        Raises Stalled when every worker waits and nothing is under way, and whatever an activity
        raises.
        """
        self.time = start
        self._unfinished = self.size
        mains = [self._start(node, main(node)) for node in self._nodes]
        try:
            with _rare_garbage_collection():
                self._loop()
        finally:
            for node in self._nodes:
                node._close()
        return {activity.worker.rank: activity.result for activity in mains}

    def gather(self, value: Any) -> list[Any]:
        """The values of all processes: there is one."""
        return [value]

    def _start(self, worker: VirtualWorker, coroutine: Coroutine) -> _Activity:
        activity = _Activity(worker, coroutine)
        worker._activities.append(activity)
        self._ready.append((activity, None))
        return activity

    def _loop(self) -> None:
        heap, ready = self._heap, self._ready
        pop, take = heapq.heappop, ready.popleft
        while True:
            while ready:
                activity, value = take()
                if activity.worker._finished:
                    continue
                self._running = activity
                try:
                    activity.coroutine.send(value)
                except StopIteration as end:
                    self._end(activity, end.value)
            if not self._unfinished:
                return
            if not heap:
                raise Stalled(self._report())
            self.time, _, action, argument = pop(heap)
            action(argument)

    def _end(self, activity: _Activity, result: Any) -> None:
        activity.result = result
        if activity is activity.worker._activities[0]:
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
        if until is None:
            self._at(end, _DATA, self._ready.append, (activity, True))
        elif any(map(until, worker._mailbox)):
            self._ready.append((activity, False))
        else:
            alarm = _Alarm(activity, until)
            worker._computing.append(alarm)
            self._at(end, _DATA, self._computed, alarm)

    def _computed(self, alarm: _Alarm) -> None:
        if alarm.activity is None:
            self._called_off -= 1
        else:
            alarm.activity.worker._computing.remove(alarm)
            self._ready.append((alarm.activity, True))

    def _interrupt(self, alarm: _Alarm) -> None:
        self._ready.append((alarm.activity, False))
        self._call_off(alarm)

    async def _until_timeout(self, activity: _Activity, timeout: float) -> Message | None:
        """The message that `activity` waits for, or None."""
        alarm = _Alarm(activity)
        self._at(self.time + timeout, _LATE, self._ring, alarm)
        message = await _suspend()
        if message is not None:
            self._call_off(alarm)
        return message

    def _ring(self, alarm: _Alarm) -> None:
        if alarm.activity is None:
            self._called_off -= 1
            return
        worker = alarm.activity.worker
        worker._waiting.remove(alarm.activity)
        self.trace.event(worker.rank, self.time, Event.TIMEOUT, 0, worker.rank)
        self._ready.append((alarm.activity, None))

    def _call_off(self, alarm: _Alarm) -> None:
        """Its event stays in the heap, until such events are the most there."""
        alarm.activity = None
        self._called_off += 1
        if 2 * self._called_off > len(self._heap):
            self._heap[:] = [
                event
                for event in self._heap
                if not (isinstance(event[3], _Alarm) and event[3].activity is None)
            ]
            heapq.heapify(self._heap)
            self._called_off = 0

    # Messages

    def _post(self, sender: VirtualWorker, dest: int, message: Message) -> None:
        now, control = self.time, message.kind >= _FIRST_CONTROL
        if self._network.instant or dest == sender.rank:
            if control:
                sender._control_sent = now
            elif sender._control_sent != now:
                worker = self._nodes[dest]
                worker._event(dest, now, message.kind, message.iteration, message.source)
                worker._put(message)
                return
            # Data does not overtake what its sender said at this very instant.
            self._at(now, _CONTROL, self._deliver, (self._nodes[dest], message))
            return
        arrival, behind = self._network.arrival(sender.rank, dest, message, now)
        self._last_arrival = max(self._last_arrival, arrival)
        place = _CONTROL if control or behind else _DATA
        self._at(arrival, place, self._deliver, (self._nodes[dest], message))

    def _post_all(self, sender: VirtualWorker, message: Message) -> None:
        if not self._network.instant:
            for dest in self.ranks:
                if dest != sender.rank:
                    self._post(sender, dest, message)
            return
        sender._control_sent = self.time
        self._at(self.time, _CONTROL, self._deliver_all, message)

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
        arrivals.append(_Arrival(activity, value, self.time))
        if len(arrivals) == len(group):
            del self._arrivals[key]
            arrivals.sort(key=lambda arrival: arrival.activity.worker.rank)
            self._complete(kind, arrivals)
        return await _suspend()

    def _complete(self, kind: str, arrivals: list[_Arrival]) -> None:
        """All are there: they go on when the cluster's time model says so."""
        if kind == "checkpoint":
            end, release = max(self.time, self._last_arrival), self._save
        elif kind == "allreduce":
            end = self.time + self._network.allreduce(len(arrivals), arrivals[0].value)
            release = self._release
        else:
            end, release = self.time + self._network.barrier(len(arrivals)), self._release
        self._at(end, _LATE, release, arrivals)

    def _release(self, arrivals: list[_Arrival], span: Span = Span.COLLECTIVE) -> None:
        result = total([arrival.value for arrival in arrivals]) if span is Span.COLLECTIVE else None
        for activity, _, start in arrivals:
            rank = activity.worker.rank
            self.trace.span(rank, span, 0, start, self.time)
            self.trace.event(rank, self.time, Event.COLLECTED, 0, rank)
            self._ready.append((activity, result))

    def _save(self, arrivals: list[_Arrival]) -> None:
        """All workers are here and no message is under way: a consistent cut."""
        self._release(arrivals, Span.CHECKPOINT)  # first: a resumed run has these in its trace too
        self._network.forget()
        for node in self._nodes:
            node._control_sent = -1.0
        if self._saver is not None:
            for activity, snapshot, _ in arrivals:
                self._saver.save(activity.worker.rank, snapshot())
            self._saver.commit(self)

    def _report(self) -> str:
        """Who waits for what."""
        lines = []
        for node in self._nodes:
            for activity in node._activities:
                what = activity.waits
                words = what if isinstance(what, str) else describe(what)
                lines.append(f"rank {node.rank} waits for {words}")
        return f"no event is left at {self.time:.6g} s and workers still wait: " + "; ".join(lines)
