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
_PICKLES = 0  # their tag
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
        self._meetings: dict[tuple, int] = {}  # of each group so far
        self._broken: list[MPI.Request] = []  # of sums: they keep their arrays

    async def meet(
        self, group: Sequence[int], what: str, word: int = 0, last: bool = False
    ) -> dict[int, Mark]:
        """Return once all of `group` who live have come here; what each of them has said.

        Everybody sends a mark to everybody, with the number of messages sent so far and `word`.
        Links keep their order, so what a rank sent to this one before it came here has arrived as
        well. A rank that dies now may be among those who have come for some, and not for others:
        who has forgiven it meets anew, however many meetings of before have come about for whom.

        PeerLost when one dies that is not forgiven, even if it has come here: others may not have
        heard so, and never come. Whoever has come to the `last` meeting of all may leave.
        """
        members = tuple(group)
        without = tuple(sorted(self._loop.forgiven.intersection(members)))
        number = self._meetings[members, without] = self._meetings.get((members, without), -1) + 1
        name = _name(members, without)
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
            if last:
                vital.difference_update(marks)
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
        await self.meet(self._everyone, "end of the process", last=True)
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
            sending = self._comm.isend(value, ROOT, _PICKLES)
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
        size, me = len(group), group.index(self._rank)
        vector = np.ascontiguousarray(vector, np.float32)
        total = np.empty_like(vector)
        mine, sums = np.array_split(vector, size), np.array_split(total, size)
        shares = np.empty((size, len(sums[me])), np.float32)
        await self._swap(mine, shares, group)
        share = shares[0]
        for other in shares[1:]:
            share += other
        await self._swap([share] * size, sums, group)
        return total

    async def _swap(
        self,
        outgoing: Sequence[np.ndarray],
        incoming: Sequence[np.ndarray],
        group: Sequence[int],
    ) -> None:
        """Send `outgoing[n]` to the nth of `group` and receive `incoming[n]` from it.

        A tag for each group: parts of a sum that a death has broken are in nobody's way.
        """
        if self._wire.is_cut:
            await self._loop.until(lambda: True, "its links", ())
        tag = _name(group) % 2**15 | 1
        under_way = []
        try:
            for rank, part in zip(group, incoming, strict=True):
                under_way.append(self._comm.Irecv(part, rank, tag))
            for rank, part in zip(group, outgoing, strict=True):
                under_way.append(self._comm.Isend(part, rank, tag))
        except MPI.Exception as error:
            if not failed(error):
                raise
            under_way.append(MPI.REQUEST_NULL)  # never done: `until` raises the loss

        def all_done() -> bool:
            while under_way and complete(under_way[-1]):
                under_way.pop()
            return not under_way

        try:
            await self._loop.until(all_done, "the others: allreduce", group)
        finally:
            self._broken += under_way


def _name(members: Sequence[int], without: Sequence[int] = ()) -> int:
    """Of a group of ranks, some of whom are dead and forgiven."""
    return zlib.crc32(array.array("q", [*members, -1, *without]).tobytes())


class _Probe:
    """Receives one pickled value; true once it is here, or its source among the lost."""

    def __init__(self, comm: MPI.Comm, source: int, lost: Collection[int]):
        self._comm, self._source, self._lost, self.value = comm, source, lost, None

    def __call__(self) -> bool:
        try:
            message = self._comm.improbe(self._source, _PICKLES)
            if message is not None:
                self.value = message.recv()
                return True
        except MPI.Exception as error:
            if not failed(error):
                raise
        return self._source in self._lost
