"""Blocks of unequal sizes, compiled: documents are thousands, and each has a length of its own."""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def take(x, starts, sizes, members, packed):
    """Copy blocks `members` of x into `packed`, one after the other."""
    at = 0
    for i in members:
        for n in range(sizes[i]):
            packed[at + n] = x[starts[i] + n]
        at += sizes[i]


@njit(cache=True, nogil=True)
def put(x, starts, sizes, members, packed):
    """Copy `packed` into blocks `members` of x."""
    at = 0
    for i in members:
        for n in range(sizes[i]):
            x[starts[i] + n] = packed[at + n]
        at += sizes[i]


@njit(cache=True, nogil=True)
def total_variation(x, saved, starts, sizes, topics, distances):
    """½ Σ_t |n_it - n'_it| of every block i, with n and n' the counts of topics t in its values of
    x and of `saved`. Whether all values are topics, 0 … topics-1; if not, nothing else is right."""
    more = np.zeros(topics, np.int64)
    for i in range(len(starts)):
        for n in range(starts[i], starts[i] + sizes[i]):
            now, then = x[n], saved[n]
            if not (0 <= now < topics and 0 <= then < topics):
                return False
            more[int(now)] += 1
            more[int(then)] -= 1
        apart = 0
        for t in range(topics):
            apart += abs(more[t])
            more[t] = 0
        distances[i] = 0.5 * apart
    return True
