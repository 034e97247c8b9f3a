"""What one process does for all, before there is a cluster: prepare data, make the run folder."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from cbdybw.errors import BadInput, Unwritable

T = TypeVar("T")


def on_root(act: Callable[[], T], mpi: bool) -> T:
    """`act()`, called on rank 0 only; its result, or its BadInput or Unwritable, on every rank."""
    if not mpi:
        return act()
    from cbdybw.clusters.world import MPI

    outcome = None
    if MPI.COMM_WORLD.rank == 0:
        try:
            outcome = act(), None
        except (BadInput, Unwritable) as error:
            outcome = None, error
    value, refusal = MPI.COMM_WORLD.bcast(outcome)
    if isinstance(refusal, Unwritable):
        refusal.told = MPI.COMM_WORLD.rank != 0
    if refusal is not None:
        raise refusal
    return value
