"""What can go wrong through no fault of the program, and what ends a run before its time."""

from __future__ import annotations

import errno
import os
import signal


class BadInput(ValueError):
    """A flag, file or data set that cannot be used.

    The message is one line: what was given, what is allowed, what to change. Binaries print it
    and leave with exit code 2; nothing has been written by then.
    """


class PeerLost(RuntimeError):
    """A rank that this one was talking to has died."""

    def __init__(self, rank: int):
        super().__init__(f"rank {rank} was lost")
        self.rank = rank


class FallenApart(RuntimeError):
    """Those who have survived are no longer connected, as the message says."""

    def __init__(self, how: str):
        super().__init__(f"the graph has fallen apart: {how}; the run ends")


class Stalled(RuntimeError):
    """No worker can make progress; the message says who waits for what."""


class CheckpointFailed(RuntimeError):
    """A running checkpoint could not be written; what was durable before is still there.

    The message is one line: the file, why, and what to change.
    """


_ROOM = "make room there and go on"
_MENDS = {
    errno.ENOSPC: _ROOM,
    errno.EDQUOT: _ROOM,
    errno.EFBIG: _ROOM,
    errno.ENOENT: "its folder is gone: begin anew in another one",
    errno.ESTALE: "its folder is gone: begin anew in another one",
    errno.EIO: "look after the disk or the file server, then go on",
}


class Unwritable(OSError):
    """A file cannot be written: the disk is full, say, or its folder is gone.

    The message is one line: the file, why, and the mend. What was written before is still there.
    `told`, where several ranks know: whether another one prints it.
    """

    told: bool | None = None

    def __init__(self, path: str | os.PathLike, number: int):
        super().__init__(number, os.strerror(number), str(path))

    def __str__(self) -> str:
        mend = _MENDS.get(self.errno, "mend that and go on")
        return f"{self.filename}: cannot be written ({self.strerror}); {mend}"

    def __reduce__(self):
        return Unwritable, (self.filename, self.errno)


class Interrupted(RuntimeError):
    """The time is nearly over: a run has stopped right after a checkpoint, to be resumed."""

    def __init__(self, k: int):
        super().__init__(f"stopped at the checkpoint before iteration {k}; --resume goes on there")


class Cancelled(BaseException):
    """A run is to end at once, by the signal `signum`. No Exception, so that nobody swallows it."""

    def __init__(self, signum: int):
        name = signal.Signals(signum).name
        super().__init__(f"ended by {name}; --resume goes on from the last checkpoint, if any")
        self.signum = signum


class Evicted(RuntimeError):
    """Another run has taken over the folder of this one, which must not write to it any more."""

    def __init__(self, folder: str | os.PathLike, by: str):
        super().__init__(f"{folder}: {by} has taken over this run folder; this run ends")
