"""What takes the place of lost parameters.

Source: SCAR (arXiv 1810.07354), section 4.1, for full and partial recovery; neighbours instead of
checkpoints, for consensus training, are ours.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from cbdybw.mixing import combine, metropolis
from cbdybw.scar.blocks import Blocks
from cbdybw.scar.checkpoint import NOWHERE, Store, complain_if_missing


def newest(stores: Sequence[Store], members: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The newest copy of each of `members` (ascending) that any of the stores has.

    Returns their values, packed, and the iteration of each, shape (len(members),). What was found
    damaged stays in the stores' `damage`. BadInput names a block of which nobody has a copy.
    """
    wanted = stores[0].blocks.subset(members)
    packed = np.zeros(wanted.dim, np.float32)
    saved_at = np.full(len(members), NOWHERE)
    damage: tuple[str, ...] = ()
    for store in stores:
        theirs, at = store.copies(members)
        newer = np.flatnonzero(at > saved_at)
        wanted.put(packed, newer, wanted.take(theirs, newer))
        saved_at[newer] = at[newer]
        damage += store.damage
    complain_if_missing(members, saved_at, "running checkpoint", damage)
    return packed, saved_at


def partial(x: np.ndarray, lost: np.ndarray, blocks: Blocks, saved: np.ndarray) -> np.ndarray:
    """Only the blocks `lost` go back to what is saved of them, packed in `saved`; a new vector.

    The perturbation that this is has never a larger norm than full recovery's (Theorem 4.1), and p
    times its square on average where a random share p is lost (Theorem 4.2).
    """
    restored = x.copy()
    blocks.put(restored, lost, saved)
    return restored


def full(saved: np.ndarray) -> np.ndarray:
    """Everything goes back to what is saved of it, as in the classical scheme; a new vector."""
    return saved.copy()


def neighbour_average(
    lost: int, estimates: Mapping[int, np.ndarray], degrees: Mapping[int, int]
) -> np.ndarray:
    """Where worker `lost` of a consensus begins again: between its living neighbours.

    Σ_i P_i w_i over their `estimates`, with the Metropolis weights of the lost worker's row without
    its own share, scaled to a sum of 1 [choice]. `degrees` has the degree of each of them, and its
    own. ValueError without a living neighbour.
    """
    if not estimates:
        raise ValueError(f"no neighbour of worker {lost} is left to begin from")
    row = metropolis(lost, degrees[lost], {i: degrees[i] for i in estimates})
    del row[lost]
    total = sum(row.values())
    return combine({i: weight / total for i, weight in row.items()}, estimates)


def heirs(owner: np.ndarray, parts: Sequence[int], rng: np.random.Generator) -> np.ndarray:
    """Who holds each block as long as those before it are lost: its owner, then the other parts in
    an order drawn for each block; shape (n, len(parts)).

    So the living agree on who holds what whatever each of them had heard of, in whatever order, and
    what they hold stays with them.
    """
    order = rng.permuted(np.tile(parts, (len(owner), 1)), axis=1)
    others = order[order != owner[:, None]].reshape(len(owner), -1)
    return np.hstack((owner[:, None], others))


def holders(heirs: np.ndarray, lost: Collection[int]) -> np.ndarray:
    """Who holds each block when these parts are lost, shape (n,); one part has to be left."""
    lives = ~np.isin(heirs, list(lost))
    return heirs[np.arange(len(heirs)), lives.argmax(1)]
