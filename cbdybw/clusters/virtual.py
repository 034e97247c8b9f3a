"""All workers in one process on a virtual clock: a heap of events, the same run every time.

Time passes only while workers compute and messages travel. Whatever happens at one instant happens
in a fixed order: ends of computations and data first, control messages after, each in the order
caused. So a worker that finishes exactly at θ(k) has finished by θ(k).
"""

from __future__ import annotations

import heapq
import types
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
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
_FIRST_CONTROL = Kind.THRESHOLD


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


class _Activity:
    """A coroutine of one worker, and what it waits for."""

    __slots__ = ("coroutine", "main", "result", "until", "waits", "worker")

    def __init__(self, worker: VirtualWorker, coroutine: Coroutine, main: bool):
        self.worker, self.coroutine, self.main = worker, coroutine, main
        self.result: Any = None
        self.waits: Match | str | None = None  # a match, or words for the deadlock report
        self.until: Match | None = None  # what interrupts the computation that it waits for


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

    def __init__(self, cluster: VirtualCluster, rank: int):
        self._cluster = cluster
        self.rank, self.size = rank, cluster.size
        self.workers, self.servers = cluster.workers, cluster.servers
        self._mailbox: list[Message] = []
        self._waiting: list[_Activity] = []  # in `receive`, oldest first
        self._computing: list[_Activity] = []  # in `compute` with an `until`
        self._spawned: list[_Activity] = []
        self.finished = False
        self._control_sent = -1.0  # the last instant at which this worker sent control

    def now(self) -> float:
        return self._cluster.time

    async def compute(
        self,
        fn: Callable[..., Any],
        *args: Any,
        index: int,
        work: float = 1.0,
        until: Match | None = None,
    ) -> Any:
        if work == 0:
            return fn(*args)
        cluster = self._cluster
        start = cluster.time
        finished = await cluster._computation(self, index, work, until)
        cluster.trace.span(self.rank, Span.COMPUTE, index, start, cluster.time)
        cluster.trace.event(
            self.rank,
            cluster.time,
            Event.COMPUTED if finished else Event.INTERRUPTED,
            index,
            self.rank,
        )
        return fn(*args) if finished else INTERRUPTED

    def send(self, dest: int, message: Message) -> None:
        self._cluster._post(self, dest, message)

    def broadcast(self, message: Message) -> None:
        self._cluster._post_all(self, message)

    async def receive(self, match: Match, timeout: float | None = None) -> Message | None:
        mailbox = self._mailbox
        for n, message in enumerate(mailbox):
            if match(message):
                del mailbox[n]
                return message
        cluster = self._cluster
        activity = cluster._running
        activity.waits = match
        self._waiting.append(activity)
        if timeout is not None:
            cluster._timer(activity, timeout)
        start = cluster.time
        message = await _suspend()
        if cluster.time > start:
            iteration = message.iteration if message else 0
            cluster.trace.span(self.rank, Span.WAIT, iteration, start, cluster.time)
        return message

    def take(self, match: Match) -> list[Message]:
        taken = [message for message in self._mailbox if match(message)]
        if taken:
            self._mailbox[:] = [message for message in self._mailbox if not match(message)]
        return taken

    def spawn(self, activity: Coroutine[Any, Any, Any]) -> None:
        self._spawned.append(self._cluster._start(self, activity, main=False))

    async def barrier(self, group: Sequence[int]) -> None:
        await self._cluster._collective(self, ("barrier", group), None)

    async def allreduce(self, vector: np.ndarray, group: Sequence[int]) -> np.ndarray:
        return await self._cluster._collective(self, ("allreduce", group), vector)

    async def checkpoint(self, snapshot: Callable[[], Any]) -> None:
        await self._cluster._collective(self, ("checkpoint", self.workers), snapshot)

    def rng(self, purpose: str, index: int) -> np.random.Generator:
        return keyed_rng(self._cluster.seed, purpose, self.rank, index)

    def record(self, event: str, **fields: Any) -> None:
        cluster = self._cluster
        if event == "average":
            cluster.trace.span(self.rank, Span.AVERAGE, fields["k"], cluster.time, cluster.time)
        cluster._recorder.record(self.rank, cluster.time, event, fields)


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
        self._delay, self._network, self._recorder, self._saver = delay, network, recorder, saver
        self._heap: list[tuple[float, int, Callable, Any]] = []
        self._number = 0  # of the events so far: ties are broken by age
        self._ready: deque[tuple[_Activity, Any]] = deque()
        self._arrivals: dict[tuple, list[tuple[_Activity, Any]]] = {}  # of open collectives
        self._running: _Activity
        self._unfinished = 0
        self._last_arrival = 0.0  # of any message so far
        self._nodes = [VirtualWorker(self, rank) for rank in self.ranks]

    def run(self, main: Callable[[Worker], Coroutine], start: float = 0.0) -> dict[int, Any]:
        """Run `main(worker)` on every rank from time `start`; each rank's result.

        Raises Stalled when every worker waits and nothing is under way.
        """
        self.time = start
        mains = [self._start(node, main(node), main=True) for node in self._nodes]
        try:
            self._loop()
        finally:
            for activity in self._activities():
                activity.coroutine.close()
        return {activity.worker.rank: activity.result for activity in mains}

    def gather(self, value: Any) -> list[Any]:
        """The values of all processes: there is one."""
        return [value]

    def _start(self, worker: VirtualWorker, coroutine: Coroutine, main: bool) -> _Activity:
        activity = _Activity(worker, coroutine, main)
        self._unfinished += main
        self._ready.append((activity, None))
        return activity

    def _loop(self) -> None:
        heap, ready = self._heap, self._ready
        pop, take = heapq.heappop, ready.popleft
        while True:
            while ready:
                activity, value = take()
                if activity.worker.finished:
                    continue
                self._running = activity
                try:
                    activity.coroutine.send(value)
                except StopIteration as end:
                    activity.result = end.value
                    if activity.main:
                        self._finish(activity.worker)
            if not self._unfinished:
                return
            if not heap:
                raise Stalled(self._report())
            self.time, _, action, argument = pop(heap)
            action(argument)

    def _finish(self, worker: VirtualWorker) -> None:
        """The main activity has ended, and with it what it has spawned."""
        self._unfinished -= 1
        worker.finished = True
        worker._mailbox.clear()
        worker._waiting.clear()
        for activity in worker._spawned:
            activity.coroutine.close()

    def _at(self, time: float, place: int, action: Callable, argument: Any) -> None:
        self._number += 1
        heapq.heappush(self._heap, (time, place + self._number, action, argument))

    # Computing and waiting

    async def _computation(
        self, worker: VirtualWorker, index: int, work: float, until: Match | None
    ) -> bool:
        """Whether the computation came to its end."""
        activity = self._running
        seconds = self._delay(worker.rank, index)
        if until is not None:
            if any(map(until, worker._mailbox)):
                return False
            activity.until = until
            worker._computing.append(activity)
        activity.waits = "the end of its computation"
        self._number += 1
        end = (self.time + work * seconds, self._number, self._computed, activity)
        heapq.heappush(self._heap, end)
        finished = await _suspend()
        if not finished:
            self._heap.remove(end)
            heapq.heapify(self._heap)
        return finished

    def _computed(self, activity: _Activity) -> None:
        if activity.until is not None:
            activity.until = None
            activity.worker._computing.remove(activity)
        self._ready.append((activity, True))

    def _timer(self, activity: _Activity, timeout: float) -> None:
        match = activity.waits

        def ring(_: None) -> None:
            if activity.waits is match and activity in activity.worker._waiting:
                activity.worker._waiting.remove(activity)
                rank = activity.worker.rank
                self.trace.event(rank, self.time, Event.TIMEOUT, 0, rank)
                self._ready.append((activity, None))

        self._at(self.time + timeout, _LATE, ring, None)

    # Messages

    def _post(self, sender: VirtualWorker, dest: int, message: Message) -> None:
        control = message.kind >= _FIRST_CONTROL
        if control:
            sender._control_sent = self.time
        elif self._network.instant:
            if sender._control_sent != self.time:
                self._deliver((self._nodes[dest], message))
                return
            control = True  # data must not overtake what its sender said at this very instant
        arrival, behind = self._network.arrival(sender.rank, dest, message, self.time)
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
        self._last_arrival = max(self._last_arrival, self.time)
        self._at(self.time, _CONTROL, self._deliver_all, message)

    def _deliver(self, delivery: tuple[VirtualWorker, Message]) -> None:
        worker, message = delivery
        self.trace.event(worker.rank, self.time, message.kind, message.iteration, message.source)
        self._put(worker, message)

    def _deliver_all(self, message: Message) -> None:
        self.trace.broadcast(self.size, self.time, message.kind, message.iteration, message.source)
        for worker in self._nodes:
            if worker.rank != message.source:
                self._put(worker, message)

    def _put(self, worker: VirtualWorker, message: Message) -> None:
        for n, activity in enumerate(worker._waiting):
            if activity.waits(message):
                del worker._waiting[n]
                self._ready.append((activity, message))
                return
        if worker.finished:
            return
        worker._mailbox.append(message)
        for n, activity in enumerate(worker._computing):
            if activity.until(message):
                del worker._computing[n]
                activity.until = None
                self._ready.append((activity, False))
                return

    # Collectives

    async def _collective(self, worker: VirtualWorker, key: tuple, value: Any) -> Any:
        """Wait until all ranks of the group have come with their value; the combined value."""
        kind, group = key
        activity = self._running
        activity.waits = f"the others in a {kind}"
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

    # Reports

    def _activities(self) -> list[_Activity]:
        """Those that are not finished and not about to run."""
        waiting = [activity for node in self._nodes for activity in node._waiting]
        waiting += [arrival.activity for group in self._arrivals.values() for arrival in group]
        waiting += [event[3] for event in self._heap if isinstance(event[3], _Activity)]
        return waiting

    def _report(self) -> str:
        """Who waits for what."""
        lines = []
        for activity in self._activities():
            what = activity.waits
            words = what if isinstance(what, str) else describe(what)
            lines.append(f"rank {activity.worker.rank} waits for {words}")
        return f"no event is left at {self.time:.6g} s and workers still wait: " + "; ".join(lines)
