"""SCAR: iterative-convergent training that survives the loss of a part of its parameters.

Source: Qiao, Aragam, Zhang, Xing, arXiv 1810.07354, sections 4 and 5.1. The last ranks are
parameter servers, which hold the blocks of x, dealt out at random, and a running checkpoint of
them. Iteration k is synchronous: every worker has x(k), computes its part, and pushes each server
its blocks of that; a server adds the parts up and answers with its blocks of x(k+1).

When ranks die, the others meet (`repair`). All servers come to the same iteration T, the blocks of
lost servers are dealt out among the living ones, who read them from the running checkpoint, and
iteration T begins again at what is then the model: y(T) = x(T) + δ. What lost workers did is shared
out anew among the living.

[choice] T is the first iteration that no living server has completed. But when a server is lost, it
may have completed and saved one that no other has. It can only have done so when all workers had
pushed their parts: these are pushed again, so that nothing is restored that is newer than x(T).
What a worker lost at the same time had pushed then is in no block that has not had it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from cbdybw.algorithms.plan import Plan, State, message
from cbdybw.algorithms.repair import Living, Told
from cbdybw.clusters.worker import Kind, Message, Worker, keyed_rng
from cbdybw.errors import PeerLost
from cbdybw.problem import Iterated
from cbdybw.scar import recovery
from cbdybw.scar.blocks import partition
from cbdybw.scar.checkpoint import RunningCheckpoint

if TYPE_CHECKING:
    from cbdybw.scar.tuning import Tuner

PUSH, MODEL = Kind.PUSH, Kind.MODEL


async def scar(worker: Worker, problem: Iterated, plan: Plan, state: State) -> State:
    """This rank's part, a server's or a worker's, from `state.k` on; its last state. `state.w` is
    the whole model at first, on servers too; at the end it is, on servers, their blocks of it."""
    room = (Server if worker.rank in worker.servers else Contributor)(worker, problem, plan, state)
    news = False
    while True:
        try:
            if news:
                told = await room.living.meet(room.k, room.without)
                if not told:
                    break
                if not room.servers:
                    raise PeerLost(worker.servers[0])
                await room.recover(told)
            await room.iterate()
            if await room.living.part():
                break
        except PeerLost as loss:
            room.outlive(loss)
        news, room.noticed = True, min(room.noticed, worker.now())
    return room.state()


class Room:
    """What servers and workers have in common.

    Attributes:
        k: the open iteration; of a worker the one whose model it lacks.
        x: of a worker x(k), of a server its blocks of it, packed.
        owner: the server that holds each block, shape (blocks,).
        living: what is known of deaths.
        without: how many servers were lost when all were last repaired.
        noticed: when a death became known here that has not been repaired yet; else infinite.
    """

    def __init__(self, worker: Worker, problem: Iterated, plan: Plan, state: State):
        self.worker, self.problem, self.plan, self.survival = worker, problem, plan, plan.survival
        self.k, self.x, self.living, self.noticed = state.k, state.w, Living(worker), np.inf
        dealt = partition(len(problem.blocks), len(worker.servers), self._drawn("partition"))
        self.owner = np.array(worker.servers)[dealt]
        self._heirs = recovery.heirs(self.owner, worker.servers, self._drawn("heirs"))
        self.without = 0

    @property
    def workers(self) -> list[int]:
        """Those who live."""
        return self.living.of(self.worker.workers)

    @property
    def servers(self) -> list[int]:
        """Those who live."""
        return self.living.of(self.worker.servers)

    def state(self) -> State:
        """What is left at the end."""
        return State(self.k, self.x)

    def held_by(self, server: int) -> np.ndarray:
        """The blocks that a server holds, ascending."""
        return np.flatnonzero(self.owner == server)

    async def hear(self, kind: Kind, k: int, ranks: list[int]) -> dict[int, np.ndarray]:
        """One vector of iteration k from each of `ranks`, in their order."""
        said = {}
        while len(said) < len(ranks):
            m = await self.worker.receive(message(kind, k))
            said[m.source] = m.vector
        return {rank: said[rank] for rank in ranks}

    def outlive(self, loss: PeerLost) -> None:
        """Take in a death; raises `loss` where nothing can be done about it."""
        if self.survival.recovery == "none":
            raise loss
        self.living.outlive(loss)
        if not self.servers:
            raise loss

    def meant(self, told: Told) -> int:
        """T, the iteration that all go on with."""
        lost = len(self.worker.servers) - len(self.servers)
        if min(without for _, without in told.values()) < lost:
            return min(told[j][0] for j in self.workers)
        return max(told[server][0] for server in self.servers)

    def take_over(self) -> None:
        """Deal out the blocks of lost servers, alike on all ranks."""
        self.owner = recovery.holders(self._heirs, self.living.lost)
        self.without = len(self.worker.servers) - len(self.servers)

    def _drawn(self, purpose: str) -> np.random.Generator:
        return keyed_rng(self.survival.seed, purpose, 0, 0)


class Contributor(Room):
    """A worker. `part` is the last that it has pushed, in iteration `pushed`."""

    pushed, part = -1, np.empty(0, np.float32)

    async def iterate(self) -> None:
        """Have the model, compute, push, until iteration K."""
        worker, blocks = self.worker, self.problem.blocks
        while True:
            shards = await self.hear(MODEL, self.k, self.servers)
            self.x = np.empty(blocks.dim, np.float32)
            for server, shard in shards.items():
                blocks.put(self.x, self.held_by(server), shard)
            self._tell()
            if self.k == self.plan.iterations:
                return
            j, n = self.workers.index(worker.rank), len(self.workers)
            self.part = await worker.compute(self.problem.part, self.x, j, n, self.k, index=self.k)
            self.pushed = self.k
            for server in self.servers:
                self._push(server, blocks.take(self.part, self.held_by(server)))
            self.k += 1

    def _push(self, server: int, part: np.ndarray) -> None:
        self.worker.send(server, Message(PUSH, self.pushed, self.worker.rank, vector=part))

    def _tell(self) -> None:
        """The first worker, which never dies, tells of the model and of what was repaired."""
        worker = self.worker
        if worker.rank == 0 and 0 < self.k > self.told:
            n = len(self.workers)
            worker.record("update", k=self.k - 1, w=self.x, gradients=n, finishers=n)
            self.told = self.k
        if worker.rank == 0 and self.noticed < np.inf:
            lost = self.living.lost
            worker.record("recovered", k=self.k, lost=lost, noticed=self.noticed)
        self.noticed = np.inf

    told = 0
    """The last iteration whose model was told of."""

    async def recover(self, told: Told) -> None:
        """Push once more, to servers that lack it, what others may have used: all of it, for who
        has missed a repair holds other blocks than those that are its own now."""
        self.k = self.meant(told)
        for server in self.servers:
            if told[server][0] < self.k:
                self._push(server, self.part)
        self.take_over()


class Server(Room):
    """A parameter server, and its running checkpoint."""

    def __init__(self, worker: Worker, problem: Iterated, plan: Plan, state: State):
        super().__init__(worker, problem, plan, state)
        self.members = self.held_by(worker.rank)
        self.x = problem.blocks.take(state.w, self.members)
        self.tuner = self._tuner()
        self.choices: list[tuple[float, ...]] = []  # of the tuner: (k, r, C)
        self.checkpoint = RunningCheckpoint(
            problem.blocks,
            self.members,
            self.x,
            fraction=self.survival.fraction,
            period=self.survival.period,
            policy=self.survival.policy,
            distance=problem.distance,
            rng=partial(worker.rng, "checkpoint"),
            store=self.survival.store(worker.rank),
            k=self.k,
        )
        self.checkpoint.close()  # x(0) is there whenever this server dies

    async def iterate(self) -> None:
        """Answer with the model, add up the parts, save what is due, until iteration K."""
        while True:
            self.worker.record("begin", k=self.k)
            model = Message(MODEL, self.k, self.worker.rank, vector=self.x)
            for j in self.workers:
                self.worker.send(j, model)
            if self.k == self.plan.iterations:
                self.checkpoint.close()
                return
            self._complete(await self.hear(PUSH, self.k, self.workers))

    def _complete(self, parts: dict[int, np.ndarray]) -> None:
        """x(k+1) = x(k) + Σ_j part_j, in the order of ranks, and the checkpoint that is due."""
        before, self.x = self.x, self.x.copy()  # the workers may still be reading the former
        for part in parts.values():
            self.x += part
        self.k += 1
        if self.tuner is not None:
            self._tune(self.tuner, before)
        if self.checkpoint.due(self.k):
            self.checkpoint.save(self.x, self.k)

    def _tuner(self) -> Tuner | None:
        expected = self.survival.expected
        if expected is None:
            return None
        from cbdybw.scar.tuning import Tuner  # its statistics take a second to import

        return Tuner(expected, self.x.nbytes, self.worker.now())

    def _tune(self, tuner: Tuner, before: np.ndarray) -> None:
        """Save as often as is cheapest from now on, where that has been chosen anew."""
        held = self.problem.blocks.subset(self.members)
        changes = self.problem.distance(self.x, before, held)
        choice = tuner.tell(self.k, self.worker.now(), changes)
        if choice is not None:
            self.checkpoint.pace(choice.fraction, choice.period)
            self.choices.append((self.k, choice.fraction, choice.period))

    def state(self) -> State:
        choices = np.array(self.choices, float).reshape(-1, 3)
        return State(self.k, self.x, memory={"choices": choices})

    async def recover(self, told: Told) -> None:
        """Come to the iteration of the others, then restore the lost blocks."""
        blocks = self.problem.blocks
        if self.k < self.meant(told):
            parts = await self.hear(PUSH, self.k, self.workers)
            self._complete({j: blocks.take(part, self.members) for j, part in parts.items()})
        self.take_over()
        before, self.members = self.members, self.held_by(self.worker.rank)
        gained = np.setdiff1d(self.members, before)
        if len(gained):
            stores = [self.survival.store(server) for server in self.worker.servers]
            packed, saved_at = recovery.newest(stores, gained)
            model = np.empty(blocks.dim, np.float32)
            blocks.put(model, before, self.x)
            blocks.put(model, gained, packed)
            self.x = blocks.take(model, self.members)
            self.checkpoint.gain(gained, packed, saved_at, self.k)
        if self.tuner is not None:
            self.tuner.begin_anew()
        if self.survival.recovery == "full":
            self.x = recovery.full(self.checkpoint.cached)
