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


def adopt(
    owner: np.ndarray, lost: Collection[int], living: Sequence[int], rng: np.random.Generator
) -> np.ndarray:
    """Blocks of lost parts dealt out at random over the living, equally many each but for one.

    `owner` maps a block to its part, shape (n,), and so does what is returned; what the living
    hold stays with them.
    """
    after = owner.copy()
    orphans = rng.permutation(np.flatnonzero(np.isin(owner, list(lost))))
    after[orphans] = rng.permutation(living)[np.arange(len(orphans)) % len(living)]
    return after
