"""What the ranks of a real cluster do together: meet, sum, gather.

All of it is made of messages from one rank to another: MPI's own barriers and collectives print to
stderr when a rank dies, and some ranks would not notice. Where a forgiven rank has died the others
meet and gather without it; they cannot sum.
"""

from __future__ import annotations

import array
import zlib
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from cbdybw.clusters.loop import Loop, Mark
from cbdybw.clusters.wire import MARK, Wire, complete, failed
from cbdybw.clusters.worker import Message
from cbdybw.clusters.world import MPI

if TYPE_CHECKING:
    from cbdybw.learning.horovod import Horovod

ROOT = 0  # sums up the run; its death is never forgiven
_LINGER = 1.0  # seconds that a rank stays after the loss of another


class Collectives:
    """This rank's part in them.

    Args:
        comm: of all ranks, for sums and pickles; they are never under way together.
        horovod: sums over all ranks in place of mpi4py.
    """

    def __init__(self, comm: MPI.Comm, wire: Wire, loop: Loop, horovod: Horovod | None):
        self._comm, self._wire, self._loop, self._horovod = comm, wire, loop, horovod
        self._rank, self._everyone = comm.rank, range(comm.size)
        self._groups = {tuple(self._everyone): comm}
        self._meetings: dict[tuple[int, ...], int] = {}  # of each group so far

    async def meet(self, group: Sequence[int], what: str, word: int = 0) -> dict[int, Mark]:
        """Return once all of `group` who live have come here; what each of them has said.

        Everybody sends a mark to everybody, with the number of messages sent so far and `word`.
        Links keep their order, so what a rank sent to this one before it came here has arrived as
        well. A rank that dies now may be among those who have come for some, and not for others.
        """
        members = tuple(group)
        number = self._meetings[members] = self._meetings.get(members, -1) + 1
        name = zlib.crc32(array.array("q", members).tobytes())
        mark = Message(MARK, number, self._rank, (name, self._wire.sent, word))
        if len(members) == len(self._everyone):
            self._wire.send(self._rank, mark)
            self._wire.broadcast(mark)
        else:
            for rank in members:
                self._wire.send(rank, mark)
        marks = self._loop.marks.setdefault((name, number), {})
        awaited, lost = set(members), self._wire.lost
        vital = set(self.vital(members))

        def all_here() -> bool:
            vital.difference_update(marks)  # who has come may leave, as at the end of the process
            return not awaited - marks.keys() - lost

        await self._loop.until(all_here, f"the others: {what}", vital)
        del self._loop.marks[name, number]
        return marks

    async def quiet(self, what: str) -> None:
        """Return once nothing that was sent is under way, answers included.

        What was sent before a meeting has arrived at its end. Activities may have answered
        meanwhile; when nobody has sent anything between two meetings, nobody has. The root alone
        decides that, and tells the others at the next one: all must meet equally often, whoever
        has seen a dying rank's mark.
        """
        before, is_quiet = None, False
        while True:
            marks = await self.meet(self._everyone, what, word=is_quiet)
            if marks[ROOT].word:
                return
            sent = {rank: mark.sent for rank, mark in marks.items()}
            before, is_quiet = sent, sent == before

    async def all_sent(self) -> None:
        """Return once everything that this rank has sent has left; what was for the dead has."""
        await self._loop.until(self._wire.all_sent, "its last messages to leave", ())

    async def part(self) -> None:
        """Return once this rank can leave for ever."""
        await self.meet(self._everyone, "end of the process")
        await self.all_sent()
        if self._wire.lost:  # MPI_Finalize, which would see to it that all is heard, is left out
            end = self._loop.clock() + _LINGER
            await self._loop.until(lambda: self._loop.clock() > end, "the others to notice", ())

    def vital(self, group: Collection[int]) -> list[int]:
        """Those of `group` whose death is the end."""
        return [rank for rank in group if rank not in self._loop.forgiven]

    async def gather(self, value: Any) -> list[Any] | None:
        """Every rank's value, in rank order, on the root; None elsewhere, and for the lost."""
        if self._rank != ROOT:
            sending = self._comm.isend(value, ROOT)
            await self._loop.until(lambda: complete(sending), "the root to gather", (ROOT,))
            return None
        values = [value]
        for source in self._everyone[1:]:
            probe = _Probe(self._comm, source, self._wire.lost)
            what = f"rank {source} to hand in its part"
            await self._loop.until(probe, what, self.vital((source,)))
            values.append(probe.value)
        return values

    async def sum(self, vector: np.ndarray, group: Sequence[int]) -> np.ndarray:
        """The elementwise sum over `group`."""
        if self._horovod and len(group) == len(self._everyone):
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

    def _communicator(self, group: Sequence[int]) -> MPI.Comm:
        key = tuple(group)
        if key not in self._groups:
            # From the world: it speaks to the others on the communicator it is called on, and on
            # the wire's own the posted receives would take its words for messages.
            comm = MPI.COMM_WORLD.Create_group(self._comm.group.Incl(key))
            comm.Set_errhandler(MPI.ERRORS_RETURN)
            self._groups[key] = comm
        return self._groups[key]

    async def _swap(
        self,
        comm: MPI.Comm,
        outgoing: Sequence[np.ndarray],
        incoming: Sequence[np.ndarray],
        group: Sequence[int],
    ) -> None:
        """Send `outgoing[r]` to each rank r of `comm` and receive `incoming[r]` from it."""
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


class _Probe:
    """Receives one pickled value; true once it is here, or its source among the lost."""

    def __init__(self, comm: MPI.Comm, source: int, lost: Collection[int]):
        self._comm, self._source, self._lost, self.value = comm, source, lost, None

    def __call__(self) -> bool:
        try:
            message = self._comm.improbe(self._source)
            if message is not None:
                self.value = message.recv()
                return True
        except MPI.Exception as error:
            if not failed(error):
                raise
        return self._source in self._lost
