"""What is learnt, as an algorithm sees it: plain callables on vectors."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np


class Evaluation(NamedTuple):
    """Quality of one estimate: mean training loss, and share of test samples misclassified."""

    loss: float
    error: float


class Problem(Protocol):
    """A learning problem over one flat float32 vector of `dim` parameters.

    Optimiser state, where there is any, is part of the vector.
    """

    dim: int

    def initial(self, rng: np.random.Generator) -> np.ndarray:
        """A first estimate, shape (dim,)."""

    def batch(self, rank: int, index: int) -> Any:
        """Minibatch `index` of worker `rank`; a pure function of its arguments and the seed."""

    def gradient(self, w: np.ndarray, batch: Any) -> np.ndarray:
        """Mean gradient of the loss over `batch` at `w`, shape (dim,)."""

    def evaluate(self, w: np.ndarray) -> Evaluation:
        """Training loss and test error of the estimate `w`."""
