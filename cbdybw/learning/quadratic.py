"""Noisy quadratics: a problem whose stationary error is known, and that needs no TensorFlow."""

from __future__ import annotations

import numpy as np

from cbdybw.clusters.worker import keyed_rng
from cbdybw.problem import Evaluation


class Quadratic:
    """F_j(w) = ½λ‖w − b_j‖² for worker j, with gradient noise σξ, ξ standard normal.

    Consensus SGD with a constant η settles at E‖w̄ − w*‖² = ησ²·dim / (Nλ(2 − ηλ)) around
    w* = mean of b_j, on any graph, as long as every gradient is used.

    Args:
        centres: b, shape (workers, dim); one row alone is shared by all workers.
        lam: curvature λ.
        sigma: standard deviation σ of each coordinate of a gradient.
        seed: with rank and index, the key of the noise.
    """

    steps_per_epoch = 1  # samples never repeat; each iteration is as good an epoch as any

    def __init__(self, centres: np.ndarray, lam: float, sigma: float, seed: int):
        self.centres = np.asarray(centres, np.float32)
        self.lam = np.float32(lam)
        self.sigma = np.float32(sigma)
        self.seed = seed
        self.dim = self.centres.shape[1]
        self.optimum = self.centres.mean(axis=0)

    def initial(self, rng: np.random.Generator) -> np.ndarray:
        """A standard normal vector, shape (dim,)."""
        return rng.standard_normal(self.dim, dtype=np.float32)

    def batch(
        self, rank: int, index: int, size: int | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """The worker's centre b_j and the noise ξ of this minibatch, each of shape (dim,).

        σ is the noise of a minibatch of any size: there are no samples to be counted.
        """
        noise = keyed_rng(self.seed, "noise", rank, index).standard_normal(self.dim, np.float32)
        return self.centres[rank % len(self.centres)], noise

    def gradient(self, w: np.ndarray, batch: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
        """λ(w − b_j) + σξ, shape (dim,)."""
        centre, noise = batch
        return self.lam * (w - centre) + self.sigma * noise

    def evaluate(self, w: np.ndarray) -> Evaluation:
        """The excess loss ½λ‖w − w*‖², without noise; nothing is classified, so the error is 0."""
        return Evaluation(self.held_out_loss(w), 0.0)

    def held_out_loss(self, w: np.ndarray) -> float:
        """The exact loss, less its minimum: that of `evaluate`."""
        return float(0.5 * self.lam * np.sum((w - self.optimum) ** 2))
