"""The event loop of one rank: its coroutines, its mailbox, its compute thread, its clock.

Events are processed one at a time: a message comes in, a computation ends, a timer runs out, a
collective completes; then the coroutine that waited for it runs until it waits again. `time` is
the instant of the event being processed, so that the same events in the same order at the same
times (a replay) lead to the same decisions.

The main thread alone calls MPI and goes on polling while `fn` runs in the compute thread: a rank
that computes without polling makes no progress on MPI.
"""

from __future__ import annotations

import math
import time
import types
from collections import deque
from collections.abc import Callable, Collection, Coroutine
from typing import TYPE_CHECKING, Any, NamedTuple

from cbdybw.clusters.compute_thread import ComputeThread, Job
from cbdybw.clusters.trace import Event, Trace
from cbdybw.clusters.wire import MARK, Wire
from cbdybw.clusters.worker import Kind, Match, Message, describe
from cbdybw.errors import PeerLost, Stalled

if TYPE_CHECKING:
    from cbdybw.clusters.strikes import Strikes

_PEER_LOST = Kind.PEER_LOST
_COPYING = 3e-5  # seconds: a poll that takes longer has moved a part of a vector
_SPIN = 1e-3  # seconds of busy polling after an event
_SHORTEST_PAUSE, _LONGEST_PAUSE = 1e-4, 1e-3  # seconds between two polls of an idle rank
_HINDSIGHT = 1.0  # seconds in which an error may turn out to be the loss of a rank


@types.coroutine
def _suspend():
    """Hand control to the loop; the value it resumes the coroutine with comes back."""
    return (yield)


class Mark(NamedTuple):
    """What a rank says that comes to a meeting."""

    sent: int  # messages so far
    word: int  # what the meeting is about


class Activity:
    """A coroutine of this rank, and what it waits for."""

    __slots__ = ("coroutine", "deadline", "done", "match", "result", "waits")

    def __init__(self, coroutine: Coroutine[Any, Any, Any]):
        self.coroutine = coroutine
        self.done, self.result = False, None
        self.match: Match | None = None  # of a receive
        self.deadline = math.inf
        self.waits: Callable[[], str] = lambda: "its turn"  # words for the report of a stall


class Loop:
    """Args:
    spin: poll busily for a moment after each event: lower latency, where cores are to spare.
    goes_on_without: told of each forgiven rank that dies.
    """

    def __init__(
        self, wire: Wire, trace: Trace, spin: bool, goes_on_without: Callable[[int], None]
    ):
        self.wire, self.trace, self.rank = wire, trace, wire.rank
        self.mailbox: list[Message] = []
        self.time = 0.0
        self.open = False  # whether messages are for the coroutines; else they are held back
        self.held: deque[Message] = deque()
        self.forgiven: frozenset[int] = frozenset()  # ranks whose death this one survives
        self.strikes: Strikes | None = None  # what is to befall this rank from now on
        self.marks: dict[tuple[int, int], dict[int, Mark]] = {}  # of a meeting: rank → its mark
        self._zero = time.perf_counter()
        self._spin, self._goes_on_without = spin, goes_on_without
        self._working_pause = _LONGEST_PAUSE if spin else 3 * _LONGEST_PAUSE
        self._thread = ComputeThread()
        self._ready: deque[tuple[Activity, Any]] = deque()
        self._receiving: list[Activity] = []  # oldest first
        self.computing: list[Job] = []
        self._conditions: list[tuple[Activity, Callable[[], bool], Collection[int]]] = []
        self._running: Activity
        self._last = 0.0  # the last event's instant
        self._moved = 0.0  # when a vector was last seen to be coming in

    def clock(self) -> float:
        """Seconds, as `time`, but of this very instant."""
        return time.perf_counter() - self._zero

    def set_clock(self, seconds: float) -> None:
        self._zero = time.perf_counter() - seconds
        self.time = self._last = seconds

    def drive(self, main: Coroutine[Any, Any, Any], patience: float = math.inf) -> Any:
        """Run `main` and what it spawns until it returns; its result.

        Raises Stalled after `patience` seconds without an event while all of them only wait for
        other ranks.
        """
        activity = self.spawn(main)
        self._last = self.clock()
        try:
            self._run()
            while not activity.done:
                if self.strikes is not None:
                    self.strikes.look()
                if not self._turn():
                    self._idle(patience)
        finally:
            self._drop_activities()
        return activity.result

    def spawn(self, coroutine: Coroutine[Any, Any, Any]) -> Activity:
        """Run `coroutine` beside the others; it begins when the running one waits."""
        activity = Activity(coroutine)
        self._ready.append((activity, None))
        return activity

    # What a coroutine can wait for

    async def message(self, match: Match, timeout: float | None) -> Message | None:
        """The oldest message that matches; None after `timeout` seconds.

        Raises PeerLost as long as a death is not forgiven; what is here already comes first.
        """
        lost = self.wire.lost - self.forgiven if self.wire.lost else ()
        for n, message in enumerate(self.mailbox):
            if lost and message.kind == _PEER_LOST and message.source in lost:
                continue
            if match(message):
                del self.mailbox[n]
                return message
        for rank in sorted(lost):
            raise PeerLost(rank)
        activity = self._running
        activity.match = match
        activity.deadline = math.inf if timeout is None else self.time + timeout
        activity.waits = lambda: describe(match)
        self._receiving.append(activity)
        return await _suspend()

    async def computation(self, job: Job) -> bool:
        """Start `job`; whether it came to its end, else a message has interrupted it."""
        job.activity = self._running
        job.activity.waits = lambda: "the end of its computation"
        self.computing.append(job)
        self._thread.start(job)
        return await _suspend()

    async def until(self, condition: Callable[[], bool], what: str, group: Collection[int]) -> None:
        """Return once `condition()` holds; PeerLost when a rank of `group` dies before.

        `what` says in a report what is waited for.
        """
        for rank in self.wire.lost.intersection(group):
            raise PeerLost(rank)
        self._running.waits = lambda: what
        self._conditions.append((self._running, condition, group))
        await _suspend()

    async def blocking(
        self, fn: Callable[..., Any], *args: Any, what: str, group: Collection[int]
    ) -> Any:
        """`fn(*args)`, which waits for the others of `group` by itself, in the compute thread.

        PeerLost and `what` as in `until`.
        """
        job = Job(fn, args)
        self._thread.start(job)
        await self.until(lambda: job.ran, what, group)
        if job.error is not None:
            end = self.clock() + _HINDSIGHT
            await self.until(lambda: self.clock() > end, what, group)
            raise job.error
        return job.result

    # Events, one at a time

    def _turn(self) -> bool:
        """Process at most one event of each source; whether there was any."""
        happened = self._arrival()
        if self._thread.busy:
            happened |= self._return()
        if self.computing or self._receiving:
            happened |= self._expiry()
        if self._conditions and not self.wire.is_cut:
            happened |= self._fulfilment()
        if happened:
            self._last = self.time
        return happened

    def _run(self) -> None:
        ready = self._ready
        while ready:
            activity, value = ready.popleft()
            self._running = activity
            try:
                if isinstance(value, PeerLost):
                    activity.coroutine.throw(value)
                else:
                    activity.coroutine.send(value)
            except StopIteration as end:
                activity.done, activity.result = True, end.value

    def _arrival(self) -> bool:
        if self.open and self.held:
            message = self.held.popleft()
            self.time = self.clock()
        else:
            begun = self.clock()
            message = self.wire.poll()
            self.time = self.clock()
            if self.time - begun > _COPYING:
                self._moved = self.time
            if message is None:
                return False
        kind, iteration, source = message[:3]
        if kind == MARK:
            group, sent, word = message.body
            self.marks.setdefault((group, iteration), {})[source] = Mark(sent, word)
        elif self.open or kind == _PEER_LOST:
            self.trace.event(self.rank, self.time, kind, iteration, source)
            self._put(message)
            self._run()
        else:
            self.held.append(message)
        return True

    def _put(self, message: Message) -> None:
        if message.kind == _PEER_LOST:
            self._break_conditions(message.source)
            if message.source in self.forgiven:
                self._goes_on_without(message.source)
            else:
                loss = [(activity, PeerLost(message.source)) for activity in self._receiving]
                self._ready += loss
                self._receiving.clear()
        for n, activity in enumerate(self._receiving):
            if activity.match(message):
                del self._receiving[n]
                self._ready.append((activity, message))
                return
        self.mailbox.append(message)
        for job in self.computing:
            if job.ran and job.until is not None and job.until(message):
                self._finish(job, False)
                return

    def _break_conditions(self, lost: int) -> None:
        for waiting in [waiting for waiting in self._conditions if lost in waiting[2]]:
            self._conditions.remove(waiting)
            self._ready.append((waiting[0], PeerLost(lost)))

    def _return(self, wait: float = 0.0) -> bool:
        """The compute thread has returned from a function: an event if nothing is left to wait."""
        job = self._thread.returned(wait)
        if job is None:
            return False
        job.ran = True
        if self.strikes is not None:
            self.strikes.prolong(job)
        self.time = self.clock()
        if job not in self.computing:
            pass  # `blocking` notices
        elif job.until is not None and any(map(job.until, self.mailbox)):
            self._finish(job, False)
        elif job.error is not None or self.time >= job.deadline:
            self._finish(job, True)
        self._run()
        return True

    def _finish(self, job: Job, whole: bool) -> None:
        self.computing.remove(job)
        event = Event.COMPUTED if whole else Event.INTERRUPTED
        self.trace.event(self.rank, self.time, event, job.index, self.rank)
        self._ready.append((job.activity, whole))

    def _expiry(self) -> bool:
        """The injected rest of a delay, or the time-out of a receive, is over."""
        now = self.clock()
        for job in self.computing:
            if job.ran and job.deadline <= now:
                self.time = now
                self._finish(job, True)
                self._run()
                return True
        for n, activity in enumerate(self._receiving):
            if activity.deadline <= now:
                self.time = now
                del self._receiving[n]
                self.trace.event(self.rank, now, Event.TIMEOUT, 0, self.rank)
                self._ready.append((activity, None))
                self._run()
                return True
        return False

    def _fulfilment(self) -> bool:
        for n, (activity, condition, _) in enumerate(self._conditions):
            if condition():
                self.time = self.clock()
                del self._conditions[n]
                self._ready.append((activity, None))
                self._run()
                return True
        return False

    def stand_still(self, end: float) -> None:
        """Do nothing until `end`; what would have happened meanwhile happens then."""
        time.sleep(max(0.0, end - self.clock()))
        self._last = self.clock()

    # Between events

    def _idle(self, patience: float) -> None:
        """Wait for a moment.

        While the compute thread runs, on a lock that it releases at its end: it keeps the
        processor and the GIL, and its end is noticed at once.
        """
        transferring = not self.wire.all_sent()
        waited = self.clock() - self._last
        pause = min(max(_SHORTEST_PAUSE, waited / 10), _LONGEST_PAUSE)  # at most 10 % late
        deadline = self._next_deadline()
        if deadline == math.inf and waited > patience:
            raise Stalled(self._report(waited))
        if self._thread.busy:
            if self._return(self._working_pause):
                self._last = self.time
            return
        if self._spin and (transferring or self.clock() - max(self._moved, self._last) < _SPIN):
            return
        time.sleep(min(pause, max(0.0, deadline - self.clock())))

    def _next_deadline(self) -> float:
        deadlines = [job.deadline for job in self.computing]
        return min(
            deadlines + [activity.deadline for activity in self._receiving], default=math.inf
        )

    def _report(self, seconds: float) -> str:
        waiting = self._receiving + [activity for activity, _, _ in self._conditions]
        reasons = "; ".join(f"waits for {activity.waits()}" for activity in waiting)
        return f"nothing has happened for {seconds:.0f} s: rank {self.rank} {reasons}"

    def _drop_activities(self) -> None:
        waiting = self._receiving + [job.activity for job in self.computing]
        waiting += [activity for activity, _, _ in self._conditions]
        waiting += [activity for activity, _ in self._ready]
        for activity in waiting:
            activity.coroutine.close()
        for waits in (self._receiving, self.computing, self._conditions, self._ready):
            waits.clear()
