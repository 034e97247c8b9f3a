"""One trial: a failure, and what it costs under each scheme of checkpoints and recovery.

Source: SCAR (arXiv 1810.07354), sections 4 and 5. A clean run is at the target after K iterations.
T of them had been completed, the checkpoint that is due then among them, when a random share p of
the blocks was lost. Whatever the scheme restores, iterations go on from T; the cost is by how many
more than K they are at the target.

All of a trial but T's law hangs on its seed: initial state, minibatches, lost blocks. The clean run
and the runs of all schemes share it, and the blocks lost for p = ¼ are among those for ½.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from cbdybw.clusters.worker import keyed_rng
from cbdybw.errors import BadInput
from cbdybw.problem import Iterated, iterate
from cbdybw.scar import recovery
from cbdybw.scar.checkpoint import Memory, RunningCheckpoint
from experiments.scar.space import place


class Mode(NamedTuple):
    """A scheme: which blocks go back, `full` (all) or `partial` (the lost); how they were saved,
    by policy and fraction r of the blocks; and the share p that is lost."""

    recovery: str
    policy: str
    fraction: float
    lost: float


HALF = 0.5
SHARES = (0.25, HALF, 0.75)
FRACTIONS = (0.125, 0.25, 0.5)
TRADITIONAL = Mode("full", "full", 1.0, HALF)
"""It costs the same for every p."""
SCAR = Mode("partial", "priority", 0.125, HALF)
"""The paper's own [recalled]."""
MODES = (
    TRADITIONAL,
    *(Mode("partial", "full", 1.0, p) for p in SHARES),
    *(Mode("partial", how, r, HALF) for how in ("priority", "round", "random") for r in FRACTIONS),
)


class Rules(NamedTuple):
    """Of all trials of a run.

    Attributes:
        target: the criterion at or below which a run is finished.
        about: K0, iterations that this usually takes.
        most: iterations after which a run is given up.
        period: C, iterations in which a running checkpoint saves as many values as there are.
    """

    target: float
    about: int
    most: int
    period: int


class Outcome(NamedTuple):
    """Of a failure under one scheme.

    Attributes:
        cost: iterations beyond K; where `reached` is False at least so many.
        reached: whether it came to the target.
        change: norm of the perturbation that the recovery was.
        age: iterations since the saved copies were made, the mean over all blocks and over the
            last C iterations before the failure.
        values: saved in the whole periods before the failure, as a multiple of all values in each.
    """

    cost: int
    reached: bool
    change: float
    age: float
    values: float


class Trial(NamedTuple):
    """K, T, and the outcome of each mode."""

    clean: int
    failure: int
    outcomes: dict[Mode, Outcome]


def trial(problem: Iterated, seed: int, rules: Rules, modes: tuple[Mode, ...] = MODES) -> Trial:
    """The trial of a seed. BadInput where the clean run is not there in time, or is too soon for
    a failure between its first whole period and its end."""
    states = clean_run(problem, seed, rules)
    end = len(states) - 1
    at = failure(seed, rules, end)
    order = keyed_rng(seed, "lost", 0, 0).permutation(len(problem.blocks))
    where = place(problem)
    kept = {(m.policy, m.fraction): Kept(problem, states, at, m, rules, seed) for m in modes}
    outcomes = {}
    for mode in modes:
        saved = kept[mode.policy, mode.fraction]
        x = saved.recovered(states[at], lost_blocks(order, mode.lost), mode.recovery)
        last, reached = finish(problem, x, at, rules)
        change = where.norm(x, states[at])
        outcomes[mode] = Outcome(last - end, reached, change, saved.age, saved.values)
    return Trial(end, at, outcomes)


def clean_run(problem: Iterated, seed: int, rules: Rules) -> list[np.ndarray]:
    """x(0) … x(K), K the first iteration whose criterion is at or below the target."""
    x = problem.initial(keyed_rng(seed, "initial", 0, 0))
    states = [x]
    while problem.criterion(x) > rules.target:
        if len(states) > rules.most:
            raise BadInput(
                f"--target={rules.target:g}: the failure-free run of trial {seed} is at "
                f"{problem.criterion(x):g} after {rules.most} iterations; give a higher target, "
                "or more with --most"
            )
        x = iterate(problem, x, len(states) - 1)
        states.append(x)
    return states


def failure(seed: int, rules: Rules, end: int) -> int:
    """T, geometric with q = 1/(0.5 K0), given that C ≤ T < K [choice]: there has been a whole
    period, and the run still goes on. (Where K0 bounds T instead, as one might, some failures
    come after the end.)"""
    if end <= rules.period:
        raise BadInput(
            f"--target={rules.target:g}: trial {seed} is there after {end} iterations, before a "
            f"failure after --period={rules.period}; give a lower target"
        )
    stay = math.log1p(-2 / rules.about)
    u = keyed_rng(seed, "failure", 0, 0).random()
    further = math.log1p(u * math.expm1(stay * (end - rules.period))) / stay
    return rules.period + min(int(further), end - rules.period - 1)


def lost_blocks(order: np.ndarray, share: float) -> np.ndarray:
    """The first share of a random order of the blocks, ascending."""
    return np.sort(order[: round(share * len(order))])


class Kept:
    """The running checkpoint of a mode, as it stands after the first `at` of a run's states."""

    def __init__(
        self,
        problem: Iterated,
        states: list[np.ndarray],
        at: int,
        mode: Mode,
        rules: Rules,
        seed: int,
    ):
        everything = np.arange(len(problem.blocks))
        checkpoint = RunningCheckpoint(
            problem.blocks,
            everything,
            states[0],
            fraction=mode.fraction,
            period=rules.period,
            policy=mode.policy,
            distance=problem.distance,
            rng=lambda k: keyed_rng(seed, "checkpoint", 0, k),
            store=Memory(problem.blocks),
        )
        periods = at // rules.period
        ages = []
        first = checkpoint.bytes_written
        for k in range(1, at + 1):
            if checkpoint.due(k):
                checkpoint.save(states[k], k)
            if k > at - rules.period:
                ages.append(float(np.mean(k - checkpoint.saved_at)))
            if k == periods * rules.period:
                self.values = (checkpoint.bytes_written - first) / first / periods
        self.age = float(np.mean(ages))
        self._blocks, self._cached = problem.blocks, checkpoint.cached

    def recovered(self, x: np.ndarray, lost: np.ndarray, how: str) -> np.ndarray:
        """What x becomes when `lost` blocks of it are gone."""
        if how == "full":
            return recovery.full(self._cached)
        return recovery.partial(x, lost, self._blocks, self._blocks.take(self._cached, lost))


def finish(problem: Iterated, x: np.ndarray, k: int, rules: Rules) -> tuple[int, bool]:
    """Iterate from x, as it is after k iterations: the iteration at the target and True, or the
    last one and False."""
    while problem.criterion(x) > rules.target:
        if k >= rules.most:
            return k, False
        x = iterate(problem, x, k)
        k += 1
    return k, True
