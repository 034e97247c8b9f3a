"""Network cards that messages share evenly, as connections of TCP do.

A rank has one connection to each other rank, which carries one message after the other. At every
instant the connections at work share the rates of their senders' cards, of their receivers' cards
and of their links so that none could have more without one that has no more than it getting less
(max-min fairness). Bytes pass through all three at once: a slow link holds up nobody else, and
nothing of a card lies idle that somebody could use.

So a message that is sent now may hold up those that are under way, or let them through sooner:
whoever sends asks for `next` again. What a message costs grows with the number of connections at
work: this is for tens of ranks, not for thousands.
"""

from __future__ import annotations

import copy
import math
from collections import deque
from collections.abc import Callable, Collection

_Way = tuple[int, int]  # from a rank to another
_ROUNDING = 1e-12  # of a time: ends that differ by less are the same


class Cards:
    """What is under way between ranks.

    Args:
        card: rank → bytes per second that its card sends, and as many that it receives.
        link: (source, dest) → bytes per second; inf where cards alone count.
    """

    def __init__(self, card: Callable[[int], float], link: Callable[[_Way], float]):
        self._card, self._link = card, link
        self.forget()

    def forget(self) -> None:
        """Nothing is under way."""
        self._time = 0.0
        self._left: dict[_Way, deque[float]] = {}  # bytes of messages, oldest first
        self._pace: dict[_Way, float] = {}
        self._end: dict[_Way, float] = {}  # of the oldest messages at this pace

    def send(self, way: _Way, nbytes: float, now: float) -> None:
        """Put a message on its way."""
        at_work = way in self._left
        self._left.setdefault(way, deque()).append(nbytes)
        if not at_work:
            self._share(now)

    @property
    def next(self) -> float:
        """When the next message will be through, if nothing is sent before; inf without any."""
        return min(self._end.values(), default=math.inf)

    def through(self, now: float) -> list[_Way]:
        """The ways whose oldest message is through by `now`; it is gone then."""
        until = now + _ROUNDING * now
        done = [way for way, end in self._end.items() if end <= until]
        if done:
            self._share(now, done)
        return done

    def foretold(self, way: _Way) -> float:
        """When the newest message of `way` will be through, if nothing else is sent."""
        alone = Cards(self._card, self._link)
        for name in ("_time", "_left", "_pace", "_end"):
            setattr(alone, name, copy.deepcopy(getattr(self, name)))
        while way in alone._left:
            time = alone.next
            alone.through(time)
        return time

    def _share(self, now: float, done: Collection[_Way] = ()) -> None:
        """Bytes pass until `now`; then the first messages of the ways that are `done` are gone, and
        the others go on at the paces that are fair from here."""
        passed, self._time = now - self._time, now
        for way, pace in self._pace.items():
            if passed and way not in done:
                self._left[way][0] = max(0.0, self._left[way][0] - pace * passed)
        for way in done:
            self._left[way].popleft()
            if not self._left[way]:
                del self._left[way]
        self._pace = self._paces(list(self._left))
        self._end = {way: now + self._left[way][0] / pace for way, pace in self._pace.items()}

    def _paces(self, ways: list[_Way]) -> dict[_Way, float]:
        """Bytes per second of each connection at work: the rate of whatever is shortest is divided
        among those that want it, then that of the shortest among the rest, and so on."""
        users: dict[tuple, list[_Way]] = {}
        left: dict[tuple, float] = {}
        for way in ways:
            source, dest = way
            shared = ("out", source), ("in", dest), way
            for name, rate in zip(
                shared, (self._card(source), self._card(dest), self._link(way)), strict=True
            ):
                if rate < math.inf:
                    users.setdefault(name, []).append(way)
                    left[name] = rate
        paces = dict.fromkeys(ways, math.inf)
        while users:
            shortest = min(users, key=lambda name: left[name] / len(users[name]))
            share, served = left[shortest] / len(users[shortest]), set(users[shortest])
            paces.update(dict.fromkeys(served, share))
            for name, wanting in list(users.items()):
                left[name] -= share * len(served.intersection(wanting))
                users[name] = [way for way in wanting if way not in served]
                if not users[name]:
                    del users[name]
        return paces
