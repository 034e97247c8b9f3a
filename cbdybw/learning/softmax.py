"""Multinomial logistic regression by minibatch SGD, in numpy.

Source: SCAR (arXiv 1810.07354), MLR on MNIST and CoverType; a block is a row of the weights.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cbdybw.clusters.worker import keyed_rng
from cbdybw.learning.minibatches import Minibatches
from cbdybw.problem import Evaluation
from cbdybw.scar.blocks import Blocks, euclidean

if TYPE_CHECKING:
    from cbdybw.storage.datasets import Dataset

CRITERION_SAMPLES = 2000
"""[choice] Training samples that the criterion is taken on: about the cost of a step of 1024. They
are the same for all seeds, so that one target is for all runs."""


class SoftmaxRegression:
    """f(x) = x − η·(mean gradient over minibatch k), x the rows of W (features + 1, classes).

    The last row is the bias. Minibatch k is drawn from all training samples and is the same however
    many workers share it: worker j of n has the j-th of n parts whose sizes differ by one at most.

    Args:
        dataset: samples and labels.
        batch_size: samples in a minibatch of all workers together.
        eta: the learning rate η, constant [choice].
        seed: decides the minibatches.
    """

    distance = staticmethod(euclidean)

    def __init__(self, dataset: Dataset, batch_size: int, eta: float, seed: int):
        self._x = np.asarray(dataset.train_x)
        self._y = np.asarray(dataset.train_y)
        self._test = np.asarray(dataset.test_x), np.asarray(dataset.test_y)
        self._shape = self._x.shape[1] + 1, dataset.classes
        self.blocks = Blocks.rows(*self._shape)
        self.dim = self.blocks.dim
        self._batch_size, self._eta = batch_size, np.float32(eta)
        self._minibatches = Minibatches([np.arange(len(self._y))], seed)
        sample = keyed_rng(0, "criterion", 0, 0).permutation(len(self._y))
        sample = np.sort(sample[:CRITERION_SAMPLES])
        self._sample = self._x[sample], self._y[sample]

    def initial(self, rng: np.random.Generator) -> np.ndarray:
        """Zero, shape (dim,): the loss is convex, with no symmetry to break."""
        return np.zeros(self.dim, np.float32)

    def part(self, x: np.ndarray, j: int, n: int, k: int) -> np.ndarray:
        """−η/batch_size times the sum of the gradients of worker j's samples, shape (dim,)."""
        samples = np.array_split(self._minibatches(0, k, self._batch_size), n)[j]
        features, labels = self._x.take(samples, axis=0), self._y.take(samples)
        slope = _probabilities(self._logits(x, features))
        slope[np.arange(len(labels)), labels] -= 1
        slope *= -self._eta / self._batch_size
        part = np.empty(self._shape, np.float32)
        np.matmul(features.T, slope, out=part[:-1])
        part[-1] = slope.sum(axis=0)
        return part.ravel()

    def criterion(self, x: np.ndarray) -> float:
        """Mean cross-entropy over CRITERION_SAMPLES training samples, the same in all runs."""
        features, labels = self._sample
        logits = self._logits(x, features)
        logits -= logits.max(axis=1, keepdims=True)
        mine = logits[np.arange(len(labels)), labels]
        return float(np.mean(np.log(np.exp(logits).sum(axis=1)) - mine, dtype=np.float64))

    def evaluate(self, w: np.ndarray) -> Evaluation:
        """The criterion, and the share of the test samples that are misclassified."""
        features, labels = self._test
        wrong = self._logits(w, features).argmax(axis=1) != labels
        return Evaluation(self.criterion(w), float(np.mean(wrong)))

    def held_out_loss(self, w: np.ndarray) -> float:
        """The criterion."""
        return self.criterion(w)

    def _logits(self, x: np.ndarray, features: np.ndarray) -> np.ndarray:
        weights = x.reshape(self._shape)
        return features @ weights[:-1] + weights[-1]


def _probabilities(logits: np.ndarray) -> np.ndarray:
    """Softmax of each row, in place."""
    logits -= logits.max(axis=1, keepdims=True)
    np.exp(logits, out=logits)
    logits /= logits.sum(axis=1, keepdims=True)
    return logits
