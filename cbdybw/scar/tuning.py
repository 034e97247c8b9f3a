"""How often to save, chosen while a run goes on: `--checkpoint_policy=auto`.

A server watches how far its blocks go in each iteration and how long iterations last, and from time
to time takes the r and C of `choice.choose`. Each server chooses by itself, from its own blocks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cbdybw.scar.choice import Choice, Costs, choose, evenness
from cbdybw.scar.iteration_cost import Online

EVERY = 16
"""[choice] Iterations between two choices: asking for c costs some milliseconds."""


@dataclass(frozen=True)
class Expected:
    """What is known before a run.

    Attributes:
        failure_rate: failures per iteration.
        lost_share: share p of the blocks that one loses.
        latency: seconds that a save holds up training, however small.
        bandwidth: bytes a second beyond that.
    """

    failure_rate: float
    lost_share: float
    latency: float
    bandwidth: float


class Tuner:
    """One server's choices.

    Args:
        expected: of failures, and what saves cost.
        nbytes: of all blocks that the server holds.
        now: seconds on the clock at which iteration 0 begins.
    """

    def __init__(self, expected: Expected, nbytes: int, now: float):
        self._expected, self._nbytes = expected, nbytes
        self._online, self._begun, self._seen = Online(), now, 0

    def begin_anew(self) -> None:
        """A recovery is no step of the fall."""
        self._online = Online()

    def tell(self, k: int, now: float, changes: np.ndarray) -> Choice | None:
        """Iteration k is over: by how much each block has changed in it, shape (n,).

        Returns what to do from now on, every so often, once the run is seen to converge.
        """
        self._online.tell(k, float(np.sqrt(np.sum(changes * changes))))
        self._seen += 1
        if self._seen % EVERY or self._online.estimate is None:
            return None
        seconds = (now - self._begun) / self._seen
        if not seconds > 0:
            return None  # time stands still: nothing to weigh saves against
        expected = self._expected
        costs = Costs(seconds, expected.latency, 1 / expected.bandwidth, self._nbytes)
        return choose(
            costs,
            self._online.c,
            expected.failure_rate,
            expected.lost_share,
            evenness(changes),
        )
