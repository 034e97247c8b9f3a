"""Network cards that messages share evenly, as connections of TCP do.

A rank has one connection to each other rank, which carries one message after the other. At every
instant the connections at work share the rates of their senders' cards, of their receivers' cards
and of their links so that none could have more without one that has no more than it getting less
(max-min fairness). Bytes pass through all three at once: a slow link holds up nobody else, and
nothing of a card lies idle that somebody could use.

So a message that is sent now may hold up one that is under way: what is foretold of a message when
it is sent is the earliest time at which it can be through, and has to be asked for again then.
The cost of a question grows with the square of the number of connections at work: this is for
tens of ranks, not for thousands.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator

_Way = tuple[int, int]  # from a rank to another
_NOTHING = 1e-6  # bytes: what rounding leaves of a message


class Cards:
    """What is under way between ranks.

    Args:
        card: rank → bytes per second that its card sends, and as many that it receives.
        link: (source, dest) → bytes per second; inf where cards alone count.
    """

    def __init__(self, card: Callable[[int], float], link: Callable[[_Way], float]):
        self._card, self._link = card, link
        self._time = 0.0
        self._under_way: dict[_Way, deque[float]] = {}  # bytes left of messages, oldest first
        self._through: dict[_Way, deque[float]] = {}  # when those that nobody has taken were so

    def send(self, way: _Way, nbytes: float, now: float) -> float:
        """Put a message on its way; when it will be through if nothing else is sent."""
        self._advance(now)
        self._under_way.setdefault(way, deque()).append(nbytes)
        return self._foretold(way, len(self._under_way[way]))

    def oldest(self, way: _Way, now: float) -> float:
        """When the oldest message of `way` that has not been taken is or will be through."""
        self._advance(now)
        through = self._through.get(way)
        return through[0] if through else self._foretold(way, 1)

    def take(self, way: _Way) -> None:
        """The oldest message of `way` has arrived."""
        if self._through.get(way):
            self._through[way].popleft()
        else:  # but for rounding it is through
            self._finish(self._under_way, way)

    def forget(self) -> None:
        """Nothing is under way."""
        self._under_way.clear()
        self._through.clear()

    def _advance(self, now: float) -> None:
        for time, way in self._run(self._under_way, self._time, now):
            self._through.setdefault(way, deque()).append(time)
        self._time = max(self._time, now)

    def _foretold(self, way: _Way, nth: int) -> float:
        """When the nth message under way on `way` will be through."""
        copy = {other: deque(left) for other, left in self._under_way.items()}
        for time, finished in self._run(copy, self._time, math.inf):
            nth -= finished == way
            if nth == 0:
                return time
        raise ValueError(f"nothing is under way on {way}")

    def _run(
        self, under_way: dict[_Way, deque[float]], begin: float, end: float
    ) -> Iterator[tuple[float, _Way]]:
        """Let time pass from `begin` to `end`: each message that gets through, and when."""
        time = begin
        while under_way and time < end:
            paces = self._paces(list(under_way))
            step = min(under_way[way][0] / pace for way, pace in paces.items())
            passed = min(step, end - time)
            for way, pace in paces.items():
                under_way[way][0] -= pace * passed if passed else 0.0
            time = time + step if step <= end - time else end
            for way, pace in paces.items():
                if pace == math.inf or under_way[way][0] <= _NOTHING:
                    self._finish(under_way, way)
                    yield time, way

    @staticmethod
    def _finish(under_way: dict[_Way, deque[float]], way: _Way) -> None:
        under_way[way].popleft()
        if not under_way[way]:
            del under_way[way]

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
