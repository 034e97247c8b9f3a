"""ADSP's support vector machine: a Gaussian-kernel dual, one coefficient per class and position.

[code] As in the well-known multi-class kernel SVM for TensorFlow: b has a row for each class c and
a column for each position in a minibatch, y_cj = ±1 says whether sample j is of class c, and

    loss(b) = Σ_c Σ_ij K_ij (bᵀb)_ij y_ci y_cj - Σ b,    K_ij = exp(γ‖x_i - x_j‖²), γ = -10.

With M = K ∘ yᵀy, which is positive semidefinite as K and yᵀy are (Schur's product theorem), this is
loss(b) = tr(b M bᵀ) - Σ b: convex, and the same for every row of b. Over random minibatches all
positions are alike, so the mean of M is (C - m) I + m 11ᵀ for C classes, where m is the mean of
K_ij (yᵀy)_ij over pairs of samples, not negative as yᵀy is C or C - 4 there. So

    mean loss ≥ -C n / (4 (C + (n - 1) m)) ≥ -n/4,

reached at b = 1/(2 (C + (n - 1) m)) everywhere: at most 16 below zero with minibatches of n = 64.
A target of -22000, as the authors plot, must be of another normalisation (our finding).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cbdybw.clusters.worker import keyed_rng
from cbdybw.errors import BadInput
from cbdybw.learning.classification import EVALUATION_SAMPLES
from cbdybw.learning.minibatches import Batch, Minibatches
from cbdybw.problem import HELD_OUT, Evaluation

if TYPE_CHECKING:
    from cbdybw.storage.datasets import Dataset

GAMMA = -10.0


class KernelMachine:
    """The problem of the module's text; the vector w is b in row-major order.

    A sample x is taken for the class c with the largest Σ_j y_cj b_cj (K(x, x_j) - mean over x),
    where j runs over a fixed minibatch of training samples [choice: drawn by the seed].

    Attributes:
        dim: classes · batch_size.
        steps_per_epoch: full minibatches in the smallest part.
    """

    def __init__(self, dataset: Dataset, batch_size: int, seed: int):
        if batch_size > len(dataset.test_y):
            raise BadInput(
                f"--batch_size={batch_size}: the test set has {len(dataset.test_y)} samples and "
                f"the loss is one of whole minibatches; use at most {len(dataset.test_y)}"
            )
        self._x, self._y = np.asarray(dataset.train_x), np.asarray(dataset.train_y)
        self._classes, self._size = dataset.classes, batch_size
        self.dim = dataset.classes * batch_size
        self._minibatches = Minibatches(dataset.parts, seed)
        self.steps_per_epoch = min(map(len, dataset.parts)) // batch_size

        drawn = keyed_rng(seed, "evaluation", 0, 0).permutation(len(self._y))[:EVALUATION_SAMPLES]
        self._train = self._mean_form(self._x[drawn], self._y[drawn])
        self._support = self._x[drawn[:batch_size]], self._signs(self._y[drawn[:batch_size]])
        self._test = np.asarray(dataset.test_x), np.asarray(dataset.test_y)
        drawn = keyed_rng(seed, "held out", 0, 0).permutation(len(self._test[1]))
        drawn = drawn[: HELD_OUT * batch_size]
        self._held_out = self._mean_form(self._test[0][drawn], self._test[1][drawn])

    def initial(self, rng: np.random.Generator) -> np.ndarray:
        """Zero: the loss is convex."""
        return np.zeros(self.dim, np.float32)

    def batch(self, rank: int, index: int, size: int | None = None) -> Batch:
        """Minibatch `index` of worker `rank`: the numbers of its samples, shape (batch_size,)."""
        if size not in (None, self._size):
            raise BadInput(
                f"--workload=svm: a minibatch of {size}, but the estimate has a coefficient for "
                f"each of {self._size} samples; use another workload to tune batches"
            )
        return self._minibatches(rank, index, self._size)

    def gradient(self, w: np.ndarray, batch: Batch) -> np.ndarray:
        """2 b M - 1, shape (dim,)."""
        form = self._form(self._x[batch], self._y[batch])
        return (2 * self._rows(w) @ form - 1).ravel()

    def evaluate(self, w: np.ndarray) -> Evaluation:
        """Mean loss on a fixed sample of the training set in minibatches, error on the test set."""
        x, y = self._test
        return Evaluation(self._loss(w, self._train), float(np.mean(self._predicted(w, x) != y)))

    def held_out_loss(self, w: np.ndarray) -> float:
        """Mean loss on HELD_OUT minibatches of the test set, the same in every run of a seed."""
        return self._loss(w, self._held_out)

    def _loss(self, w: np.ndarray, form: np.ndarray) -> float:
        b = self._rows(w)
        return float(np.sum((b @ form) * b) - b.sum())

    def _rows(self, w: np.ndarray) -> np.ndarray:
        return w.reshape(self._classes, self._size)

    def _mean_form(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Mean of M over as many minibatches as (x, y) fills: the loss is linear in M."""
        ends = range(self._size, len(y) + 1, self._size)
        forms = [self._form(x[end - self._size : end], y[end - self._size : end]) for end in ends]
        return np.mean(forms, axis=0)

    def _form(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """M = K ∘ yᵀy of one minibatch, shape (batch_size, batch_size)."""
        signs = self._signs(y)
        return kernel(x, x) * (signs.T @ signs)

    def _signs(self, y: np.ndarray) -> np.ndarray:
        """y_cj = ±1, shape (classes, n)."""
        return np.where(np.arange(self._classes)[:, None] == y, np.float32(1), np.float32(-1))

    def _predicted(self, w: np.ndarray, x: np.ndarray) -> np.ndarray:
        support, signs = self._support
        votes = (signs * self._rows(w)) @ kernel(support, x)
        return np.argmax(votes - votes.mean(axis=1, keepdims=True), axis=0)


def kernel(x: np.ndarray, z: np.ndarray) -> np.ndarray:
    """exp(γ‖x_i - z_j‖²), shape (len(x), len(z)), exactly 1 where x_i = z_j."""
    distances = sum(np.subtract.outer(a, b) ** 2 for a, b in zip(x.T, z.T, strict=True))
    return np.exp(np.float32(GAMMA) * distances)
