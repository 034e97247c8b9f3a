"""Classifiers learnt from a data set of which every worker has a part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from cbdybw.clusters.worker import keyed_rng
from cbdybw.learning.minibatches import Batch, Minibatches
from cbdybw.problem import HELD_OUT, Evaluation

if TYPE_CHECKING:
    from cbdybw.learning.flat import FlatModel
    from cbdybw.storage.datasets import Dataset

EVALUATION_SAMPLES = 10_000
"""Training samples over which the loss of an estimate is taken."""

TOGETHER = 1 << 26
"""Of so many multiplications, dim · batch_size for each gradient, are gradients in one call.

[choice] One call for many saves some 180 µs on each, but what it works on outgrows the cache. One
call is faster than many (one core of an AMD EPYC): LRM, 64 minibatches of 32: 28 times; LRM, 64
of 1024: 2.2 times; 2NN with width 64, 8 of 1024: 1.4 times; 2NN, 6 of 128: 1.4 times; 2NN, 2 of
512, which is beyond: 1.05 times. 2NN with minibatches of 1024 goes one by one.
"""


class Classification:
    """A classifier learnt from a data set of which every worker has a part.

    Args:
        model: the classifier, as functions of one vector.
        start: draws a first estimate from a generator.
        dataset: samples, labels and the parts of the workers.
        batch_size: samples in a minibatch.
        seed: decides the order in which workers see their samples, and what is evaluated.
        evaluated: numbers of the training samples that the loss is taken on; None: all.
        most: the loss and the error are taken on so many samples each at most; None: the loss on
            EVALUATION_SAMPLES, the error on the whole test set.

    Attributes:
        steps_per_epoch: full minibatches in the smallest part.
    """

    def __init__(
        self,
        model: FlatModel,
        start: Callable[[np.random.Generator], np.ndarray],
        dataset: Dataset,
        batch_size: int,
        seed: int,
        evaluated: np.ndarray | None = None,
        most: int | None = None,
    ):
        self.dim = model.dim
        self._model, self._start = model, start
        self._batch_size, self._seed = batch_size, seed
        # np.asarray: a plain view of the memory map, whose rows are gathered without ceremony.
        self._x = np.asarray(dataset.train_x)
        self._y = np.asarray(dataset.train_y, np.int32)
        self._minibatches = Minibatches(dataset.parts, seed)
        self.steps_per_epoch = min(map(len, dataset.parts)) // batch_size
        self.gradient_many = self._gradient_many if self._together(batch_size) > 1 else None

        evaluated = np.arange(len(self._y)) if evaluated is None else evaluated
        sample = keyed_rng(seed, "evaluation", 0, 0).permutation(evaluated)
        sample = np.sort(sample[: most or EVALUATION_SAMPLES])
        self._train = self._x[sample], self._y[sample]
        test_x, test_y = np.asarray(dataset.test_x), np.asarray(dataset.test_y, np.int32)
        sample = keyed_rng(seed, "held out", 0, 0).permutation(len(test_y))
        tested = np.sort(sample[:most]) if most else slice(None)
        self._test = test_x[tested], test_y[tested]
        held_out = np.sort(sample[: HELD_OUT * batch_size])
        self._held_out = test_x[held_out], test_y[held_out]

    def initial(self, rng: np.random.Generator) -> np.ndarray:
        """A first estimate as the workload's table row says, shape (dim,)."""
        return self._start(rng)

    def batch(self, rank: int, index: int, size: int | None = None) -> Batch:
        """Minibatch `index` of worker `rank`: the numbers of its samples, shape (size,).

        The samples themselves are gathered when a gradient is evaluated.
        """
        return self._minibatches(rank, index, self._batch_size if size is None else size)

    def gradient(self, w: np.ndarray, batch: Batch) -> np.ndarray:
        """Mean gradient of the loss over `batch`, shape (dim,)."""
        return self._model.gradient(w, *self.samples(batch))

    def _gradient_many(self, pairs: Sequence[tuple[np.ndarray, Batch]]) -> list[np.ndarray]:
        """`gradient(w, batch)` of all pairs: those of one size in a call, as TOGETHER allows."""
        by_size: dict[int, list[int]] = {}
        for i, (_, batch) in enumerate(pairs):
            by_size.setdefault(len(batch), []).append(i)
        gradients: dict[int, np.ndarray] = {}
        for size, members in by_size.items():
            together = max(1, self._together(size))
            for start in range(0, len(members), together):
                group = members[start : start + together]
                gradients.update(zip(group, self._of([pairs[i] for i in group]), strict=True))
        return [gradients[i] for i in range(len(pairs))]

    def _of(self, pairs: Sequence[tuple[np.ndarray, Batch]]) -> list[np.ndarray]:
        """`gradient(w, batch)` of pairs with minibatches of one size, in one call."""
        if len(pairs) == 1:
            return [self.gradient(*pairs[0])]
        estimates, batches = zip(*pairs, strict=True)
        rows = self._model.gradients(np.array(estimates), *self.samples(np.array(batches)))
        return [row.copy() for row in rows]  # one that is kept would keep the memory of all

    def _together(self, size: int) -> int:
        """How many gradients over `size` samples each one call evaluates."""
        return TOGETHER // (self.dim * size)

    def samples(self, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
        """Features (*shape of batch, features) and labels of the samples in `batch`."""
        return self._x.take(batch, axis=0), self._y.take(batch)

    def evaluate(self, w: np.ndarray) -> Evaluation:
        """Mean loss on a fixed sample of the training set, error on the test set.

        The samples, `evaluated` and `most` say which, are the same in every run of a seed.
        """
        return Evaluation(self._quality(w, *self._train)[0], self._quality(w, *self._test)[1])

    def held_out_loss(self, w: np.ndarray) -> float:
        """Mean loss on HELD_OUT minibatches of the test set, the same in every run of a seed."""
        return self._quality(w, *self._held_out)[0]

    def _quality(self, w: np.ndarray, x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
        """Mean loss over (x, y) at `w`, and the share of its samples that are misclassified."""
        return self._model.evaluate(w, x, y)
