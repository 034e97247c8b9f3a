"""Delay laws: how long worker `rank` computes when it starts at iteration `index`.

A law is a pure function of (seed, rank, index): the same on both clusters, whatever the order of
calls. Draws are made in blocks of consecutive indices, each by a generator of its own: Philox is
keyed directly by (seed, purpose, rank) and counts from the block, so no state is carried from
block to block, and 10,000 ranks cost 10,000 cheap constructions (a SeedSequence takes four times
as long).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from cbdybw import specs
from cbdybw.errors import BadInput
from cbdybw.specs import PATH, RANKS, Choice, integer, number

DelayLaw = Callable[[int, int], float]
"""law(rank, index) -> seconds."""

BLOCK = 64  # consecutive indices that are drawn together
_TIMES, _STRAGGLERS = 0, 1  # purposes of a generator

Seconds = Callable[[int, int], np.ndarray]
"""seconds(rank, block) -> the seconds of indices block·BLOCK … (block+1)·BLOCK-1, (BLOCK,)."""


def parse(spec: str, workers: int, seed: int) -> DelayLaw:
    """The law that `spec` describes (see `LAWS`) for ranks 0 … workers-1.

    `seed` lies in 0 … 2^64-1. Raises BadInput for an unknown law or key, a missing key, or a value
    that makes no sense.
    """
    choice, values = specs.select(spec, "--delay", LAWS)
    return _cached(choice.build(Draws(f"--delay={spec}", workers, seed), **values), workers)


def _cached(seconds: Seconds, workers: int) -> DelayLaw:
    """Look numbers up in the block that a rank used last: the simulator's innermost loop."""
    first = [-BLOCK] * workers
    current: list[list[float]] = [[] for _ in range(workers)]

    def law(rank: int, index: int) -> float:
        at = index - first[rank]
        if 0 <= at < BLOCK:
            return current[rank][at]
        block, at = divmod(index, BLOCK)
        current[rank] = seconds(rank, block).tolist()
        first[rank] = index - at
        return current[rank][at]

    return law


class Draws(NamedTuple):
    """What a law needs to know beside its keys."""

    given: str  # the flag as typed, for errors
    workers: int
    seed: int

    def generator(self, purpose: int, rank: int, block: int) -> np.random.Generator:
        key = self.seed | int(rank) << 64 | purpose << 96
        return np.random.Generator(np.random.Philox(key=key, counter=block << 128))


def none(draws: Draws) -> Seconds:
    return constant(draws, 0.0)


def constant(draws: Draws, mean: float) -> Seconds:
    block_of_means = np.full(BLOCK, mean)
    return lambda rank, block: block_of_means


def exponential(draws: Draws, mean: float) -> Seconds:
    return shifted_exponential(draws, 0.0, mean)


def shifted_exponential(draws: Draws, base: float, mean: float) -> Seconds:
    def seconds(rank: int, block: int) -> np.ndarray:
        return base + mean * draws.generator(_TIMES, rank, block).standard_exponential(BLOCK)

    return seconds


def pareto(draws: Draws, scale: float, alpha: float) -> Seconds:
    def seconds(rank: int, block: int) -> np.ndarray:
        # numpy's pareto is the Lomax law, which starts at 0.
        return scale * (1.0 + draws.generator(_TIMES, rank, block).pareto(alpha, BLOCK))

    return seconds


def lognormal(draws: Draws, mean: float, sigma: float) -> Seconds:
    mu = np.log(mean) - sigma**2 / 2

    def seconds(rank: int, block: int) -> np.ndarray:
        return draws.generator(_TIMES, rank, block).lognormal(mu, sigma, BLOCK)

    return seconds


def persistent(
    draws: Draws, ranks: tuple[int, ...], slowdown: float, base: float, jitter: float
) -> Seconds:
    if max(ranks) >= draws.workers:
        raise BadInput(
            f"{draws.given}: there is no worker {max(ranks)}; use ranks 0 … {draws.workers - 1}"
        )
    means = np.full(draws.workers, base)
    means[list(ranks)] *= slowdown
    return lambda rank, block: means[rank] * _jitter(draws, rank, block, jitter)


def random_straggler(
    draws: Draws, count: int, slowdown: float, base: float, jitter: float
) -> Seconds:
    if count > draws.workers:
        raise BadInput(
            f"{draws.given}: {count} of {draws.workers} workers cannot straggle; "
            f"use a count up to {draws.workers}"
        )

    @lru_cache(maxsize=16)  # ranks that are a few blocks apart share these draws
    def straggles(block: int) -> np.ndarray:
        """Whether a rank straggles at an index, (workers, BLOCK); the indices are independent."""
        draw = draws.generator(_STRAGGLERS, 0, block)
        chosen = np.zeros((draws.workers, BLOCK), dtype=bool)
        for at in range(BLOCK):
            chosen[draw.choice(draws.workers, count, replace=False), at] = True
        return chosen

    def seconds(rank: int, block: int) -> np.ndarray:
        means = np.where(straggles(block)[rank], base * slowdown, base)
        return means * _jitter(draws, rank, block, jitter)

    return seconds


def _jitter(draws: Draws, rank: int, block: int, jitter: float) -> np.ndarray:
    """Factors uniform in [1, 1 + jitter), (BLOCK,)."""
    if jitter == 0:
        return np.ones(BLOCK)
    return 1.0 + jitter * draws.generator(_TIMES, rank, block).random(BLOCK)


def machines(
    draws: Draws, path: str, heterogeneity: float, processes: int, scale: float, jitter: float
) -> Seconds:
    from cbdybw.clusters.machines import load

    means = scale * load(path).step_seconds(heterogeneity, processes)
    if len(means) != draws.workers:
        raise BadInput(
            f"{draws.given}: {path} has {len(means) // processes} machines, which makes "
            f"{len(means)} workers, not {draws.workers}; use --workers={len(means)}"
        )
    return lambda rank, block: means[rank] * _jitter(draws, rank, block, jitter)


def trace(draws: Draws, path: str) -> Seconds:
    from cbdybw.clusters.trace import compute_times

    recorded = compute_times(path)
    for rank in range(draws.workers):
        if rank not in recorded or not len(recorded[rank][0]):
            raise BadInput(
                f"{draws.given}: worker {rank} of {draws.workers} computed nothing there; "
                "use a trace of as many workers, or fewer --workers"
            )
    return replayed(recorded)


def replayed(recorded: Mapping[int, tuple[np.ndarray, np.ndarray]]) -> Seconds:
    """Recorded times: rank -> (indices ascending, seconds), both (n,), n ≥ 1.

    Not every iteration has a compute that started at it (a straggler skips some, and the new run
    may be longer): the latest recorded before it stands in, before the first the first.
    """

    def seconds(rank: int, block: int) -> np.ndarray:
        indices, times = recorded[rank]
        wanted = np.arange(block * BLOCK, (block + 1) * BLOCK)
        return times[np.maximum(np.searchsorted(indices, wanted, side="right") - 1, 0)]

    return seconds


_MOST = 1e9  # 31 years: beyond it lie typing errors and, in the end, infinity
_SECONDS = number(0, _MOST)
_STRAGGLER = {
    "slowdown": number(1, _MOST),
    "base": number(0, _MOST, default="1"),
    "jitter": number(0, _MOST, default="0"),
}

LAWS = {
    "none": Choice(none, "no delay"),
    "constant": Choice(constant, "`mean` seconds always", {"mean": _SECONDS}),
    "exponential": Choice(exponential, "exponential with this mean", {"mean": _SECONDS}),
    "shifted_exponential": Choice(
        shifted_exponential,
        "`base` plus an exponential with this mean: base + mean on average",
        {"base": _SECONDS, "mean": _SECONDS},
    ),
    "pareto": Choice(
        pareto,
        "P(t > x) = (scale/x)^alpha from `scale` up: scale·alpha/(alpha-1) on average",
        {"scale": _SECONDS, "alpha": number(1, above=True)},
    ),
    "lognormal": Choice(
        lognormal,
        "lognormal; `mean` is the mean of the times, `sigma` the deviation of their logarithms",
        {"mean": number(0, _MOST, above=True), "sigma": number(0, 10)},
    ),
    "persistent": Choice(
        persistent,
        "`base` seconds, `slowdown` times as long on `ranks`; times a factor U(1, 1+jitter)",
        {"ranks": RANKS, **_STRAGGLER},
    ),
    "random_straggler": Choice(
        random_straggler,
        "the same, with `count` other ranks drawn at each iteration",
        {"count": integer(1, default="1"), **_STRAGGLER},
    ),
    "machines": Choice(
        machines,
        "the machines of a TOML file, its group slowed to this heterogeneity (0: as it says), so "
        "many workers on each; times `scale` and U(1, 1+jitter)",
        {
            "path": PATH,
            "heterogeneity": number(0, _MOST, default="0"),
            "processes": integer(1, default="1"),
            "scale": number(0, _MOST, above=True, default="1"),
            "jitter": number(0, _MOST, default="0.05"),
        },
    ),
    "trace": Choice(trace, "the compute times that an earlier run recorded", {"path": PATH}),
}
"""All laws by name; means, bases and scales are seconds."""
