"""The running checkpoint: a few blocks of parameters at a time, those that changed most first.

Source: SCAR (arXiv 1810.07354), section 4.2, which saves a fraction r of the blocks in every rC
iterations where the classical scheme saves all of them in every C: the same bytes, more often. A
copy of what is saved stays in memory, so that choosing reads nothing back, and the training thread
waits for no disk: see `cbdybw.scar.log`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from cbdybw.errors import BadInput
from cbdybw.scar.blocks import Blocks, Distance
from cbdybw.scar.choice import interval

POLICIES = ("priority", "round", "random", "full")

_ROUNDING = 1e-9
NOWHERE = -1
"""saved_at of a block of which there is no copy."""


class Store(Protocol):
    """Where saved copies of blocks are kept, the newest of each.

    Attributes:
        blocks: of the whole model, whichever of them are kept here.
        damage: a line for each thing that the last `copies` or `read` found damaged, and for which
            older copies stand in.
    """

    blocks: Blocks
    damage: tuple[str, ...]

    def write(
        self,
        k: int | np.ndarray,
        members: np.ndarray,
        packed: np.ndarray,
        then: Callable[[], None] | None = None,
    ) -> None:
        """Keep the values `packed` of blocks `members` (ascending) as they were in iteration k, or
        k[i] for each. May return before they are durable; `then` is called when they are, perhaps
        by another thread. The arrays are the store's from now on.

        CheckpointFailed: an earlier write failed, and this one was not begun.
        """

    def copies(self, members: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The newest copies of blocks `members` (ascending), packed, and the iteration of each,
        shape (len(members),): NOWHERE, and zeros as values, where there is none."""

    def read(self, members: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """As `copies`, but BadInput where a copy is missing."""

    def flush(self) -> None:
        """Return when all is durable; CheckpointFailed when it cannot be made so."""


class Memory:
    """A store that lives as long as its process: of trials, and of runs that keep no folder."""

    damage = ()

    def __init__(self, blocks: Blocks):
        self.blocks = blocks
        self._values = np.zeros(blocks.dim, np.float32)
        self._saved_at = np.full(len(blocks), NOWHERE)

    def write(self, k, members, packed, then=None) -> None:
        self.blocks.put(self._values, members, packed)
        self._saved_at[members] = k
        if then:
            then()

    def copies(self, members: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self.blocks.take(self._values, members), self._saved_at[members]

    def read(self, members: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        packed, saved_at = self.copies(members)
        complain_if_missing(members, saved_at, "the checkpoint in memory")
        return packed, saved_at

    def flush(self) -> None:
        pass


def complain_if_missing(
    members: np.ndarray, saved_at: np.ndarray, where: str, damage: tuple[str, ...] = ()
) -> None:
    """BadInput when there is a block without a copy; `damage` may be why."""
    missing = members[saved_at == NOWHERE]
    if len(missing):
        why = "; ".join(damage) or "it was never saved there"
        raise BadInput(
            f"{where}: has no copy of block {missing[0]}"
            + (f" and {len(missing) - 1} others" if len(missing) > 1 else "")
            + f" ({why}); restore the files or start the run anew"
        )


class RunningCheckpoint:
    """The running checkpoint of the blocks that one server, or the only process, holds.

    Args:
        blocks: of the whole model.
        members: which of them are held here, ascending.
        x: their values, packed as by `blocks.take`; all are saved at once (running := x(0)).
        fraction: r, the share of the held values that is saved each time; with "full" it is 1.
        period: C, the iterations in which as many values are saved as are held.
        policy: one of POLICIES.
        distance: by which "priority" ranks blocks.
        rng: iteration → the generator by which "random" chooses in it.
        store: keeps the copies; nobody else writes to it.
        k: the iteration now.

    Attributes:
        cached: what is saved of the held blocks, packed.
        saved_at: the iteration of each of these copies, shape (n,).
        bytes_written: values handed to the store, the first copies among them.

    CheckpointFailed from any method means that the store lacks what it was last given; whoever goes
    on begins a new running checkpoint, which saves everything.
    """

    def __init__(
        self,
        blocks: Blocks,
        members: np.ndarray,
        x: np.ndarray,
        *,
        fraction: float,
        period: int,
        policy: str,
        distance: Distance,
        rng: Callable[[int], np.random.Generator],
        store: Store,
        k: int = 0,
    ):
        if policy not in POLICIES:
            raise BadInput(f"checkpoint policy {policy!r}: use one of {', '.join(POLICIES)}")
        self._blocks, self._policy = blocks, policy
        self.pace(fraction, period)
        self._distance, self._rng, self._store = distance, rng, store
        self._turn = 0  # of "round": the place of the next block
        self._budget = 0.0  # values that may be saved by now
        self.bytes_written = 0
        self._hold(np.asarray(members), x.copy(), np.full(len(members), k))
        self._write(k, self.members, x.copy())

    def pace(self, fraction: float, period: int) -> None:
        """From now on save this fraction in this period."""
        if not 0 < fraction <= 1:
            raise BadInput(f"checkpoint fraction {fraction}: use a number above 0, at most 1")
        if period < 1:
            raise BadInput(f"checkpoint period {period}: use 1 iteration or more")
        self._fraction = 1.0 if self._policy == "full" else fraction
        self._every = interval(self._fraction, period)

    def due(self, k: int) -> bool:
        """Whether iteration k is one after which `save` is called."""
        return k > 0 and k % self._every == 0

    def save(self, x: np.ndarray, k: int) -> np.ndarray:
        """Choose blocks and hand them to the store: a fraction r of the held values, in whole
        blocks; what is left of that is for the next save [choice], so that in C iterations as many
        bytes are written for every r. A large block that is next is waited for.

        `x` are the values of the held blocks in iteration k, packed. Returns the chosen blocks,
        ascending, perhaps none. Waits for the store only while the save before this one is not yet
        durable.
        """
        chosen = self._choose(x, k)
        members, packed = self.members[chosen], self._held.take(x, chosen)
        self._held.put(self.cached, chosen, packed)
        self.saved_at[chosen] = k
        if len(members):  # last: from here on a second thread wants the interpreter
            self._write(k, members, packed)
        return members

    def gain(self, members: np.ndarray, packed: np.ndarray, saved_at: np.ndarray, k: int) -> None:
        """Take over blocks of a lost server in iteration k, as restored from what it had saved.

        They are written to the store at once, with the iterations that they are from.
        """
        self._write(saved_at, members, packed.copy())
        values = np.zeros(self._blocks.dim, self.cached.dtype)
        ages = np.full(len(self._blocks), k)
        for blocks, theirs, at in (
            (self.members, self.cached, self.saved_at),
            (members, packed, saved_at),
        ):
            self._blocks.put(values, blocks, theirs)
            ages[blocks] = at
        merged = np.union1d(self.members, members)
        self._hold(merged, self._blocks.take(values, merged), ages[merged])

    def close(self) -> None:
        """Return when all that was saved is durable."""
        self._store.flush()

    def _hold(self, members: np.ndarray, cached: np.ndarray, saved_at: np.ndarray) -> None:
        self.members, self.cached, self.saved_at = members, cached, saved_at
        self._held = self._blocks.subset(members)

    def _write(self, k: int | np.ndarray, members: np.ndarray, packed: np.ndarray) -> None:
        if len(members):  # a server may hold nothing
            self._store.write(k, members, packed)
            self.bytes_written += packed.nbytes

    def _choose(self, x: np.ndarray, k: int) -> np.ndarray:
        """Places among the held blocks, ascending: as many as the budget has room for, in the order
        of the policy."""
        n, held = len(self._held), self._held
        self._budget += self._fraction * held.dim
        if held.size:  # none needs to be looked at beyond those that fit
            count = min(n, int(self._budget / held.size + _ROUNDING))
            chosen = self._first(x, k, count)
        else:
            order = self._first(x, k, n)
            filled = np.cumsum(held.sizes[order])
            chosen = order[: np.searchsorted(filled, self._budget + _ROUNDING, "right")]
        self._budget -= int(held.sizes[chosen].sum())
        if self._policy == "round":
            self._turn = (self._turn + len(chosen)) % max(1, n)
        return np.sort(chosen)

    def _first(self, x: np.ndarray, k: int, count: int) -> np.ndarray:
        """The first `count` of the held blocks in the policy's order, of which a set is enough
        where all fit."""
        n = len(self._held)
        if self._policy == "priority" and (count < n or not self._held.size):
            d = self._distance(x, self.cached, self._held)
            return largest(d, count) if count < n else np.argsort(-_far(d), kind="stable")
        if self._policy == "random":
            return self._rng(k).permutation(n)[:count]
        return (self._turn + np.arange(count)) % max(1, n)


def _far(d: np.ndarray) -> np.ndarray:
    """A block that is no longer a number counts as farthest."""
    return np.where(np.isnan(d), np.inf, d)


def largest(d: np.ndarray, count: int) -> np.ndarray:
    """The places of the `count` largest values of d, ascending; of equal ones the first."""
    if count == 0:
        return np.empty(0, np.int64)
    d = _far(d)
    least = np.partition(d, len(d) - count)[len(d) - count]
    above, equal = np.flatnonzero(d > least), np.flatnonzero(d == least)
    return np.sort(np.concatenate([above, equal[: count - len(above)]]))
