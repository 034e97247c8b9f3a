"""Who sees which samples when."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cbdybw.clusters.worker import keyed_rng
from cbdybw.errors import BadInput

Batch = np.ndarray
"""The numbers of a minibatch's samples."""


class Minibatches:
    """The minibatches of workers, each of which has a part of the training samples.

    A worker's part is shuffled anew in every epoch; what fills no full minibatch is left out of
    that epoch.

    Args:
        parts: for each worker the numbers of its samples.
        seed: with rank and epoch, the key of the order in which a worker sees its samples.
    """

    def __init__(self, parts: Sequence[np.ndarray], seed: int):
        self._parts, self._seed = parts, seed
        self._orders: dict[int, tuple[int, np.ndarray]] = {}

    def __call__(self, rank: int, index: int, size: int) -> Batch:
        """Minibatch `index` of `rank`, shape (size,); BadInput when the part cannot fill it."""
        steps = len(self._parts[rank]) // size
        if steps == 0:
            raise BadInput(
                f"a minibatch of {size}: worker {rank} has {len(self._parts[rank])} samples; "
                "use a smaller --batch_size or fewer --workers"
            )
        epoch, step = divmod(index, steps)
        return self._order(rank, epoch)[step * size : (step + 1) * size]

    def _order(self, rank: int, epoch: int) -> np.ndarray:
        """The worker's samples in this epoch's order; the last one asked for is kept."""
        kept, order = self._orders.get(rank, (None, None))
        if kept != epoch:
            order = keyed_rng(self._seed, "batch", rank, epoch).permutation(self._parts[rank])
            self._orders[rank] = epoch, order
        return order


def check_batch_size(parts: Sequence[np.ndarray], batch_size: int) -> None:
    """BadInput where a minibatch is empty, or larger than one of the parts."""
    if batch_size < 1:
        raise BadInput(f"--batch_size={batch_size}: no minibatch; use a whole number from 1 up")
    smallest = min(map(len, parts))
    if batch_size > smallest:
        raise BadInput(
            f"--batch_size={batch_size}: the smallest of {len(parts)} parts has {smallest} "
            f"samples; use at most {smallest}, or fewer --workers"
        )
