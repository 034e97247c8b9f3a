"""Where parameters lie: the norm ‖·‖ of perturbations and of distances from x*.

It is the Euclidean one of x, but for topic models, whose x holds the topic of each token: numbers
of topics have no order. There a state lies where its documents' counts of topics put it [choice].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from cbdybw.problem import Iterated


@dataclass(frozen=True)
class Place:
    """`of(x)` is a vector; distances between states are those between their vectors."""

    of: Callable[[np.ndarray], np.ndarray]

    def norm(self, x: np.ndarray, y: np.ndarray) -> float:
        """‖x - y‖."""
        return float(np.linalg.norm(self.of(x) - self.of(y)))


def place(problem: Iterated) -> Place:
    """The one of a problem."""
    topics = getattr(problem, "topics", 0)
    if not topics:
        return Place(lambda x: x)
    rows = np.repeat(np.arange(len(problem.blocks)) * topics, problem.blocks.sizes)
    cells = len(problem.blocks) * topics
    return Place(lambda x: np.bincount(rows + x.astype(np.int64), minlength=cells).astype(float))
