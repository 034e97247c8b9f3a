"""MPI, initialised by importing this, and finalised at the end of the process.

Not by mpi4py, which cannot be called off: after the death of a rank MPI_Finalize hangs now and
then (Open MPI 5.0: one time in twenty), and under ULFM mpirun does not mind who leaves without it.
"""

import atexit
import ctypes
import signal

import mpi4py

mpi4py.rc.finalize = False

from mpi4py import MPI  # noqa: E402

atexit.register(MPI.Finalize)

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)
if hasattr(_libc, "prctl"):  # Linux: who has lost mpirun to a SIGKILL would spin for ever
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def do_not_finalize() -> None:
    """A rank was lost."""
    atexit.unregister(MPI.Finalize)
