"""What a batch system tells a run by signals, in the way of Slurm and submitit.

    SIGUSR2           the time is nearly over: the run stops right after its next checkpoint
    SIGTERM, SIGINT   it ends at once

A signal that comes before `listen` has its usual effect, and ends the process.
"""

from __future__ import annotations

import _thread
import signal
from types import FrameType

from cbdybw.clusters.guard import say
from cbdybw.clusters.launch import is_root
from cbdybw.errors import Cancelled

_ENDING = (signal.SIGTERM, signal.SIGINT)
_warned = False
_why: BaseException | None = None


def listen() -> None:
    """Heed signals from now on, in the main thread."""
    signal.signal(signal.SIGUSR2, _warn)
    for signum in _ENDING:
        signal.signal(signum, _end)


def warned() -> bool:
    """Whether the run is to stop after its next checkpoint."""
    return _warned


def end(why: BaseException) -> None:
    """Raise `why` in the main thread, if it listens; for other threads."""
    global _why
    _why = why
    _thread.interrupt_main(signal.SIGTERM)


def _warn(signum: int, frame: FrameType | None) -> None:
    global _warned
    if not _warned and is_root():
        say("SIGUSR2: the run stops after its next checkpoint, if there is to be one")
    _warned = True


def _end(signum: int, frame: FrameType | None) -> None:
    for ending in _ENDING:  # the end must not be ended itself
        signal.signal(ending, lambda *_: None)
    raise _why or Cancelled(signum)
