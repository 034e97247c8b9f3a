"""How a binary ends when something goes wrong, whatever cluster it runs on.

Importing this does not initialise MPI: flags are checked before any cluster is built.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

from cbdybw.clusters.launch import is_root, placement
from cbdybw.clusters.overdue import expect_end_of_mpirun
from cbdybw.errors import (
    BadInput,
    Cancelled,
    CheckpointFailed,
    Evicted,
    FallenApart,
    Interrupted,
    PeerLost,
    Stalled,
    Unwritable,
)

_BAD_INPUT, _FAILED, _AGAIN = 2, 1, 75  # of sysexits.h: EX_TEMPFAIL
_SAY_ALL = (Stalled, CheckpointFailed)
_ULFM = "OMPI_MCA_mpi_ft_enable"  # set by `mpirun --with-ft ulfm`
_LINGER = 0.5  # seconds in which the other ranks notice the same thing
_LONGER = 5.0  # seconds after which a rank leaves even if nobody has said why
_ALIKE = 3.0  # seconds within which every rank comes upon the same bad input
_WRITTEN = 60.0  # seconds within which the root has written how a run was interrupted


@contextmanager
def guard() -> Iterator[None]:
    """Everything that a binary does belongs inside.

    - BadInput: its one line on stderr, from rank 0 when all ranks have met it, exit code 2.
    - PeerLost, FallenApart: one line per run (the cluster attaches it as a note on one rank), exit
      code 1. Unwritable, Evicted: one line; where the others do not know, they find this rank lost.
    - Interrupted: one line, exit code 75, which asks to be started again. Cancelled: one line, and
      an exit code that names the signal, as a shell gives it.
    - Anything else on a rank of several: what happened, with the rank's name, and the end of this
      process in such a way that the other ranks notice. In a single process it is raised, but for
      Stalled and CheckpointFailed, whose messages say all.
    """
    try:
        yield
    except BadInput as error:
        _refuse(error)
    except (PeerLost, FallenApart) as loss:
        notes = getattr(loss, "__notes__", ())
        if isinstance(loss, FallenApart) and is_root():
            notes = (str(loss),)  # all who live have come upon it
        say(*notes)
        if is_root():
            expect_end_of_mpirun()
        # mpirun ends the whole job when one rank leaves: it should be the one that has said why.
        time.sleep(_LINGER if notes else _LONGER)
        leave(_FAILED)
    except (Unwritable, Evicted) as trouble:
        told = getattr(trouble, "told", None)
        if not told:
            say(str(trouble))
        if told is None:
            die()
        time.sleep(_LONGER if told else _LINGER)
        leave(_FAILED)
    except (Interrupted, Cancelled) as stop:
        _stop(stop)
    except (Exception, KeyboardInterrupt) as error:
        placed = placement()
        if placed is None:
            if isinstance(error, _SAY_ALL):
                say(str(error))
                leave(_FAILED)
            raise
        name = f"rank {placed[0]}: {type(error).__name__}: {error}"
        if isinstance(error, _SAY_ALL):
            say(name)
            time.sleep(_LINGER)  # so that the others can report what they wait for
        else:
            say(traceback.format_exc().rstrip(), name)
        die()


def leave(code: int) -> NoReturn:
    """End this process without MPI_Finalize, which may hang after a failure."""
    with suppress(BrokenPipeError):  # mpirun is gone, and with it whoever could read this
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def die() -> None:
    """End this process so that the other ranks end too.

    Under ULFM only a death by signal is reported to them, but it does not count for the exit code
    of mpirun: rank 0 looks whether somebody else has died, and if so ends with an exit code.
    Without ULFM MPI must abort the job.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    world = _world()
    if world is None or world.size == 1:
        leave(_FAILED)
    if os.environ.get(_ULFM) != "1":
        world.Abort(_FAILED)
    if world.rank == 0 and _another_has_died(world):
        leave(_FAILED)
    os.kill(os.getpid(), signal.SIGKILL)


def _another_has_died(world) -> bool:
    end = time.monotonic() + _LINGER
    while time.monotonic() < end:
        world.Iprobe(world.rank)  # deaths are noticed by whoever drives MPI on
        if world.Get_failed().size:
            return True
        time.sleep(0.01)
    return False


def _refuse(error: BadInput) -> None:
    world = _world()
    if world is not None and not _all_here(world):
        say(f"rank {world.rank}: {error}")
        die()
    if world is None or world.rank == 0:
        say(str(error))
    if world is not None:
        _all_here(world)  # mpirun ends the whole job when one rank leaves: not before it was said
    leave(_BAD_INPUT)


def _stop(stop: Interrupted | Cancelled) -> NoReturn:
    """Leave; by now the root has written how the run ended, or is about to."""
    if is_root():
        say(str(stop))
    if isinstance(stop, Cancelled):
        if placement() is None:
            leave(128 + stop.signum)
        if not is_root():
            time.sleep(_LINGER)
        die()  # mpirun ends all if it was told to; else the others have to notice
    world = _world()
    if world is not None:
        _all_here(world, _WRITTEN)
    leave(_AGAIN)


def _all_here(world, seconds: float = _ALIKE) -> bool:
    """Whether all ranks come here within `seconds`."""
    meeting, end = world.Ibarrier(), time.monotonic() + seconds
    while not meeting.Test():
        if time.monotonic() > end:
            return False
        time.sleep(0.001)
    return True


def _world():
    """MPI's world if a launcher has started this process, else None.

    Initialises MPI where that has not happened yet: the other ranks may be waiting for this one
    in MPI_Init, and would do so forever.
    """
    if placement() is None:
        return None
    from cbdybw.clusters.world import MPI

    MPI.COMM_WORLD.Set_errhandler(MPI.ERRORS_RETURN)
    return MPI.COMM_WORLD


def say(*lines: str) -> None:
    """One write, so that the lines of two ranks do not mix."""
    if lines:
        with suppress(BrokenPipeError):  # mpirun is gone, and with it whoever could read this
            sys.stderr.write("\n".join(lines) + "\n")
            sys.stderr.flush()
