"""Gradient descent on a quadratic: the iteration whose rate of convergence is known exactly.

Source: SCAR (arXiv 1810.07354), the quadratic program of its experiments, in four dimensions.
"""

from __future__ import annotations

import numpy as np

from cbdybw.clusters.worker import keyed_rng
from cbdybw.errors import BadInput
from cbdybw.problem import Evaluation
from cbdybw.scar.blocks import Blocks, euclidean

LEAST, LARGEST = 1.0, 4.0
"""[choice] Eigenvalues of A lie evenly between these: 1, 2, 3, 4 in four dimensions."""

START = 10.0
"""[choice] ‖x(0) − x*‖."""


class QuadraticProgram:
    """f(x) = x − αAx, gradient descent on ½xᵀAx = ½‖Bx‖², whose minimum is at x* = 0.

    The rows of B are dealt out to the workers as the samples of a least-squares problem [choice].

    Args:
        dim: of x; each coordinate is a block.
        alpha: the step α, below 2/LARGEST.
        seed: of the orthogonal basis of A's eigenvectors [choice].

    Attributes:
        contraction: c = max |1 − αλ|, so that ‖f(x) − x*‖ ≤ c‖x − x*‖, attained by an eigenvector.
        eigenvalues, eigenvectors: of A, shapes (dim,) and (dim, dim), a column each.
        optimum: x*, shape (dim,).
    """

    distance = staticmethod(euclidean)

    def __init__(self, dim: int, alpha: float, seed: int):
        if not alpha < 2 / LARGEST:
            raise BadInput(
                f"--workload=qp: alpha={alpha:g} does not converge on eigenvalues up to "
                f"{LARGEST:g}; use less than {2 / LARGEST:g}"
            )
        self.dim, self.alpha = dim, alpha
        self.blocks = Blocks.rows(dim, 1)
        self.eigenvalues = np.linspace(LEAST, LARGEST, dim)
        normal = keyed_rng(seed, "basis", 0, 0).standard_normal((dim, dim))
        self.eigenvectors = np.linalg.qr(normal)[0]
        self.contraction = float(np.abs(1 - alpha * self.eigenvalues).max())
        self.optimum = np.zeros(dim, np.float32)
        self._rows = np.sqrt(self.eigenvalues)[:, None] * self.eigenvectors.T

    def initial(self, rng: np.random.Generator) -> np.ndarray:
        """START away from the optimum in a uniformly random direction, shape (dim,)."""
        x = rng.standard_normal(self.dim)
        return (START / np.linalg.norm(x) * x).astype(np.float32)

    def part(self, x: np.ndarray, j: int, n: int, k: int) -> np.ndarray:
        """−α times the gradient of worker j's rows, shape (dim,); all iterations are alike."""
        rows = np.array_split(self._rows, n)[j]
        return (-self.alpha * (rows.T @ (rows @ x))).astype(np.float32)

    def criterion(self, x: np.ndarray) -> float:
        """‖x − x*‖."""
        return float(np.linalg.norm(x))

    def evaluate(self, w: np.ndarray) -> Evaluation:
        """The criterion; nothing is classified, so the error is 0."""
        return Evaluation(self.criterion(w), 0.0)

    def held_out_loss(self, w: np.ndarray) -> float:
        """The criterion."""
        return self.criterion(w)
