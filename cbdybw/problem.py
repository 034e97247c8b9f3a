"""What is learnt, as an algorithm sees it: plain callables on vectors."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Protocol

import numpy as np

from cbdybw.scar.blocks import Blocks, Distance

HELD_OUT = 10
"""Minibatches of the test set over which ADSP takes its global loss."""


class Evaluation(NamedTuple):
    """Quality of one estimate: mean training loss, and share of test samples misclassified."""

    loss: float
    error: float


class Problem(Protocol):
    """A learning problem over one flat float32 vector of `dim` parameters.

    Optimiser state, where there is any, is part of the vector. A problem may also have

        gradient_many(pairs: Sequence[tuple[np.ndarray, Any]]) -> list[np.ndarray]

    the gradients at several (w, batch), in their order, each an array of its own and equal to
    `gradient(w, batch)` within rounding. The virtual cluster uses it for workers that compute at
    the same time. It is missing, or None, where one call for many would not be faster.
    """

    dim: int

    def initial(self, rng: np.random.Generator) -> np.ndarray:
        """A first estimate, shape (dim,)."""

    def batch(self, rank: int, index: int, size: int | None = None) -> Any:
        """Minibatch `index` of worker `rank`; a pure function of its arguments and the seed.

        It has as many samples as the workload's minibatches have, or `size`.
        """

    def gradient(self, w: np.ndarray, batch: Any) -> np.ndarray:
        """Mean gradient of the loss over `batch` at `w`, shape (dim,)."""

    def evaluate(self, w: np.ndarray) -> Evaluation:
        """Training loss and test error of the estimate `w`."""

    def held_out_loss(self, w: np.ndarray) -> float:
        """The "global loss" of ADSP: mean total loss over minibatches of the test set.

        The sample, HELD_OUT minibatches or the whole test set where that is smaller, is drawn once
        by the seed; nobody trains on it. A function of `w` alone, cheap beside `evaluate`.
        """


class Iterated(Protocol):
    """An iterative-convergent problem: x(k+1) = f(x(k)), with f made of what n workers contribute
    side by side, and parameters in blocks (SCAR, arXiv 1810.07354, section 2):

        f(x) = x + Σ_j part(x, j, n, k), summed in the order of j

    `x` is one flat float32 vector of `dim` values, as everywhere; what is drawn at random is a pure
    function of the seed, j, n and k, so perturbed and unperturbed runs have common random numbers.

    Attributes:
        dim: values of x.
        blocks: what of x is lost, saved and restored as one.
        distance: how far blocks are from what is saved of them.
    """

    dim: int
    blocks: Blocks
    distance: Distance

    def initial(self, rng: np.random.Generator) -> np.ndarray:
        """x(0), shape (dim,)."""

    def part(self, x: np.ndarray, j: int, n: int, k: int) -> np.ndarray:
        """What worker number j of n adds to x in iteration k, shape (dim,); `x` stays as it is."""

    def criterion(self, x: np.ndarray) -> float:
        """What falls to its least value as x converges: a loss, a negative log-likelihood."""

    def evaluate(self, w: np.ndarray) -> Evaluation:
        """The criterion, and the share of test samples misclassified (0 where there are none)."""


def iterate(problem: Iterated, x: np.ndarray, k: int, n: int = 1) -> np.ndarray:
    """f(x) of iteration k with n workers, as a new vector."""
    after = x.copy()
    for j in range(n):
        after += problem.part(x, j, n, k)
    return after


class Weightless:
    """An estimate of a timing-only run: a size on the wire, no content.

    It stands for the zero vector, so that the algorithms need to know nothing about it.
    """

    __slots__ = ("nbytes",)

    def __init__(self, nbytes: int = 0):
        self.nbytes = nbytes

    def _itself(self, *_: Any) -> Weightless:
        return self

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _itself


class Timing:
    """The problem of a timing-only run: `parameters` float32 values that nobody computes."""

    dim = 0

    def __init__(self, parameters: int = 0):
        self._estimate = Weightless(4 * parameters)

    def initial(self, rng: np.random.Generator) -> Weightless:
        return self._estimate

    def batch(self, rank: int, index: int, size: int | None = None) -> None:
        return None

    def gradient(self, w: Weightless, batch: None) -> Weightless:
        return w

    def held_out_loss(self, w: Weightless) -> float:
        return math.nan
