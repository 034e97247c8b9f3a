"""What one process does for all, before there is a cluster: prepare data, make the run folder."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from cbdybw.errors import BadInput

T = TypeVar("T")


def on_root(act: Callable[[], T], mpi: bool) -> T:
    """`act()`, called on rank 0 only; its result, or its BadInput, on every rank."""
    if not mpi:
        return act()
    from cbdybw.clusters.world import MPI

    outcome = None
    if MPI.COMM_WORLD.rank == 0:
        try:
            outcome = act(), None
        except BadInput as error:
            outcome = None, str(error)
    value, refusal = MPI.COMM_WORLD.bcast(outcome)
    if refusal is not None:
        raise BadInput(refusal)
    return value
