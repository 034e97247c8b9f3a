"""Network cards whose rate several messages share at the same time.

A message goes through its sender's card, its link and its receiver's card at once. At every instant
it takes what messages that were sent before it leave of each of them, so that a slow link holds up
nobody else, and nothing of a card lies idle that somebody could use.

TCP shares evenly instead. That takes knowing what will be sent, and an arrival has to be known at
the time of sending; the last of several messages is through at the same instant either way, the
others are so earlier here. What is small (SMALL bytes) does not wait in a queue behind large ones,
as it does not for TCP.
"""

from __future__ import annotations

import math
from collections.abc import Collection

SMALL = 4096  # bytes [choice]
_NOTHING = 1e-9  # of a rate: what rounding leaves


class Rate:
    """Bytes per second of a card in one direction, or of a link, and who has taken what of it."""

    def __init__(self, rate: float):
        self._rate = rate
        self._taken: list[tuple[float, float, float]] = []  # from, to, bytes per second

    def left(self, time: float) -> tuple[float, float]:
        """What is left at `time`, and until when it is no less and no more."""
        taken, until = 0.0, math.inf
        for begin, end, rate in self._taken:
            if begin <= time < end:
                taken += rate
                until = min(until, end)
            elif begin > time:
                until = min(until, begin)
        left = self._rate - taken
        return (left if left > _NOTHING * self._rate else 0.0), until

    def take(self, begin: float, end: float, rate: float) -> None:
        """Let a message have so much of it."""
        self._taken.append((begin, end, rate))

    def forget(self, now: float) -> None:
        """Drop what is over."""
        self._taken = [piece for piece in self._taken if piece[1] > now]


def through(nbytes: int, now: float, rates: Collection[Rate]) -> float:
    """When a message that is sent now is through all of `rates`, which it uses up."""
    for rate in rates:
        rate.forget(now)
    if nbytes <= SMALL:
        return now + nbytes / min((rate._rate for rate in rates), default=math.inf)
    time, rest = now, float(nbytes)
    while rates:
        lefts = [rate.left(time) for rate in rates]
        pace, until = min(left for left, _ in lefts), min(end for _, end in lefts)
        end = min(until, time + rest / pace) if pace else until
        if pace:
            for rate in rates:
                rate.take(time, end, pace)
        if end < until or not (rest := rest - pace * (end - time)) > _NOTHING * nbytes:
            return end
        time = end
    return now
