"""Perturbations and the bound on their cost: `python -m experiments.scar.perturbed --workload=qp …`

Source: SCAR (arXiv 1810.07354), section 3 and its study of perturbations. In iteration T of a clean
run, uniform on 1 … K-1 [choice], x(T) is moved by δ, in one of three ways:

    random       in a random direction, 0.03 to 3 times as far as x(T) is from x* [choice]; of a
                 topic model a random share of the tokens, 2 to 100 % [choice], gets random topics
    adversarial  as far, directly away from x*; the same tokens get the topic that is the least
                 used in their document [choice]
    reset        a random share of the blocks, 2 to 100 % [choice], goes back to x(0)

What that costs is counted as in `experiments.scar.trial` and held against Theorem 3.2. x* is the
iterate after --far iterations [choice], but where the problem knows it, and c, exactly.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from cbdybw.clusters.worker import keyed_rng
from cbdybw.errors import BadInput
from cbdybw.learning import qp
from cbdybw.learning.qp import QuadraticProgram
from cbdybw.problem import Iterated, iterate
from cbdybw.scar import iteration_cost
from cbdybw.scar.iteration_cost import Estimate
from experiments.flagged import flag
from experiments.scar.problems import Log, Source, main, prepare_data
from experiments.scar.space import Place, place
from experiments.scar.trial import Rules, clean_run, finish
from experiments.scar.trials import Counted

__all__ = ["ALONE", "Settings", "outcome", "prepare_data"]

ALONE = False
LEAST, MOST = 0.03, 3.0
"""Of ‖δ‖/‖x(T) - x*‖."""
LEAST_SHARE = 0.02
TIGHT = ((50, 0.01), (50, 0.1))
"""T and ‖δ‖ of the tightness cases: c = 0.9, r0 = 10 [derived]."""
TARGETS = 200
"""Of a tightness case: spread evenly over one iteration's fall."""


@dataclass(frozen=True)
class Settings(Counted):
    """One field a flag."""

    far: int = flag(500, "iterations after which a run is taken to be at x*")
    tight: bool = flag(
        False,
        "start, and perturb, along the slowest eigenvector of qp, where the cost is the bound's",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tight and self.workload.partition(":")[0] != "qp":
            raise BadInput(f"--tight: --workload={self.workload} has no eigenvectors; use qp")


class Speed(NamedTuple):
    """How a clean run converges: what the bound stands on.

    Attributes:
        c, r0: exact, or as estimated from the distances from x*.
        cautious_c, cautious_r0: a larger c and a smaller r0, for which the bound is larger.
    """

    c: float
    r0: float
    cautious_c: float
    cautious_r0: float

    def bounds(self, at: int, norm: float) -> tuple[float, float]:
        """Of a perturbation, and the same with the cautious estimates."""
        pairs = (self.c, self.r0), (self.cautious_c, self.cautious_r0)
        return tuple(iteration_cost.bound_single(c, r0, at, norm) for c, r0 in pairs)


def outcome(settings: Settings, log: Log) -> dict[str, Any]:
    """What a row keeps: `result`, and `points`, column → a value a perturbation."""
    began = time.perf_counter()
    source = Source(settings, log)
    perturb = _tight if settings.tight else _perturbed
    points = [point for seed in settings.seeds for point in perturb(source(seed), seed, settings)]
    result = {
        "status": "finished",
        "notice": source.notice,
        "wall_seconds": time.perf_counter() - began,
    }
    columns = {name: [_short(p[name]) for p in points] for name in points[0]}
    return {"result": result, "points": columns}


def _perturbed(problem: Iterated, seed: int, settings: Settings) -> list[dict[str, Any]]:
    """The three perturbations of a trial."""
    rules = Rules(settings.target, 0, settings.most, 0)
    states = clean_run(problem, seed, rules)
    end = len(states) - 1
    rng = keyed_rng(seed, "perturbation", 0, 0)
    at = int(rng.integers(1, end))
    where = place(problem)
    far = _far(problem, states, settings.far)
    speed = _speed(problem, [where.norm(x, far[-1]) for x in states])
    how = Perturbation(problem, where, states[0], far[-1], rng)
    points = []
    for kind, move in how.kinds.items():
        moved = move(states[at]).astype(np.float32)
        norm = where.norm(moved, states[at])
        last, reached = finish(problem, moved, at, rules)
        bound, cautious = speed.bounds(at, norm)
        points.append(
            {"seed": seed, "kind": kind, "clean": end, "at": at, "norm": norm, "cost": last - end}
            | {"reached": reached, "bound": bound, "cautious": cautious, **speed._asdict()}
        )
    return points


def _far(problem: Iterated, states: list[np.ndarray], far: int) -> list[np.ndarray]:
    """The run's states, and those that follow up to iteration `far`."""
    states = list(states)
    while len(states) <= far:
        states.append(iterate(problem, states[-1], len(states) - 1))
    return states


def _speed(problem: Iterated, distances: list[float]) -> Speed:
    """c from a line through the distances of the clean run from x*, or from its two ends where they
    bend so much that no line can be told from noise, as some topic models' do [choice].

    Cautious is the largest ratio of distances that follow each other or, where noise makes that 1
    or more, the upper end of the line's interval; and r0 as where that line begins, if less.
    """
    first, last = distances[0], distances[-1]
    try:
        found, ratio = iteration_cost.fit(distances), iteration_cost.largest_ratio(distances)
    except BadInput:
        c = (last / first) ** (1 / (len(distances) - 1))
        found, ratio = Estimate(c, first, (c, 1.0), (first, first)), 1.0
    cautious = max(found.c, ratio if ratio < 1 else min(found.c_interval[1], 1 - 1e-6))
    c = getattr(problem, "contraction", found.c)
    return Speed(c, first, max(c, cautious), min(first, found.r0))


class Perturbation:
    """Kind → what it makes of a state; see above."""

    def __init__(
        self,
        problem: Iterated,
        where: Place,
        first: np.ndarray,
        limit: np.ndarray,
        rng: np.random.Generator,
    ):
        self._problem, self._where = problem, where
        self._first, self._limit, self._rng = first, limit, rng
        topics = getattr(problem, "topics", 0)
        self.kinds: dict[str, Callable[[np.ndarray], np.ndarray]] = {
            "random": self._scattered if topics else self._random,
            "adversarial": self._misplaced if topics else self._adversarial,
            "reset": self._reset,
        }
        self._size = math.exp(rng.uniform(math.log(LEAST), math.log(MOST)))
        self._share = math.exp(rng.uniform(math.log(LEAST_SHARE), 0.0))

    def _random(self, x: np.ndarray) -> np.ndarray:
        direction = self._rng.standard_normal(len(x))
        return x + self._length(x) / np.linalg.norm(direction) * direction

    def _adversarial(self, x: np.ndarray) -> np.ndarray:
        return x + self._size * (x - self._limit)

    def _length(self, x: np.ndarray) -> float:
        return self._size * self._where.norm(x, self._limit)

    def _reset(self, x: np.ndarray) -> np.ndarray:
        blocks = self._problem.blocks
        n = max(1, round(self._share * len(blocks)))
        chosen = np.sort(self._rng.permutation(len(blocks))[:n])
        moved = x.copy()
        blocks.put(moved, chosen, blocks.take(self._first, chosen))
        return moved

    def _scattered(self, x: np.ndarray) -> np.ndarray:
        moved = x.copy()
        chosen = self._tokens(x)
        moved[chosen] = self._rng.integers(self._problem.topics, size=len(chosen))
        return moved

    def _misplaced(self, x: np.ndarray) -> np.ndarray:
        moved = x.copy()
        chosen = self._tokens(x)
        counts = self._where.of(x).reshape(-1, self._problem.topics)
        document = np.searchsorted(self._problem.blocks.ends, chosen, side="right")
        moved[chosen] = counts[document].argmin(axis=1)
        return moved

    def _tokens(self, x: np.ndarray) -> np.ndarray:
        n = max(1, round(self._share * len(x)))
        return self._rng.permutation(len(x))[:n]


def _tight(problem: QuadraticProgram, seed: int, settings: Settings) -> list[dict[str, Any]]:
    """x(0) and δ along the slowest eigenvector: the cost is the bound, rounded up or down to whole
    iterations as the target happens to lie. A point for each target."""
    c, r0 = problem.contraction, qp.START
    slow = problem.eigenvectors[:, np.abs(1 - problem.alpha * problem.eigenvalues).argmax()]
    targets = settings.target * c ** (np.arange(TARGETS) / TARGETS)
    clean = _errors(problem, r0 * slow, {}, settings.most)
    points = []
    for at, norm in TIGHT:
        moved = _errors(problem, r0 * slow, {at: norm * slow}, settings.most)
        bound = iteration_cost.bound_single(c, r0, at, norm)
        for target in targets:
            end, later = (iteration_cost.first_below(errors, target) for errors in (clean, moved))
            points.append(
                {"seed": seed, "kind": "slowest", "clean": end, "at": at, "norm": norm}
                | {"cost": later - end, "reached": True, "bound": bound, "cautious": bound}
                | Speed(c, r0, c, r0)._asdict()
            )
    return points


def _errors(
    problem: QuadraticProgram, x: np.ndarray, moves: dict[int, np.ndarray], most: int
) -> list[float]:
    """‖y(k) - x*‖, k = 0 … `most`, of the run that `moves` (iteration → δ) perturb."""
    errors, y = [], x.astype(np.float32)
    for k in range(most + 1):
        errors.append(problem.criterion(y))
        y = iterate(problem, (y + moves.get(k, 0)).astype(np.float32), k)
    return errors


def _short(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value


if __name__ == "__main__":
    main(Settings, outcome)
