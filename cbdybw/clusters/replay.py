"""A recorded MPI run again, on the virtual cluster.

Each rank gets the messages and the ends of its computations in the recorded order and at the
recorded times. These are all that its coroutine can notice, so it takes the same decisions: the
same active sets, and the same parameters bit for bit.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import numpy as np

from cbdybw.clusters.network import Network
from cbdybw.clusters.trace import Event, decode, load_run
from cbdybw.clusters.virtual import VirtualCluster, VirtualWorker, _Activity, _suspend
from cbdybw.clusters.worker import Kind, Match, Message, Worker
from cbdybw.errors import BadInput


class ReplayCluster(VirtualCluster):
    """A virtual cluster whose events come from the trace of `run`, not from laws."""

    def __init__(self, size: int, run: str | Path, **kwargs: Any):
        super().__init__(size, delay=lambda rank, index: 0.0, network=Network(), **kwargs)
        _, events = load_run(run, "--replay")
        rank, kind, iteration, peer = decode(events["code"])
        if rank.max() >= size:
            raise BadInput(f"--replay={run}: recorded with {rank.max() + 1} ranks, not {size}")
        self._log: list[deque[tuple[float, int, int, int]]] = []
        for r in self.ranks:
            mine = np.flatnonzero(rank == r)
            columns = (events["time"], kind, iteration, peer)
            rows = zip(*(column[mine].tolist() for column in columns), strict=True)
            self._log.append(deque(rows))
        self._outbox: dict[tuple[int, int], deque[Message]] = {}
        self._blocked: set[int] = set()
        self._pending: dict[tuple[int, Any], _Activity] = {}  # computations and collectives

    def run(self, main: Callable[[Worker], Coroutine], start: float = 0.0) -> dict[int, Any]:
        for rank in self.ranks:
            self._next(rank)
        return super().run(main, start)

    def _next(self, rank: int) -> None:
        """Put the next event of `rank` on the heap."""
        if self._log[rank]:
            time = max(self.time, self._log[rank][0][0])
            self._number += 1
            heapq.heappush(self._heap, (time, self._number, self._replay, rank))

    def _replay(self, rank: int) -> None:
        time, kind, iteration, peer = self._log[rank][0]
        worker = self._nodes[rank]
        if kind < Event.COMPUTED:
            messages = self._outbox.get((peer, rank))
            if not messages:  # the clocks of two hosts differ: wait until it has been sent
                self._blocked.add(rank)
                return
            message = messages.popleft()
            if (message.kind, message.iteration) != (kind, iteration):
                raise BadInput(
                    f"--replay: rank {rank} got {Kind(kind).name}({iteration}) from rank {peer} "
                    f"at {time:.6f} s, but {message.kind.name}({message.iteration}) was sent; "
                    "use the flags and the data of the recorded run"
                )
            self._deliver((worker, message))
        elif kind == Event.TIMEOUT:
            activity = self._pending.pop((rank, "timer"))
            worker._waiting.remove(activity)
            self._ready.append((activity, None))
        else:
            key = iteration if kind != Event.COLLECTED else "collective"
            self._wake(rank, key, kind != Event.INTERRUPTED)
        self._log[rank].popleft()
        self._next(rank)

    def _wake(self, rank: int, key: Any, value: bool) -> None:
        activity = self._pending.pop((rank, key), None)
        if activity is None:
            raise BadInput(
                f"--replay: at {self.time:.6f} s rank {rank} does not do what it did when "
                "recorded; use the flags and the data of the recorded run"
            )
        self._ready.append((activity, activity.result if key == "collective" else value))

    async def _computation(
        self, worker: VirtualWorker, index: int, work: float, until: Match | None
    ) -> bool:
        self._running.waits = "the recorded end of its computation"
        self._pending[worker.rank, index] = self._running
        return await _suspend()

    def _timer(self, activity: _Activity, timeout: float) -> None:
        self._pending[activity.worker.rank, "timer"] = activity

    def _post(self, sender: VirtualWorker, dest: int, message: Message) -> None:
        self._outbox.setdefault((sender.rank, dest), deque()).append(message)
        if dest in self._blocked:
            self._blocked.remove(dest)
            self._next(dest)

    def _post_all(self, sender: VirtualWorker, message: Message) -> None:
        for dest in self.ranks:
            if dest != sender.rank:
                self._post(sender, dest, message)
