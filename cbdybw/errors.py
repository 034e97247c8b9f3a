"""What can go wrong through no fault of the program."""


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
