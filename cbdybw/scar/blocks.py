"""Parameters as blocks: what is lost, saved and restored as one.

Source: SCAR (arXiv 1810.07354), sections 4.1 and 4.2. A block is a row of a weight matrix, a
topic assignment of one document, a shard of a tensor, a layer: consecutive values of the flat
vector x of all parameters. Sets of arrays are laid out one after the other (`Blocks.of`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property

import numpy as np

_IN_CACHE = 1 << 17

Distance = Callable[[np.ndarray, np.ndarray, "Blocks"], np.ndarray]
"""(x, saved, blocks) → how far each block of x is from what is saved of it, shape (n,)."""


class Blocks:
    """n blocks of consecutive values of a vector.

    Args:
        sizes: values of each block, shape (n,), none below 1.
    """

    def __init__(self, sizes: Sequence[int] | np.ndarray):
        self.sizes = np.array(sizes, np.int64)
        if self.sizes.ndim != 1 or self.sizes.min(initial=1) < 1:
            raise ValueError("a block has at least one value")
        self.ends = np.cumsum(self.sizes)
        self.starts = self.ends - self.sizes
        self.dim = int(self.sizes.sum())

    @classmethod
    def rows(cls, rows: int, columns: int) -> Blocks:
        """The rows of a matrix, (rows, columns)."""
        return cls(np.full(rows, columns))

    @classmethod
    def shards(cls, dim: int, n: int) -> Blocks:
        """n shards of a vector of `dim` values, whose sizes differ by one at most."""
        n = min(n, dim)
        return cls(dim // n + (np.arange(n) < dim % n))

    @classmethod
    def of(cls, arrays: Iterable[np.ndarray], by: str = "array") -> Blocks:
        """Of several arrays, laid out one after the other: each one a block ("array", as in
        "by layer"), or each of its rows ("row": slices along the first axis)."""
        sizes: list[int] = []
        for array in arrays:
            rows = array.shape[0] if by == "row" and array.ndim > 1 else 1
            sizes += [array.size // rows] * rows
        return cls(sizes)

    def __len__(self) -> int:
        return len(self.sizes)

    @cached_property
    def size(self) -> int:
        """Values of every block where they are all alike, else 0."""
        return int(self.sizes[0]) if len(np.unique(self.sizes)) == 1 else 0

    @cached_property
    def bounds(self) -> list[int]:
        """Where runs of blocks end whose values stay in cache together: 0, …, n."""
        bounds = [0]
        while bounds[-1] < len(self):
            most = np.searchsorted(self.ends, self.starts[bounds[-1]] + _IN_CACHE, "right")
            bounds.append(max(int(most), bounds[-1] + 1))
        return bounds

    def subset(self, members: np.ndarray) -> Blocks:
        """These blocks as blocks of the vector that `take` packs them into."""
        return Blocks(self.sizes[members])

    def take(self, x: np.ndarray, members: np.ndarray) -> np.ndarray:
        """The values of blocks `members` of x, packed one block after the other, as a new array."""
        if self.size:
            return x.reshape(-1, self.size)[members].reshape(-1)
        from cbdybw.scar import ragged  # here, because loading numba takes half a second

        packed = np.empty(int(self.sizes[members].sum()), x.dtype)
        ragged.take(x, self.starts, self.sizes, members, packed)
        return packed

    def put(self, x: np.ndarray, members: np.ndarray, packed: np.ndarray) -> None:
        """Set blocks `members` of x, in place, to what `take` packed."""
        if self.size:
            x.reshape(-1, self.size)[members] = packed.reshape(-1, self.size)
            return
        from cbdybw.scar import ragged

        if len(packed) != self.sizes[members].sum():
            raise ValueError(f"{len(packed)} values do not fill blocks {members}")
        ragged.put(x, self.starts, self.sizes, members, packed)


def partition(n: int, parts: int, rng: np.random.Generator) -> np.ndarray:
    """Blocks dealt out at random, equally many to each part but for one: block → part, (n,)."""
    dealt = np.empty(n, np.int64)
    dealt[rng.permutation(n)] = np.arange(n) % parts
    return dealt


def euclidean(x: np.ndarray, saved: np.ndarray, blocks: Blocks) -> np.ndarray:
    """‖x_i - saved_i‖ of every block i, shape (n,): the distance of most models."""
    squares = np.empty(len(blocks), np.result_type(x, saved))
    bounds = blocks.bounds
    starts = np.append(blocks.starts, blocks.dim)[bounds]
    buffer = np.empty(np.diff(starts).max(initial=0), squares.dtype)
    for first, last, start, end in zip(bounds, bounds[1:], starts, starts[1:], strict=False):
        change = np.subtract(x[start:end], saved[start:end], out=buffer[: end - start])
        if blocks.size:
            rows = change.reshape(-1, blocks.size)
            np.vecdot(rows, rows, out=squares[first:last])
        else:
            change *= change
            np.add.reduceat(change, blocks.starts[first:last] - start, out=squares[first:last])
    return np.sqrt(squares, out=squares)


def total_variation(topics: int) -> Distance:
    """The distance of topic assignments: for every block (a document, whose values are topics
    0 … topics-1) the total variation between its distributions of topics, times its length."""

    def distance(x: np.ndarray, saved: np.ndarray, blocks: Blocks) -> np.ndarray:
        from cbdybw.scar import ragged

        apart = np.empty(len(blocks))
        if not ragged.total_variation(x, saved, blocks.starts, blocks.sizes, topics, apart):
            raise ValueError(f"a value is no topic 0 … {topics - 1}")
        return apart

    return distance
