"""A convolutional network trained by Adam, whose moments are parameters like its weights.

Source: SCAR (arXiv 1810.07354), the CNN on MNIST, partitioned by layer and by shard. This module
loads TensorFlow.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from cbdybw.clusters.worker import keyed_rng
from cbdybw.learning import models
from cbdybw.learning.flat import FlatModel, keras
from cbdybw.learning.minibatches import Minibatches
from cbdybw.problem import Evaluation
from cbdybw.scar.blocks import Blocks, euclidean

if TYPE_CHECKING:
    from cbdybw.storage.datasets import Dataset

CRITERION_SAMPLES = 500
"""[choice] Training samples that the criterion is taken on: about the cost of two steps of 64. They
are the same for all seeds, so that one target is for all runs."""

SHARD = 256
"""[choice] Weights in a shard at most; shards of a tensor differ in size by one at most."""

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-7
"""[choice] Adam's constants, those of Keras."""


class AdamNetwork:
    """f(x) = a step of Adam on minibatch k; x.reshape(-1, 3) has a weight and its two moments.

    So a block that is lost loses the optimiser's state with it. The step's number is k + 1 for all.
    Worker j of n takes a step of its own on its n-th of the minibatch, and the mean of all is taken
    [choice].

    Args:
        dataset: images of one channel, unaltered pixels, and labels.
        batch_size: samples in a minibatch of all workers together.
        eta: Adam's step size, constant.
        blocks: layer: a layer's weights and biases are a block; shard: see SHARD.
        seed: decides the minibatches.
    """

    def __init__(self, dataset: Dataset, batch_size: int, eta: float, blocks: str, seed: int):
        network = models.le_net(*dataset.manifest["image_shape"], dataset.classes)
        self._model, self._start = FlatModel(network), partial(models.glorot_uniform, network)
        self.blocks = Blocks(3 * _sizes(network, blocks))
        self.dim = self.blocks.dim
        self._x = np.asarray(dataset.train_x)
        self._y = np.asarray(dataset.train_y, np.int32)
        self._test = np.asarray(dataset.test_x), np.asarray(dataset.test_y, np.int32)
        self._batch_size, self._eta = batch_size, eta
        self._minibatches = Minibatches([np.arange(len(self._y))], seed)
        sample = keyed_rng(0, "criterion", 0, 0).permutation(len(self._y))
        sample = np.sort(sample[:CRITERION_SAMPLES])
        self._sample = self._x[sample], self._y[sample]

    def initial(self, rng: np.random.Generator) -> np.ndarray:
        """Glorot's weights, moments zero, shape (dim,)."""
        x = np.zeros((self.dim // 3, 3), np.float32)
        x[:, 0] = self._start(rng)
        return x.ravel()

    def part(self, x: np.ndarray, j: int, n: int, k: int) -> np.ndarray:
        """1/n of what Adam's step number k + 1 changes by worker j's samples, shape (dim,)."""
        sharing = min(n, self._batch_size)  # of more workers the last ones have no sample
        part = np.zeros((self.dim // 3, 3), np.float32)
        if j >= sharing:
            return part.ravel()
        samples = np.array_split(self._minibatches(0, k, self._batch_size), n)[j]
        w, m, v = x.reshape(-1, 3).T
        g = self._model.gradient(w.copy(), self._x[samples], self._y[samples])
        part[:, 1] = (1 - BETA1) * (g - m)
        part[:, 2] = (1 - BETA2) * (g * g - v)
        rate = self._eta * math.sqrt(1 - BETA2 ** (k + 1)) / (1 - BETA1 ** (k + 1))
        part[:, 0] = -rate * (m + part[:, 1]) / (np.sqrt(v + part[:, 2]) + EPSILON)
        return part.ravel() / np.float32(sharing)

    def distance(self, x: np.ndarray, saved: np.ndarray, blocks: Blocks) -> np.ndarray:
        """How far the weights of each block have moved; the moments do not count."""
        return euclidean(x[::3], saved[::3], Blocks(blocks.sizes // 3))

    def criterion(self, x: np.ndarray) -> float:
        """Mean cross-entropy over CRITERION_SAMPLES training samples, the same in all runs."""
        return self._model.evaluate(x[::3].copy(), *self._sample)[0]

    def evaluate(self, w: np.ndarray) -> Evaluation:
        """The criterion, and the share of the test samples that are misclassified."""
        return Evaluation(self.criterion(w), self._model.evaluate(w[::3].copy(), *self._test)[1])

    def held_out_loss(self, w: np.ndarray) -> float:
        """The criterion."""
        return self.criterion(w)


def _sizes(network: keras.Model, blocks: str) -> np.ndarray:
    """Weights of each block, in the order in which FlatModel lays them out."""
    if blocks == "layer":
        return np.array([layer.count_params() for layer in network.layers if layer.weights])
    tensors = [int(np.prod(variable.shape)) for variable in network.trainable_variables]
    return np.concatenate([Blocks.shards(n, -(-n // SHARD)).sizes for n in tensors])
