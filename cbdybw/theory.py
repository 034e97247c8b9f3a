"""Exact mean iteration times of DTUR on a path, for tests and for the report.

Only the order in which the workers finish decides which edges an iteration visits, and with
independent, identically distributed times all orders are equally likely. So an epoch is a Markov
chain over the sets of unvisited edges, the same for every continuous law. The law enters only
through its places, the mean times of the first, second … last worker to finish:

    θ̄ = sum over m of P(the m-th worker to finish ends the iteration) · E[t_(m)]

where P is a mean over the iterations of an epoch (renewal reward: every epoch begins with all
edges unvisited). It is computed in fractions and rounded once, at the end.

Times are drawn afresh at each iteration: the paper's clock (Xiong et al. 2021, Algorithm 2). With
exponential times it is the honest clock of `carry`, too: what is left of an exponential time is
distributed like a new one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from math import comb

import numpy as np

from cbdybw.errors import BadInput

MOST_WORKERS = 12  # the chain has 2^(N-1) states: 0.4 s at N=10, 2 s at N=12


@dataclass(frozen=True)
class Expected:
    """Expected values of one setting; times in the unit of the law.

    Attributes:
        mean: mean iteration time θ̄ of DTUR.
        full: mean iteration time of cb-Full with the global barrier, E[max t_j].
        iterations_per_epoch: N-1 under the rule "one", fewer under "all".
        active: mean fraction of workers that have finished at θ.
    """

    mean: float
    full: float
    iterations_per_epoch: float
    active: float

    @property
    def reduction(self) -> float:
        """1 - θ̄/E[max t_j]: by how much an iteration is shorter than cb-Full's."""
        return 1.0 - self.mean / self.full


def harmonic(n: int) -> Fraction:
    """H_n = 1 + 1/2 + … + 1/n, the mean of the longest of n Exp(1) times."""
    return sum((Fraction(1, i) for i in range(1, n + 1)), Fraction(0))


def dtur(n: int, places: Sequence[Fraction | float], rule: str = "one") -> Expected:
    """DTUR on a path of n workers whose m-th to finish takes places[m-1] on average.

    Holds for exchangeable times of any law. Two edges complete at the same moment when the last
    to finish stands between two that are done: the `rule` "one" visits the first of them along
    the path, "all" visits both. Raises BadInput unless 2 ≤ n ≤ MOST_WORKERS.
    """
    ends = _ends(n, rule)
    iterations = sum(ends)
    mean = sum(p * Fraction(t) for p, t in zip(ends, places, strict=True)) / iterations
    finished = sum(p * m for m, p in enumerate(ends, 1)) / iterations
    return Expected(float(mean), float(places[-1]), float(iterations), float(finished / n))


def dtur_exponential(n: int, rule: str = "one") -> Expected:
    """DTUR on a path of n workers, times Exp(mean 1)."""
    return shifted_exponential(n, base=0.0, mean=1.0, rule=rule)


def shifted_exponential(n: int, base: float, mean: float, rule: str = "one") -> Expected:
    """DTUR on a path of n workers, times base + Exp(mean)."""
    # n workers race for the first place, n-1 for the second …: E t_(m) = 1/n + … + 1/(n-m+1).
    places = [harmonic(n) - harmonic(n - m) for m in range(1, n + 1)]
    return dtur(n, [Fraction(base) + Fraction(mean) * place for place in places], rule)


def one_random_straggler(n: int, slowdown: float, rule: str = "one") -> Expected:
    """A worker drawn at each iteration takes `slowdown`, the others 1 (the limit of no jitter).

    A random worker that is last behind the others in random order leaves every order of all
    equally likely. Exactly equal times are another matter: the edges then complete together and
    are visited in path order, not at random (n=6, slowdown=6: 1.448 instead of 1.416).
    """
    return dtur(n, [1.0] * (n - 1) + [slowdown], rule)


def persistent_straggler(n: int, slowdown: float, interior: bool) -> Expected:
    """One fixed worker takes `slowdown`, the others exactly 1; rule "one".

    An epoch visits each of its n-1 edges once, and those of the straggler (two in the `interior`
    of the path, one at an end) take `slowdown`.
    """
    _check(n, "one")
    if interior and n == 2:
        raise BadInput("exact theory: a path of 2 workers has no interior; use 3 or more")
    edges, slow = n - 1, 2 if interior else 1
    return Expected(
        mean=((edges - slow) + slow * slowdown) / edges,
        full=float(slowdown),
        iterations_per_epoch=float(edges),
        active=((edges - slow) * (n - 1) / n + slow) / edges,
    )


def _check(n: int, rule: str) -> None:
    if not 2 <= n <= MOST_WORKERS:
        raise BadInput(f"exact theory: not for {n} workers; use 2 … {MOST_WORKERS}")
    if rule not in ("one", "all"):
        raise BadInput(f"--edge_rule={rule}: not known; use one or all")


@cache
def _ends(n: int, rule: str) -> tuple[Fraction, ...]:
    """How many iterations of an epoch the m-th worker to finish ends, on average; m = 1 … n.

    A set of edges is a bit mask: bit i is the edge (i, i+1).
    """
    _check(n, rule)
    every = 2 ** (n - 1) - 1
    reached = [Fraction(0)] * every + [Fraction(1)]  # P(an epoch passes through this unvisited set)
    ends = [Fraction(0)] * n
    for unvisited in range(every, 0, -1):
        for m, complete, p in _firings(n, unvisited):
            p *= reached[unvisited]
            ends[m - 1] += p
            visited = complete if rule == "all" else complete & -complete
            reached[unvisited & ~visited] += p
    return tuple(ends)


def _firings(n: int, unvisited: int) -> Iterator[tuple[int, int, Fraction]]:
    """All (m, edges complete at θ, probability): the m-th to finish, v, completes the edges.

    The m-1 before v are a set without an unvisited edge between two of its members. It is counted
    by size left and right of v, as is whether it contains v's neighbour across an unvisited edge.
    """
    left = _independent(n, unvisited)
    right = _independent(n, sum(1 << (n - 2 - i) for i in range(n - 1) if unvisited >> i & 1))
    for v in range(n):
        to_left, to_right = unvisited & (1 << v >> 1), unvisited & (1 << v)
        left_done, left_open = _split(left[v], to_left)
        right_done, right_open = _split(right[n - 1 - v], to_right)
        for before, after, complete in (
            (left_done, right_open, to_left),
            (left_open, right_done, to_right),
            (left_done, right_done, to_left | to_right),
        ):
            counts = np.convolve(before, after)
            for size in map(int, np.flatnonzero(counts)):
                orders = comb(n, size) * (n - size)
                yield size + 1, complete, Fraction(int(counts[size]), orders)


def _independent(n: int, unvisited: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """For v = 0 … n-1: (sets with v-1, sets without v-1), subsets of {0 … v-1} without an
    unvisited edge between two members, counted by size; each of shape (n,).
    """
    none, empty = np.zeros(n, dtype=np.int64), np.eye(1, n, dtype=np.int64)[0]
    sets = [(none, empty)]
    for v in range(1, n):
        having, lacking = sets[-1]  # v-2
        joined = bool(v >= 2 and unvisited >> (v - 2) & 1)
        may_grow = lacking if joined else having + lacking
        sets.append((np.roll(may_grow, 1), having + lacking))
    return sets


def _split(sets: tuple[np.ndarray, np.ndarray], edge: int) -> tuple[np.ndarray, np.ndarray]:
    """The counts of sets that complete `edge` (0: there is none) and of those that do not."""
    having, lacking = sets
    return (having, lacking) if edge else (np.zeros_like(having), having + lacking)
