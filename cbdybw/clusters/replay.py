"""A recorded MPI run again, on the virtual cluster.

Each rank gets the messages and the ends of its computations in the recorded order and at the
recorded times. These are all that its coroutine can notice, so it takes the same decisions: the
same active sets, and the same parameters bit for bit (but for sums that Horovod made).
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import numpy as np

from cbdybw.clusters.network import Network
from cbdybw.clusters.trace import Event, Span, decode, load_run
from cbdybw.clusters.virtual import Arrival, VirtualCluster, total
from cbdybw.clusters.virtual_worker import Activity, VirtualWorker, suspend
from cbdybw.clusters.worker import Kind, Match, Message, Worker
from cbdybw.errors import BadInput, Stalled


class ReplayCluster(VirtualCluster):
    """A virtual cluster whose events come from the trace of `run`, not from laws."""

    allreduce_by = "recorded times"

    def __init__(self, size: int, run: str | Path, **kwargs: Any):
        super().__init__(size, delay=lambda rank, index: 0.0, network=Network(), **kwargs)
        self._given = f"--replay={run}"
        _, events = load_run(run, self._given)
        rank, kind, iteration, peer = decode(events["code"])
        self._log: list[deque[tuple[float, int, int, int]]] = []
        for r in self.ranks:
            mine = np.flatnonzero(rank == r)
            columns = (events["time"], kind, iteration, peer)
            rows = zip(*(column[mine].tolist() for column in columns), strict=True)
            self._log.append(deque(rows))
        self._outbox: dict[tuple[int, int], deque[Message]] = {}
        self._blocked: set[int] = set()
        self._pending: dict[tuple[int, Any], Activity] = {}  # computations and timers
        self._collected: dict[int, tuple[Arrival, Span]] = {}  # collectives that are complete
        self._latest = 0.0  # of the times at which events have been replayed

    def run(self, main: Callable[[Worker], Coroutine], start: float = 0.0) -> dict[int, Any]:
        """As on every cluster; BadInput when the ranks do not do what they did when recorded."""
        for rank in self.ranks:
            self._next(rank)
        try:
            return super().run(main, start)
        except Stalled as stall:
            raise self._deviation(f"the recording ends here, but {stall}") from None

    def _deviation(self, what: str) -> BadInput:
        return BadInput(f"{self._given}: {what}; use the program and the data of the recorded run")

    def _next(self, rank: int) -> None:
        """Put the next event of `rank` on the heap."""
        if self._log[rank]:
            time = max(self._latest, self._log[rank][0][0])
            self._number += 1
            heapq.heappush(self._heap, (time, self._number, self._replay, rank))

    def _replay(self, rank: int) -> None:
        time, kind, iteration, peer = self._log[rank][0]
        worker = self._nodes[rank]
        # An event may have to wait for another rank whose clock was behind; its own rank is told
        # the time that it was told then, for what it does may depend on it.
        self._latest, self.time = max(self._latest, self.time), time
        if kind < Event.COMPUTED:
            messages = self._outbox.get((peer, rank))
            if not messages:  # the clocks of two hosts differ: wait until it has been sent
                self._blocked.add(rank)
                return
            message = messages.popleft()
            if (message.kind, message.iteration) != (kind, iteration):
                raise self._deviation(
                    f"rank {rank} got {Kind(kind).name}({iteration}) from rank {peer} at "
                    f"{time:.6f} s, but now {message.kind.name}({message.iteration}) was sent"
                )
            self._deliver((worker, message))
        elif kind == Event.TIMEOUT:
            activity = self._awaited(rank, "timer")
            worker._waiting.remove(activity)
            self._ready.append((activity, None))
        elif kind == Event.COLLECTED:
            if rank not in self._collected:
                self._blocked.add(rank)
                return
            arrival, span = self._collected.pop(rank)
            self._release([arrival], span)
        else:
            activity = self._awaited(rank, iteration)
            self._ready.append((activity, kind == Event.COMPUTED))
        self._log[rank].popleft()
        self._next(rank)

    def _awaited(self, rank: int, what: int | str) -> Activity:
        """Who waits for the end of the computation begun at iteration `what`, or for the timer."""
        if (rank, what) not in self._pending:
            waits = "for a timer" if what == "timer" else f"for its computation of {what}"
            raise self._deviation(
                f"at {self.time:.6f} s rank {rank} does not wait {waits}, as it did then"
            )
        return self._pending.pop((rank, what))

    def _unblock(self, rank: int) -> None:
        if rank in self._blocked:
            self._blocked.remove(rank)
            self._next(rank)

    def _complete(self, kind: str, arrivals: list[Arrival]) -> None:
        """Each rank leaves the collective at its own recorded time."""
        value = total([arrival.value for arrival in arrivals]) if kind == "allreduce" else None
        span = Span.CHECKPOINT if kind == "checkpoint" else Span.COLLECTIVE
        for arrival in arrivals:
            rank = arrival.activity.worker.rank
            self._collected[rank] = arrival._replace(value=value), span
            self._unblock(rank)

    def _compute(self, worker: VirtualWorker, index: int, work: float, until: Match | None) -> None:
        self._running.waits = "the recorded end of its computation"
        self._pending[worker.rank, index] = self._running

    async def _until_timeout(self, activity: Activity, timeout: float) -> Message | None:
        timer = (activity.worker.rank, "timer")
        self._pending[timer] = activity
        message = await suspend()
        self._pending.pop(timer, None)
        return message

    def _post(self, sender: VirtualWorker, dest: int, message: Message) -> None:
        self._outbox.setdefault((sender.rank, dest), deque()).append(message)
        self._unblock(dest)

    def _post_all(self, sender: VirtualWorker, message: Message) -> None:
        for dest in self.ranks:
            if dest != sender.rank:
                self._post(sender, dest, message)
