"""Carries out the faults of one MPI rank, on itself."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

from cbdybw.clusters.compute_thread import Job
from cbdybw.clusters.loop import Loop
from cbdybw.clusters.watch import CORRUPT, DISCONNECT, KILL, PAUSE, Fault, Watch
from cbdybw.clusters.wire import CuttableWire


class Strikes:
    """Strikes when the rank reaches an iteration (`reach`) and whenever the loop looks (`look`).

    Args:
        corrupt: damages the newest file of a rank's running checkpoint.
        notes: a folder; each fault is noted there before it strikes, as a line of JSON in the
            rank's own file: rank, kind, the iteration reached, and the rank's clock in seconds.
    """

    def __init__(
        self,
        rank: int,
        watch: Watch,
        loop: Loop,
        wire: CuttableWire,
        corrupt: Callable[[int], None] | None,
        notes: str | Path | None,
    ):
        self._rank, self._watch, self._loop, self._wire = rank, watch, loop, wire
        self._corrupt, self._notes = corrupt, notes
        self._reached, self._next = -1, watch.next_time()

    def reach(self, k: int) -> None:
        """The rank has reached iteration `k`."""
        self._reached = max(self._reached, k)
        self._strike()

    def look(self) -> None:
        """Strike what is due by the clock, and end a disconnection that is over."""
        now = self._loop.clock()
        if now >= self._next:
            self._strike()
        if self._wire.is_cut and self._watch.reconnects(now) <= now:
            self._wire.mend()

    def prolong(self, job: Job) -> None:
        """Let the end of a computation whose function has returned be where the faults put it."""
        job.deadline = self._watch.finish(job.start, max(job.seconds, job.took))

    def _strike(self) -> None:
        now = self._loop.clock()
        due = self._watch.due(self._reached, now)
        self._next = self._watch.next_time()
        for fault in due:
            self._note(fault, self._loop.clock() if fault.kind == KILL else now)
            if fault.kind == KILL:
                os.kill(os.getpid(), signal.SIGKILL)
            elif fault.kind == PAUSE:
                self._pause(fault.seconds + (now if fault.time is None else fault.time))
            elif fault.kind == DISCONNECT:
                self._wire.cut()
            elif fault.kind == CORRUPT:
                self._corrupt(self._rank)
        for job in self._loop.computing if due else ():
            if job.ran:
                self.prolong(job)

    def _pause(self, end: float) -> None:
        """Stand still until `end`; what has a time strikes meanwhile."""
        while self._loop.clock() < end:
            self._loop.stand_still(min(end, self._next))
            if self._next <= self._loop.clock():
                self._strike()

    def _note(self, fault: Fault, clock: float) -> None:
        if not self._notes:
            return
        said = {
            "rank": self._rank,
            "kind": fault.kind,
            "iteration": self._reached,
            "clock": clock,
        }
        os.makedirs(self._notes, exist_ok=True)
        path = Path(self._notes, f"faults-{self._rank}.jsonl")
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        os.write(file, json.dumps(said).encode() + b"\n")
        os.close(file)
