"""The real cluster: one MPI rank is one worker, the clock is the wall's.

Importing this module initialises MPI; nothing else in the package does.
"""

from __future__ import annotations

import array
import atexit
import ctypes
import gc
import os
import zlib
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import mpi4py
import numpy as np
from mpi4py import MPI

from cbdybw.clusters.guard import guard
from cbdybw.clusters.loop import Job, Loop
from cbdybw.clusters.trace import Event, Span, Trace
from cbdybw.clusters.wire import MARK, Wire, complete, failed
from cbdybw.clusters.worker import INTERRUPTED, Match, Message, Worker, keyed_rng
from cbdybw.errors import PeerLost
from cbdybw.problem import Weightless

if TYPE_CHECKING:
    from cbdybw.clusters.virtual import Recorder, Saver
    from cbdybw.learning.horovod import Horovod


class Neighbours(Protocol):
    """Rank → the ranks it exchanges vectors with; a networkx graph is one."""

    def __getitem__(self, rank: int) -> Iterable[int]: ...


class MpiWorker(Worker):
    """This rank, as an algorithm sees it."""

    def __init__(self, cluster: MpiCluster):
        self._cluster, self._loop, self._trace = cluster, cluster._loop, cluster.trace
        self._wire = cluster._wire
        self.rank, self.size = cluster.rank, cluster.size
        self.workers, self.servers = cluster.workers, cluster.servers
        self.iteration = 0  # at which the latest computation started

    def now(self) -> float:
        return self._loop.time

    async def compute(
        self,
        fn: Callable[..., Any],
        *args: Any,
        index: int,
        work: float = 1.0,
        until: Match | None = None,
    ) -> Any:
        if work == 0:
            return fn(*args)
        self.iteration = index
        start = self._loop.clock()
        job = Job(fn, args, index, start + work * self._cluster._delay(self.rank, index), until)
        whole = await self._loop.computation(job)
        self._trace.span(self.rank, Span.COMPUTE, index, start, self._loop.time)
        if job.error is not None:
            raise job.error
        return job.result if whole else INTERRUPTED

    def send(self, dest: int, message: Message) -> None:
        self._wire.send(dest, message)

    def broadcast(self, message: Message) -> None:
        self._wire.broadcast(message)

    async def receive(self, match: Match, timeout: float | None = None) -> Message | None:
        event, start = self._loop.time, self._loop.clock()
        message = await self._loop.message(match, timeout)
        if self._loop.time > event:  # it was not here already
            iteration = message.iteration if message else 0
            self._trace.span(self.rank, Span.WAIT, iteration, start, self._loop.time)
        return message

    def take(self, match: Match) -> list[Message]:
        mailbox = self._loop.mailbox
        taken = [message for message in mailbox if match(message)]
        if taken:
            mailbox[:] = [message for message in mailbox if not match(message)]
        return taken

    def spawn(self, activity: Coroutine[Any, Any, Any]) -> None:
        self._loop.spawn(activity)

    def forgive(self, ranks: Collection[int]) -> None:
        self._loop.forgiven = frozenset(ranks) - {0}

    async def barrier(self, group: Sequence[int]) -> None:
        start = self._loop.clock()
        await self._cluster._meet(group, "barrier")
        self._collected(Span.COLLECTIVE, start)

    async def allreduce(self, vector: np.ndarray, group: Sequence[int]) -> np.ndarray:
        start = self._loop.clock()
        if isinstance(vector, Weightless):
            await self._cluster._meet(group, "allreduce")
            total = vector
        else:
            total = await self._cluster._sum(vector, group)
        self._collected(Span.COLLECTIVE, start)
        return total

    async def checkpoint(self, snapshot: Callable[[], Any]) -> None:
        start, cluster = self._loop.clock(), self._cluster
        await cluster._quiet(cluster._everyone, "checkpoint")
        if cluster._saver is not None:
            cluster._saver.save(self.rank, snapshot())
            await cluster._meet(cluster._everyone, "checkpoint")
            if cluster.is_root:
                cluster._saver.commit(cluster)
        self._collected(Span.CHECKPOINT, start)

    def _collected(self, span: Span, start: float) -> None:
        now = self._loop.time
        self._trace.span(self.rank, span, self.iteration, start, now)
        self._trace.event(self.rank, now, Event.COLLECTED, 0, self.rank)

    def rng(self, purpose: str, index: int) -> np.random.Generator:
        return keyed_rng(self._cluster.seed, purpose, self.rank, index)

    def record(self, event: str, **fields: Any) -> None:
        now = self._loop.time
        if event == "average":
            self._trace.span(self.rank, Span.AVERAGE, fields["k"], now, self._loop.clock())
        self._cluster._recorder.record(self.rank, now, event, fields)


class MpiCluster:
    """This process's rank among all that mpirun has started; the last `servers` ranks serve.

    Every rank builds its own, with the same arguments.

    Args:
        delay: (rank, iteration) → seconds that one minibatch lasts at least.
        dim: parameters of a vector; 0 when vectors are `Weightless`.
        neighbours: with whom each worker exchanges vectors, beside the servers.
        stall_timeout: seconds without any event after which waiting workers raise Stalled.
        horovod: sums over all ranks in place of mpi4py, while a run lasts.

    Attributes:
        allreduce_by: who sums, with its version.
    """

    def __init__(
        self,
        *,
        delay: Callable[[int, int], float],
        dim: int,
        neighbours: Neighbours,
        seed: int,
        trace: Trace,
        recorder: Recorder,
        servers: int = 0,
        saver: Saver | None = None,
        stall_timeout: float = 60.0,
        horovod: Horovod | None = None,
    ):
        _keep_freed_arrays()
        self._comm, self._pickles, ranks_here = _communicators()
        self.size, self.rank = self._comm.size, self._comm.rank
        self.process, self.ranks, self.is_root = self.rank, (self.rank,), self.rank == 0
        self.workers = range(self.size - servers)
        self.servers = range(self.size - servers, self.size)
        self.seed, self.trace = seed, trace
        self._delay, self._recorder, self._saver = delay, recorder, saver
        self._stall_timeout, self._horovod = stall_timeout, horovod
        self.allreduce_by = horovod.name if horovod else f"mpi4py {mpi4py.__version__}"
        # Of sums; they and pickles are never under way together.
        self._groups = {tuple(range(self.size)): self._pickles}
        self._meetings: dict[tuple[int, ...], int] = {}  # of each group so far
        self._everyone = range(self.size)
        self._wire = Wire(self._comm, dim, self._vector_peers(neighbours))
        self._loop = Loop(self._wire, trace, spin=ranks_here <= _cores())
        self._worker = MpiWorker(self)
        atexit.register(self._leave)

    def run(self, main: Callable[[Worker], Coroutine], start: float = 0.0) -> dict[int, Any]:
        """Run `main(worker)` from time `start`, common to all ranks; {this rank: its result}.

        Returns when every rank has finished and nothing is under way; messages that nobody has
        asked for are dropped. Raises PeerLost, Stalled, and what `main` raises.
        """
        gc.collect()
        gc.freeze()  # TensorFlow's million objects need not be looked at again
        if self._horovod:
            self._horovod.start()
        self._drive(self._meet(self._everyone, "common start"), self._stall_timeout)
        self._loop.set_clock(start)
        self._loop.open = True
        result = self._drive(main(self._worker), self._stall_timeout)
        self._loop.open = False
        self._drive(self._finish())
        if self._horovod:
            self._horovod.stop()
        return {self.rank: result}

    @property
    def time(self) -> float:
        """Seconds on this rank's clock, of the event being processed."""
        return self._loop.time

    def gather(self, value: Any) -> list[Any] | None:
        """Every rank's value, in rank order, on the root; None elsewhere. Values are pickled."""
        return self._drive(self._collect(value))

    def _vector_peers(self, neighbours: Neighbours) -> Collection[int]:
        if self.rank in self.servers:
            return self._everyone
        return {*neighbours[self.rank], *self.servers}

    def _drive(self, coroutine: Coroutine, *patience: float) -> Any:
        try:
            return self._loop.drive(coroutine, *patience)
        except PeerLost as loss:
            when = f"in iteration {self._worker.iteration}"
            _announced(loss, self.rank, self.size, self._wire.lost, when)
            raise

    async def _finish(self) -> None:
        await self._quiet(self._everyone, "end of the run")
        await self._loop.until(self._wire.all_sent, "its last messages to leave", self._everyone)
        self._loop.held.clear()
        self._loop.mailbox.clear()

    async def _collect(self, value: Any) -> list[Any] | None:
        if not self.is_root:
            sending = self._pickles.isend(value, 0)
            await self._loop.until(lambda: complete(sending), "the root to gather", (0,))
            return None
        values = [value]
        for source in self._everyone[1:]:
            probe = _Probe(self._pickles, source)
            await self._loop.until(probe, f"rank {source} to hand in its part", (source,))
            values.append(probe.value)
        return values

    def _leave(self) -> None:
        """At the end of the process: MPI_Finalize must not begin while a rank is at work, because
        it would neither notice that rank's death nor leave it the processor."""
        with guard():
            self._drive(self._part())
            self._wire.close()

    async def _part(self) -> None:
        await self._meet(self._everyone, "end of the process")
        await self._loop.until(self._wire.all_sent, "its last messages to leave", self._everyone)

    # Collectives

    def _communicator(self, group: Sequence[int]) -> MPI.Comm:
        key = tuple(group)
        if key not in self._groups:
            # From the world: it speaks to the others on the communicator it is called on, and on
            # the wire's own the posted receives would take its words for messages.
            comm = MPI.COMM_WORLD.Create_group(self._comm.group.Incl(key))
            comm.Set_errhandler(MPI.ERRORS_RETURN)
            self._groups[key] = comm
        return self._groups[key]

    async def _meet(self, group: Sequence[int], what: str) -> list[int]:
        """Return once all ranks of `group` have come here; how many messages each had sent.

        Everybody sends a mark to everybody. Links keep their order, so what a rank sent to this
        one before it came here has arrived as well. (MPI's own barriers print to stderr when a
        rank dies, and some ranks would not notice.)
        """
        members = tuple(group)
        number = self._meetings[members] = self._meetings.get(members, -1) + 1
        name = zlib.crc32(array.array("q", members).tobytes())
        mark = Message(MARK, number, self.rank, (name, self._wire.sent))
        if len(members) == self.size:
            self._wire.send(self.rank, mark)
            self._wire.broadcast(mark)
        else:
            for rank in members:
                self._wire.send(rank, mark)
        marks = self._loop.marks.setdefault((name, number), {})
        await self._loop.until(lambda: len(marks) == len(members), f"the others: {what}", members)
        del self._loop.marks[name, number]
        return [marks[rank] for rank in members]

    async def _sum(self, vector: np.ndarray, group: Sequence[int]) -> np.ndarray:
        if self._horovod and len(group) == self.size:
            return await self._loop.blocking(
                self._horovod.allreduce, vector, what="the others: allreduce", group=group
            )
        return await self._sum_in_rank_order(vector, group)

    async def _sum_in_rank_order(self, vector: np.ndarray, group: Sequence[int]) -> np.ndarray:
        """Each rank sums its share of the elements in rank order and hands it to the others, so
        that all get the same bits."""
        comm = self._communicator(group)
        vector = np.ascontiguousarray(vector, np.float32)
        total = np.empty_like(vector)
        mine, sums = np.array_split(vector, comm.size), np.array_split(total, comm.size)
        shares = np.empty((comm.size, len(sums[comm.rank])), np.float32)
        await self._swap(comm, mine, shares, group)
        share = shares[0]
        for other in shares[1:]:
            share += other
        await self._swap(comm, [share] * comm.size, sums, group)
        return total

    async def _swap(
        self,
        comm: MPI.Comm,
        outgoing: Sequence[np.ndarray],
        incoming: Sequence[np.ndarray],
        group: Sequence[int],
    ) -> None:
        """Send `outgoing[r]` to each rank r of `comm` and receive `incoming[r]` from it.

        (MPI's own non-blocking collectives print to stderr when a rank dies.)
        """
        try:
            under_way = [comm.Irecv(part, rank) for rank, part in enumerate(incoming)]
            under_way += [comm.Isend(part, rank) for rank, part in enumerate(outgoing)]
        except MPI.Exception as error:
            if not failed(error):
                raise
            under_way = [MPI.REQUEST_NULL]  # never done: `until` raises the loss

        def all_done() -> bool:
            while under_way and complete(under_way[-1]):
                under_way.pop()
            return not under_way

        await self._loop.until(all_done, "the others: allreduce", group)

    async def _quiet(self, group: Sequence[int], what: str) -> None:
        """Return once nothing that was sent among `group` is under way, answers included.

        What was sent before the first meeting has arrived at its end. Activities may have
        answered meanwhile; then there is one more.
        """
        before, sent = None, await self._meet(group, what)
        while sent != before:
            before, sent = sent, await self._meet(group, what)


class _Probe:
    """Receives one pickled value; true once it is here."""

    def __init__(self, comm: MPI.Comm, source: int):
        self._comm, self._source, self.value = comm, source, None

    def __call__(self) -> bool:
        message = self._comm.improbe(self._source)
        if message is not None:
            self.value = message.recv()
        return message is not None


def _communicators() -> tuple[MPI.Comm, MPI.Comm, int]:
    """Two communicators of all ranks, and the number of ranks on this host."""
    world = MPI.COMM_WORLD
    world.Set_errhandler(MPI.ERRORS_RETURN)  # inherited: a dead peer is an exception, not the end
    try:
        host = world.Split_type(MPI.COMM_TYPE_SHARED)
        ranks_here = host.size
        host.Free()
        return world.Dup(), world.Dup(), ranks_here
    except MPI.Exception as error:
        if not failed(error):
            raise
        dead = world.Get_failed()
        lost = set(MPI.Group.Translate_ranks(dead, range(dead.size), world.group))
        raise _announced(
            PeerLost(min(lost)), world.rank, world.size, lost, "at the start"
        ) from None


def _announced(loss: PeerLost, rank: int, size: int, lost: Collection[int], when: str) -> PeerLost:
    """`loss` with the line that `guard` prints, on the one rank of the living that is to do so."""
    if rank == min(set(range(size)).difference(lost)):
        loss.add_note(f"rank {loss.rank} was lost {when}; the run ends")
    return loss


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _keep_freed_arrays() -> None:
    """Have glibc keep the memory of freed arrays of up to 32 MB.

    By default it returns each to the kernel, and the page faults of the next one cost ten times
    as much as the arithmetic on it.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        mmap_threshold, trim_threshold = -3, -1
        libc.mallopt(mmap_threshold, 32 << 20)
        libc.mallopt(trim_threshold, 512 << 20)
