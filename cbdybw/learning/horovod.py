"""Horovod's sum of one vector over all ranks, beside mpi4py on the same MPI.

Importing this raises ImportError where Horovod is not installed, or without TensorFlow in it.
"""

from __future__ import annotations

import os

import horovod  # first: where it is missing, TensorFlow need not be loaded
import numpy as np
from mpi4py import MPI

from cbdybw.learning.flat import tf  # before Horovod does: it sets TensorFlow up

os.environ.setdefault("HOROVOD_LOG_LEVEL", "fatal")  # that a rank has died is said by `guard`

import horovod.tensorflow as hvd  # isort: skip


class Horovod:
    """While it runs, a thread of its own polls MPI a thousand times a second."""

    name = f"horovod {horovod.__version__}"

    def start(self) -> None:
        """All ranks together; again after `stop` is fine."""
        hvd.init(comm=MPI.COMM_WORLD)

    def allreduce(self, vector: np.ndarray) -> np.ndarray:
        """Σ of the float32 `vector` over all ranks, shape (dim,). Blocks until all have called it.

        The order of summation is MPI's, and so are the last bits.
        """
        return hvd.allreduce(tf.convert_to_tensor(vector), op=hvd.Sum, name="sum").numpy()

    def stop(self) -> None:
        """All ranks together, when no sum is under way."""
        hvd.shutdown()
