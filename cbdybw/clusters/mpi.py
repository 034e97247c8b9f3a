"""The real cluster: one MPI rank is one worker, the clock is the wall's.

Importing this module initialises MPI; nothing else in the package does.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import os
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import mpi4py
import numpy as np

from cbdybw.clusters.collectives import ROOT, Collectives
from cbdybw.clusters.compute_thread import Job
from cbdybw.clusters.faults import Schedule
from cbdybw.clusters.guard import guard, say
from cbdybw.clusters.loop import Loop, Mark
from cbdybw.clusters.overdue import expect_end_of_mpirun
from cbdybw.clusters.strikes import Strikes
from cbdybw.clusters.trace import Event, Span, Trace
from cbdybw.clusters.wire import CuttableWire, Wire, failed
from cbdybw.clusters.worker import INTERRUPTED, Match, Message, Worker, keyed_rng
from cbdybw.clusters.world import MPI, do_not_finalize
from cbdybw.errors import Interrupted, PeerLost, Unwritable
from cbdybw.problem import Weightless

if TYPE_CHECKING:
    from cbdybw.clusters.virtual import Recorder, Saver
    from cbdybw.learning.horovod import Horovod


_SAVED, _WARNED, _IN_TROUBLE, _ERRNO = 1, 2, 4, 3
"""What a rank says at a cut: bits, and by how many an error number is shifted above them."""


class Neighbours(Protocol):
    """Rank → the ranks it exchanges vectors with; a networkx graph is one."""

    def __getitem__(self, rank: int) -> Iterable[int]: ...


class MpiWorker(Worker):
    """This rank, as an algorithm sees it."""

    def __init__(self, cluster: MpiCluster):
        self._cluster, self._loop, self._trace = cluster, cluster._loop, cluster.trace
        self._wire, self._together = cluster._wire, cluster._together
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
        self._reach(index)
        if work == 0:
            return fn(*args)
        self.iteration = index
        start = self._loop.clock()
        job = Job(fn, args, index, start, work * self._cluster._delay(self.rank, index), until)
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
        self._loop.forgiven = frozenset(ranks) - {ROOT}
        for rank in sorted(self._loop.forgiven & self._wire.lost):
            self._cluster._goes_on_without(rank)

    async def barrier(self, group: Sequence[int]) -> None:
        start = self._loop.clock()
        await self._together.meet(group, "barrier")
        self._collected(Span.COLLECTIVE, start)

    async def allreduce(self, vector: np.ndarray, group: Sequence[int]) -> np.ndarray:
        start = self._loop.clock()
        if isinstance(vector, Weightless):
            await self._together.meet(group, "allreduce")
            total = vector
        else:
            total = await self._together.sum(vector, group)
        self._collected(Span.COLLECTIVE, start)
        return total

    async def checkpoint(self, snapshot: Callable[[], Any]) -> None:
        start = self._loop.clock()
        await self._together.quiet("checkpoint")
        if self._cluster._saver is not None:
            await self._cluster._save(snapshot)
        self._collected(Span.CHECKPOINT, start)

    def _collected(self, span: Span, start: float) -> None:
        now = self._loop.time
        self._trace.span(self.rank, span, self.iteration, start, now)
        self._trace.event(self.rank, now, Event.COLLECTED, 0, self.rank)

    def rng(self, purpose: str, index: int) -> np.random.Generator:
        return keyed_rng(self._cluster.seed, purpose, self.rank, index)

    def record(self, event: str, **fields: Any) -> None:
        self._reach(fields.get("k"))
        now = self._loop.time
        if event == "average":
            self._trace.span(self.rank, Span.AVERAGE, fields["k"], now, self._loop.clock())
        self._cluster._recorder.record(self.rank, now, event, fields)

    def _reach(self, k: int | None) -> None:
        if self._loop.strikes is not None and k is not None:
            self._loop.strikes.reach(k)


class MpiCluster:
    """This process's rank among all that mpirun has started; the last `servers` ranks serve.

    Every rank builds its own, with the same arguments.

    Args:
        delay: (rank, iteration) → seconds that one minibatch lasts at least.
        dim: parameters of a vector; 0 when vectors are `Weightless`.
        neighbours: with whom each worker exchanges vectors, beside the servers.
        stall_timeout: seconds without any event after which waiting workers raise Stalled.
        horovod: sums over all ranks in place of mpi4py, while a run lasts.
        faults: what befalls the ranks while a run lasts.
        corrupt: damages the newest file of a rank's running checkpoint, for faults that do.
        fault_notes: a folder for what each rank notes before a fault strikes; see `Strikes`.
        warned: whether the run is to stop at its next cut; that it is so on one rank is enough.

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
        faults: Schedule | None = None,
        corrupt: Callable[[int], None] | None = None,
        fault_notes: str | Path | None = None,
        warned: Callable[[], bool] = lambda: False,
    ):
        _keep_freed_arrays()
        comm, pickles, ranks_here = _communicators()
        self.size, self.rank = comm.size, comm.rank
        self.process, self.ranks, self.is_root = self.rank, (self.rank,), self.rank == ROOT
        self.workers = range(self.size - servers)
        self.servers = range(self.size - servers, self.size)
        self.seed, self.trace = seed, trace
        self._delay, self._recorder, self._saver = delay, recorder, saver
        self._stall_timeout, self._horovod, self._warned = stall_timeout, horovod, warned
        self.allreduce_by = horovod.name if horovod else f"mpi4py {mpi4py.__version__}"
        self._everyone = range(self.size)
        self._cuts_count, self._is_over = True, False  # cuts count until somebody is lost
        self._missed: set[int] = set()  # the lost of whom it was said that the others go on
        self._wire = (CuttableWire if faults else Wire)(comm, dim, self._vector_peers(neighbours))
        spin = ranks_here <= len(os.sched_getaffinity(0))
        self._loop = Loop(self._wire, trace, spin, self._goes_on_without)
        self._together = Collectives(pickles, self._wire, self._loop, horovod)
        self._strikes = None
        if faults:
            watch = faults.of(self.rank)
            self._strikes = Strikes(self.rank, watch, self._loop, self._wire, corrupt, fault_notes)
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
        self._drive(self._together.meet(self._everyone, "common start"), self._stall_timeout)
        self._loop.set_clock(start)
        self._loop.open, self._loop.strikes = True, self._strikes
        result = self._drive(main(self._worker), self._stall_timeout)
        self._loop.open = False
        self._drive(self._finish())
        self._loop.strikes = None
        if self._horovod:
            self._horovod.stop()
        return {self.rank: result}

    @property
    def lost(self) -> list[int]:
        """Ranks that have died, ascending."""
        return sorted(self._wire.lost)

    @property
    def time(self) -> float:
        """Seconds on this rank's clock, of the event being processed."""
        return self._loop.time

    def gather(self, value: Any) -> list[Any] | None:
        """Every rank's value, in rank order, on the root; None elsewhere, and for ranks that were
        lost. Values are pickled."""
        return self._drive(self._together.gather(value))

    def _vector_peers(self, neighbours: Neighbours) -> Collection[int]:
        if self.rank in self.servers:
            return self._everyone
        return {*neighbours[self.rank], *self.servers}

    def _drive(self, coroutine: Coroutine, *patience: float) -> Any:
        try:
            return self._loop.drive(coroutine, *patience)
        except PeerLost as loss:
            _announced(loss, self.rank, self.size, self._wire.lost, self._when)
            raise

    async def _save(self, snapshot: Callable[[], Any]) -> None:
        """[choice] The cut counts if every rank has saved its part: none does without the lost.

        Raises Interrupted on all ranks when one has been warned, Unwritable when one cannot save.
        """
        word, state, trouble = 0, snapshot(), None
        if not self._wire.lost:
            try:
                self._saver.save(self.rank, state)
                word = _SAVED
            except Unwritable as error:
                trouble, word = error, _IN_TROUBLE | error.errno << _ERRNO
        word |= _WARNED * self._warned()
        marks = await self._together.meet(self._everyone, "checkpoint", word=word)
        _all_could_save(marks, trouble, self.rank)
        whole = sum(bool(mark.word & _SAVED) for mark in marks.values()) == self.size
        if self.is_root and whole:
            self._saver.commit(self)
        elif self.is_root and self._cuts_count:
            self._cuts_count = False
            say("no checkpoints from now on: a rank was lost")
        if whole and any(mark.word & _WARNED for mark in marks.values()):
            raise Interrupted(state.k)

    def _goes_on_without(self, lost: int) -> None:
        if self.is_root and not self._is_over and lost not in self._missed:
            self._missed.add(lost)
            say(f"rank {lost} was lost {self._when}; the others go on")

    @property
    def _when(self) -> str:
        return f"in iteration {self._worker.iteration}"

    async def _finish(self) -> None:
        await self._together.quiet("end of the run")
        await self._together.all_sent()
        self._loop.held.clear()
        self._loop.mailbox.clear()

    def _leave(self) -> None:
        """At the end of the process: MPI_Finalize must not begin while a rank is at work, because
        it would neither notice that rank's death nor leave it the processor."""
        self._is_over = True
        with guard():
            self._drive(self._together.part())
            self._wire.close()
            if self._wire.lost:
                do_not_finalize()
                if self.is_root:
                    expect_end_of_mpirun()


def _all_could_save(marks: dict[int, Mark], trouble: Unwritable | None, rank: int) -> None:
    """Raise Unwritable when somebody could not; the first of them prints it."""
    failed = [r for r, mark in sorted(marks.items()) if mark.word & _IN_TROUBLE]
    if not failed:
        return
    number = marks[failed[0]].word >> _ERRNO
    trouble = trouble or Unwritable(f"the checkpoint of rank {failed[0]}", number)
    trouble.told = rank != failed[0]
    raise trouble


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
