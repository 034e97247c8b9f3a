"""One worker of the virtual cluster: what the Worker interface means on a virtual clock.

`compute` and `receive` are generators that an algorithm awaits: a bare `yield` in them hands
control to the cluster and comes back with what the cluster has to say.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from cbdybw.clusters.trace import Event, Span
from cbdybw.clusters.worker import INTERRUPTED, Kind, Match, Message, Worker, keyed_rng
from cbdybw.errors import PeerLost

if TYPE_CHECKING:
    from cbdybw.clusters.faults import Watch
    from cbdybw.clusters.virtual import VirtualCluster

# Plain integers: arithmetic on members of an IntEnum is slow.
_COMPUTE, _WAIT, _AVERAGE = int(Span.COMPUTE), int(Span.WAIT), int(Span.AVERAGE)
_COMPUTED, _INTERRUPTED = int(Event.COMPUTED), int(Event.INTERRUPTED)


@types.coroutine
def suspend():
    """Hand control to the cluster; the value it resumes the coroutine with comes back."""
    return (yield)


class Activity:
    """A coroutine of one worker, and what it waits for."""

    __slots__ = ("coroutine", "over", "result", "waits", "worker")

    def __init__(self, worker: VirtualWorker, coroutine: Coroutine):
        self.worker, self.coroutine = worker, coroutine
        self.result: Any = None
        self.over = False  # it is not to be resumed any more
        self.waits: Match | str = "its turn"  # a match, or words for the deadlock report


class Killed(BaseException):
    """Unwinds a coroutine whose worker dies at this very point. No algorithm catches it."""


class Alarm:
    """An event that may be called off: the end of an interruptible computation, or a timeout."""

    __slots__ = ("activity", "until")

    def __init__(self, activity: Activity, until: Match | None = None):
        self.activity: Activity | None = activity  # None: called off
        self.until = until  # what interrupts the computation


class VirtualWorker(Worker):
    """One worker of a `VirtualCluster`."""

    __slots__ = (  # ten thousand workers: every object less is a cache miss less
        "_activities", "_cluster", "_computing", "_control_sent", "_event", "_finished",
        "_forgiven", "_iteration", "_mailbox", "_span", "_waiting", "_watch", "rank", "restarts",
        "servers", "size", "workers",
    )  # fmt: skip

    def __init__(self, cluster: VirtualCluster, rank: int, watch: Watch | None):
        self._cluster = cluster
        self._span, self._event = cluster._span, cluster._event
        self.rank, self.size = rank, cluster.size
        self.workers, self.servers = cluster.workers, cluster.servers
        self._mailbox: list[Message] = []
        self._waiting: list[Activity] = []  # in `receive`, oldest first
        self._computing: list[Alarm] = []  # in `compute` with an `until`
        self._activities: list[Activity] = []  # the main one first
        self._finished = False
        self._control_sent = -1.0  # the last instant at which this worker sent control at once
        self._watch, self._iteration = watch, 0  # its faults, where there are any; the latest index
        self._forgiven: frozenset[int] = frozenset()
        self.restarts = 0

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
        if self._watch is not None:
            self._reach(index)
        if work == 0:
            return fn(*args)
        cluster, rank = self._cluster, self.rank
        start = cluster.time
        call = cluster._begin and cluster._begin(fn, args)  # None: evaluated here, by itself
        cluster._compute(self, index, work, until)
        try:
            finished = yield
        except GeneratorExit:  # this worker is dead, or the run over
            if call:
                call.cancel()
            raise
        end = cluster.time
        self._span(rank, _COMPUTE, index, start, end)
        self._event(rank, end, _COMPUTED if finished else _INTERRUPTED, index, rank)
        if finished:
            return call() if call else fn(*args)
        if call:
            call.cancel()
        return INTERRUPTED

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
        if cluster._deaths:
            self._mourn()
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

    def forgive(self, ranks: Collection[int]) -> None:
        self._forgiven = frozenset(ranks) - {0}

    async def barrier(self, group: Sequence[int]) -> None:
        await self._cluster._collective(self, "barrier", group, None)

    async def allreduce(self, vector: np.ndarray, group: Sequence[int]) -> np.ndarray:
        return await self._cluster._collective(self, "allreduce", group, vector)

    async def checkpoint(self, snapshot: Callable[[], Any]) -> None:
        await self._cluster._collective(self, "checkpoint", self._cluster.ranks, snapshot)

    def rng(self, purpose: str, index: int) -> np.random.Generator:
        return keyed_rng(self._cluster.seed, purpose, self.rank, index)

    def record(self, event: str, **fields: Any) -> None:
        cluster = self._cluster
        if self._watch is not None and "k" in fields:
            self._reach(fields["k"])
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

    def _reach(self, k: int) -> None:
        """This worker comes to iteration k: what has been waiting for that strikes it."""
        self._iteration = max(k, self._iteration)
        if self._cluster._mortality.strikes_dead(self):
            raise Killed

    def _mourn(self) -> None:
        """Raise PeerLost when a death is known here that is not forgiven."""
        for message in self._mailbox:
            if message.kind is Kind.PEER_LOST and message.source not in self._forgiven:
                raise PeerLost(message.source)

    def _lose(self, rank: int, count: int) -> None:
        """It becomes known here that `rank` has died, for the time number `count`: PEER_LOST comes,
        and if that is not forgiven whoever waits is told."""
        message = Message(Kind.PEER_LOST, 0, rank, (count,))
        self._event(self.rank, self._cluster.time, message.kind, 0, rank)
        if rank in self._forgiven:
            self._put(message)
        elif self._waiting:
            self._mailbox.append(message)
            self._cluster._ready.append((self._waiting.pop(0), PeerLost(rank)))
        else:
            self._put(message)

    def _begin_anew(self) -> None:
        """A new process takes the place of the one that has died."""
        self._finished, self._forgiven = False, frozenset()
        self._control_sent = -1.0
        self.restarts += 1

    def _finish(self) -> None:
        """The main activity has ended, and with it what it has spawned."""
        self._finished = True
        self._mailbox.clear()
        self._waiting.clear()
        self._close()

    def _close(self) -> None:
        for activity in self._activities:
            activity.over = True
            activity.coroutine.close()
        self._activities.clear()
