"""The table of workloads, and how a data set and a model make a problem for an algorithm.

Importing this module does not load TensorFlow; building a workload that learns from data does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from cbdybw.clusters.worker import keyed_rng
from cbdybw.errors import BadInput
from cbdybw.learning.quadratic import Quadratic
from cbdybw.problem import HELD_OUT, Evaluation, Problem, Timing
from cbdybw.specs import Choice, integer, number, select

if TYPE_CHECKING:
    from cbdybw.learning.flat import FlatModel, keras
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

Batch = np.ndarray


class Classification:
    """A classifier learnt from a data set of which every worker has a part.

    Args:
        model: the classifier, as functions of one vector.
        start: draws a first estimate from a generator.
        dataset: samples, labels and the parts of the workers.
        batch_size: samples in a minibatch.
        seed: with rank and epoch, the key of the order in which a worker sees its samples.

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
    ):
        self.dim = model.dim
        self._model, self._start = model, start
        self._batch_size, self._seed = batch_size, seed
        # np.asarray: a plain view of the memory map, whose rows are gathered without ceremony.
        self._x = np.asarray(dataset.train_x)
        self._y = np.asarray(dataset.train_y, np.int32)
        self._parts = dataset.parts
        self.steps_per_epoch = min(map(len, dataset.parts)) // batch_size
        self.gradient_many = self._gradient_many if self._together(batch_size) > 1 else None
        self._orders: dict[int, tuple[int, np.ndarray]] = {}

        sample = keyed_rng(seed, "evaluation", 0, 0).permutation(len(self._y))[:EVALUATION_SAMPLES]
        self._train = self.samples(np.sort(sample))
        self._test = np.asarray(dataset.test_x), np.asarray(dataset.test_y, np.int32)
        held_out = keyed_rng(seed, "held out", 0, 0).permutation(len(self._test[1]))
        held_out = np.sort(held_out[: HELD_OUT * batch_size])
        self._held_out = self._test[0][held_out], self._test[1][held_out]

    def initial(self, rng: np.random.Generator) -> np.ndarray:
        """A first estimate as the workload's table row says, shape (dim,)."""
        return self._start(rng)

    def batch(self, rank: int, index: int, size: int | None = None) -> Batch:
        """Minibatch `index` of worker `rank`: the numbers of its samples, shape (size,).

        The worker's part is shuffled anew in every epoch; what fills no full minibatch is left
        out of that epoch. The samples themselves are gathered when a gradient is evaluated.
        Raises BadInput when the part cannot fill the minibatch.
        """
        size = size or self._batch_size
        epoch, step = divmod(index, self._steps(rank, size))
        order = self._order(rank, epoch)
        return order[step * size : (step + 1) * size]

    def _steps(self, rank: int, size: int) -> int:
        """Full minibatches of `size` in an epoch of this worker."""
        steps = len(self._parts[rank]) // size
        if steps == 0:
            raise BadInput(
                f"a minibatch of {size}: worker {rank} has {len(self._parts[rank])} samples; "
                "use a smaller --batch_size or fewer --workers"
            )
        return steps

    def gradient(self, w: np.ndarray, batch: Batch) -> np.ndarray:
        """Mean gradient of the softmax cross-entropy over `batch`, shape (dim,)."""
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
        """Mean loss on a fixed sample of the training set, error on the whole test set.

        The sample, the same in every run of a seed, has EVALUATION_SAMPLES samples or all.
        """
        loss, _ = self._model.evaluate(w, *self._train)
        _, error = self._model.evaluate(w, *self._test)
        return Evaluation(loss, error)

    def held_out_loss(self, w: np.ndarray) -> float:
        """Mean loss on HELD_OUT minibatches of the test set, the same in every run of a seed."""
        loss, _ = self._model.evaluate(w, *self._held_out)
        return loss

    def _order(self, rank: int, epoch: int) -> np.ndarray:
        """The worker's samples in this epoch's order; the last one asked for is kept."""
        kept, order = self._orders.get(rank, (None, None))
        if kept != epoch:
            order = keyed_rng(self._seed, "batch", rank, epoch).permutation(self._parts[rank])
            self._orders[rank] = epoch, order
        return order


def _lrm(dataset: Dataset, batch_size: int, seed: int) -> Problem:
    from cbdybw.learning import models

    return _classification(models.lrm, models.zeros, dataset, batch_size, seed)


def _two_nn(dataset: Dataset, batch_size: int, seed: int, width: int, depth: int) -> Problem:
    from cbdybw.learning import models

    mlp = partial(models.mlp, width=width, depth=depth)
    return _classification(mlp, models.glorot_uniform, dataset, batch_size, seed)


def _classification(
    architecture: Callable[[int, int], keras.Model],
    start: Callable[[keras.Model, np.random.Generator], np.ndarray],
    dataset: Dataset,
    batch_size: int,
    seed: int,
) -> Problem:
    from cbdybw.learning.flat import FlatModel

    model = architecture(dataset.train_x.shape[1], dataset.classes)
    return Classification(FlatModel(model), partial(start, model), dataset, batch_size, seed)


def _quadratic(seed: int, dim: int, lam: float, sigma: float) -> Problem:
    return Quadratic(np.zeros((1, dim)), lam, sigma, seed)


FROM_DATA = {
    "lrm": Choice(_lrm, "multinomial logistic regression, from zero (cb-DyBW, section 5)"),
    "2nn": Choice(
        _two_nn,
        "hidden layers of rectified units, from Glorot's start (cb-DyBW, section 5)",
        {"width": integer(1, default="256"), "depth": integer(1, default="2")},
    ),
}
"""Workloads that learn from a data set; built from (dataset, batch_size, seed, **keys)."""


def _timing(seed: int, parameters: int) -> Problem:
    return Timing(parameters)


SYNTHETIC = {
    "timing": Choice(
        _timing,
        "nothing is learnt; estimates have a size on the wire only",
        {"parameters": integer(0, default="0")},
    ),
    "quadratic": Choice(
        _quadratic,
        "½·lam·‖w‖² with normal gradient noise; the stationary error is known",
        {
            "dim": integer(1, default="10"),
            "lam": number(0, above=True, default="1"),
            "sigma": number(0, default="1"),
        },
    ),
}
"""Workloads that need no data set and no TensorFlow; built from (seed, **keys)."""

WORKLOADS = FROM_DATA | SYNTHETIC
"""Name → workload: what --help and the README print."""


def needs_data(workload: str) -> bool:
    """Whether `workload` learns from a data set."""
    return workload.partition(":")[0].strip() in FROM_DATA


def build(workload: str, dataset: Dataset | None, batch_size: int, seed: int) -> Problem:
    """The problem that `workload`, such as "lrm" or "2nn:width=128", names.

    `dataset` may be None where `needs_data` says so. Raises BadInput for an unknown workload or
    key, and for a minibatch that some worker's part cannot fill.
    """
    choice, keys = select(workload, "--workload", WORKLOADS)
    if not needs_data(workload):
        return choice.build(seed, **keys)
    if batch_size < 1:
        raise BadInput(f"--batch_size={batch_size}: no minibatch; use a whole number from 1 up")
    smallest = min(map(len, dataset.parts))
    if batch_size > smallest:
        raise BadInput(
            f"--batch_size={batch_size}: the smallest of {len(dataset.parts)} parts has {smallest} "
            f"samples; use at most {smallest}, or fewer --workers"
        )
    return choice.build(dataset, batch_size, seed, **keys)
