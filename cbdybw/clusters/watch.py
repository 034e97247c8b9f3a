"""What faults mean for the time of one rank: what is due, how computing is prolonged, and when a
disconnected rank can talk again. Both clusters ask the same questions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

KILL, PAUSE, SLOW, DISCONNECT, CORRUPT = "kill", "pause", "slow", "disconnect", "corrupt"


class Fault(NamedTuple):
    """What happens to one rank, at an iteration or at a time."""

    kind: str
    rank: int
    iteration: int | None = None
    time: float | None = None  # seconds on the cluster's clock
    seconds: float = 0.0  # that a pause, a slow spell or a disconnection lasts
    factor: float = 1.0  # by which computing takes longer in a slow spell


class _Spell(NamedTuple):
    """Of a pause, of slowness or of a disconnection: from `begin` to before `end`, in seconds."""

    kind: str
    begin: float
    end: float
    factor: float


def _spell(fault: Fault, begin: float) -> _Spell:
    return _Spell(fault.kind, begin, begin + fault.seconds, fault.factor)


class Watch:
    """One rank's faults, and what they mean for its time.

    Spells that begin at a time are known from the start; those that begin at an iteration are
    known, and begin, once `due` has handed them out.
    """

    def __init__(self, faults: Sequence[Fault]):
        self._ahead = list(faults)
        self._spells = [_spell(f, f.time) for f in faults if f.time is not None and f.seconds]

    def due(self, k: int, now: float) -> list[Fault]:
        """The faults of iterations up to `k` and of times up to `now`, each handed out once."""
        if not self._ahead:
            return []
        due = [fault for fault in self._ahead if _is_due(fault, k, now)]
        if due:
            self._ahead = [fault for fault in self._ahead if not _is_due(fault, k, now)]
            self._spells += [_spell(f, now) for f in due if f.time is None and f.seconds]
        return due

    def next_time(self) -> float:
        """When the next fault strikes that has a time; inf if there is none."""
        times = (fault.time for fault in self._ahead if fault.time is not None)
        return min(times, default=math.inf)

    def finish(self, start: float, seconds: float) -> float:
        """When a computation ends that begins at `start` and needs `seconds` of an unhurt rank."""
        spells = [s for s in self._spells if s.end > start and s.kind in (PAUSE, SLOW)]
        edges = {edge for s in spells for edge in (s.begin, s.end) if start < edge < math.inf}
        now, left = start, seconds
        for edge in sorted(edges):
            speed = _speed(spells, now)
            if speed and now + left / speed <= edge:
                break
            left -= speed * (edge - now)
            now = edge
        return now + left / _speed(spells, now)

    def reconnects(self, t: float) -> float:
        """When the rank can talk again, if it is disconnected at `t`; else `t`."""
        return self._after(t, (DISCONNECT,))

    def wakes(self, t: float) -> float:
        """When the rank goes on, if it stands still at `t`; else `t`."""
        return self._after(t, (PAUSE,))

    def hears(self, t: float) -> float:
        """When the rank can hear, if it stands still or is disconnected at `t`; else `t`."""
        return self._after(t, (PAUSE, DISCONNECT))

    def _after(self, t: float, kinds: Sequence[str]) -> float:
        for _, begin, end, _ in sorted((s for s in self._spells if s.kind in kinds), key=_begin):
            if begin <= t < end:
                t = end
        return t


def _begin(spell: _Spell) -> float:
    return spell.begin


def _is_due(fault: Fault, k: int, now: float) -> bool:
    return fault.time <= now if fault.iteration is None else fault.iteration <= k


def _speed(spells: Sequence[_Spell], t: float) -> float:
    """The share of its usual speed at which a rank computes at `t`."""
    speed = 1.0
    for kind, begin, end, factor in spells:
        if begin <= t < end:
            speed = 0.0 if kind == PAUSE else speed / factor
    return speed
