"""All that an algorithm sees of the cluster it runs on.

An algorithm is a coroutine per worker over `Worker`. Both clusters implement this class and share
nothing else, so the same file of code runs on MPI ranks and on the virtual clock.
"""

from __future__ import annotations

import types
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Coroutine, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np


class Kind(IntEnum):
    """What a message says. At equal virtual times data arrives before control (FIRST_CONTROL up).

    There is room for 27 kinds: a trace has five bits for them, and some values of its own.
    """

    UPDATE = 0  # a locally updated estimate, sent to the neighbours
    PUSH = 1  # gradients of a worker, sent to a parameter server
    MODEL = 2  # a server's parameters, sent to a worker
    ASK = 3  # an estimate, sent to one neighbour that is to average with it (AD-PSGD)
    ANSWER = 4  # the average of the two
    STEP = 5  # the sender has used one more gradient (AD-PSGD)
    THRESHOLD = 8  # iteration k ends now (DTUR)
    CLOSE = 9  # whose UPDATE(k) the sender has: one half of the handshake on an edge
    VISITED = 10  # an edge took part in iteration k (DTUR, Pathsearch)
    STOP = 11  # the iteration before which everyone stops
    TARGET = 12  # C_target, how many commits everybody should have at the next check point (ADSP)
    PEER_LOST = 13  # made by the cluster when a peer dies: for the how manieth time
    REPAIR = 14  # the sender has heard of losses, and meets the living
    END = 15  # the sender has nothing left to do, unless somebody is lost


FIRST_CONTROL = 8


class Message(NamedTuple):
    """What one worker tells another.

    `body` holds a few integers; `vector` is a float32 array of one dimension or None. A vector is
    read-only once sent: the virtual cluster hands the very same array to the receiver.
    """

    kind: Kind
    iteration: int
    source: int
    body: tuple[int, ...] = ()
    vector: np.ndarray | None = None


Match = Callable[[Message], bool]


def describe(match: Match) -> str:
    """What a match made by a function such as `update(k=3, source=1)` waits for, for reports."""
    if not isinstance(match, types.FunctionType):
        return repr(match)
    names = match.__code__.co_freevars
    values = (cell.cell_contents for cell in match.__closure__ or ())
    keys = ", ".join(f"{name}={value!r}" for name, value in zip(names, values, strict=True))
    return f"{match.__qualname__.split('.<locals>')[0]}({keys})"


def keyed_rng(seed: int, purpose: str, rank: int, index: int) -> np.random.Generator:
    """The generator that belongs to (seed, purpose, rank, index), on every cluster."""
    key = np.random.SeedSequence((seed, zlib.crc32(purpose.encode()), rank, index))
    return np.random.Generator(np.random.Philox(key))


class _Interrupted:
    def __repr__(self) -> str:
        return "INTERRUPTED"


INTERRUPTED: Any = _Interrupted()
"""What `Worker.compute` returns when a message matching `until` came first."""


class Worker(ABC):
    """One process of a cluster, as an algorithm sees it.

    Attributes:
        rank: this process, 0 … size-1.
        size: number of processes.
        workers: ranks that learn, ascending.
        servers: ranks that serve parameters, ascending; empty for the consensus family.
        restarts: how often a new process has taken the place of one of this rank that died; on MPI
            nobody is replaced.
    """

    rank: int
    size: int
    workers: Sequence[int]
    servers: Sequence[int]
    restarts: int = 0

    @abstractmethod
    def now(self) -> float:
        """Seconds on this cluster's clock since the common start."""

    @abstractmethod
    async def compute(
        self,
        fn: Callable[..., Any],
        *args: Any,
        index: int,
        work: float = 1.0,
        until: Match | None = None,
    ) -> Any:
        """Run `fn(*args)` and return its result, or INTERRUPTED when `until` matches first.

        `index` is the iteration at which the computation starts: with the rank it keys the drawn
        delay. `work` counts minibatches; 0 is free of charge. The call lasts max(real, drawn)
        seconds on MPI and the drawn time on the virtual clock. The message that interrupts is
        left for `receive` or `take`.
        """

    @abstractmethod
    def send(self, dest: int, message: Message) -> None:
        """Hand `message` to the network; never blocks. One link delivers in the order sent.

        A worker may send to itself.
        """

    @abstractmethod
    def broadcast(self, message: Message) -> None:
        """`send` to every other rank."""

    @abstractmethod
    async def receive(self, match: Match, timeout: float | None = None) -> Message | None:
        """The oldest message that matches, or None after `timeout` seconds.

        Raises PeerLost when a peer has died that is not forgiven, as often as it is called.
        """

    @abstractmethod
    def take(self, match: Match) -> list[Message]:
        """All messages that match and are here already, oldest first, removed. Never waits."""

    @abstractmethod
    def spawn(self, activity: Coroutine[Any, Any, Any]) -> None:
        """Run a second activity of this rank beside its main one. It ends with the main one."""

    @abstractmethod
    def forgive(self, ranks: Collection[int]) -> None:
        """From now on this rank survives the death of any of `ranks`, and of no others; never that
        of rank 0, which sums up the run. Called first of all, on every rank of an algorithm that
        can do without them, or when a PeerLost has been caught.

        Of one that dies comes the message PEER_LOST, for whoever receives it, and nothing more;
        what is sent to it is dropped, and the living meet without it (but cannot `allreduce`).
        """

    @abstractmethod
    async def barrier(self, group: Sequence[int]) -> None:
        """Return once every rank of `group` has called it."""

    @abstractmethod
    async def allreduce(self, vector: np.ndarray, group: Sequence[int]) -> np.ndarray:
        """The elementwise sum over `group`, summed in rank order."""

    @abstractmethod
    async def checkpoint(self, snapshot: Callable[[], Any]) -> None:
        """A consistent cut: wait until all ranks are here and every message sent has arrived,
        then save `snapshot()`. The time spent here is no part of any iteration.
        """

    @abstractmethod
    def rng(self, purpose: str, index: int) -> np.random.Generator:
        """A generator keyed by (seed, purpose, rank, index): there is no stream state to save."""

    @abstractmethod
    def record(self, event: str, **fields: Any) -> None:
        """Tell the run's recorder; costs no time on the virtual clock."""
