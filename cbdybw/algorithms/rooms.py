"""The rooms of a run with parameter servers: what its workers and its servers have in common.

The last ranks serve: each holds a consecutive shard of the parameters. A worker computes U at the
model it has, pushes every server its slice of U, and goes on when it has every server's new shard.
What differs between algorithms is when a server uses a push and when it answers: that is the
server's coroutine, over `Shard`.

The first server decides when everybody halts: at the end, or before iteration k for a consistent
cut. It says STOP(k) to all; a body means that the run goes on after a cut. Every server goes on
until it has completed iteration k-1 too, which it can: what the first server has used has been sent
to all. (Where pushes are used one by one, a further server may have some of iteration k by then.)
A worker that computes comes to a cut when it has finished and pushed; one whose answer is due, at
once. The servers leave what they have not used, and what has not been answered is pushed again
after the cut: a worker's State holds that U.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from functools import partial

import numpy as np

from cbdybw.algorithms.local import gradient
from cbdybw.algorithms.plan import STOP, Plan, State, shards
from cbdybw.clusters.worker import INTERRUPTED, Kind, Match, Message, Worker
from cbdybw.problem import Problem, Weightless

PUSH, MODEL, PEER_LOST = Kind.PUSH, Kind.MODEL, Kind.PEER_LOST


async def take_part(
    worker: Worker,
    problem: Problem,
    plan: Plan,
    state: State,
    serve: Callable[[Shard], Awaitable[None]],
) -> State:
    """This rank's part in a run from `state.k` on, a server's or a worker's; its last state."""
    if worker.rank in worker.servers:
        shard = Shard(worker, plan, state)
        return await between_cuts(shard, partial(serve, shard))
    replica = Replica(worker, plan, state)
    return await between_cuts(replica, partial(learn, replica, problem))


async def learn(replica: Replica, problem: Problem) -> None:
    """A worker, until it halts: compute at the model, push, wait for the new one."""
    worker, plan = replica.worker, replica.plan
    while True:
        if replica.pending is None:
            u = await gradient(
                worker, problem, plan, replica.w, replica.index, until=new_model_or_end
            )
            replica.pending = None if u is INTERRUPTED else u
        replica.push()
        await replica.renew()


async def between_cuts(place: Shard | Replica, act: Callable[[], Awaitable[None]]) -> State:
    """`act()` until STOP ends the run, begun anew after each consistent cut."""
    worker, plan = place.worker, place.plan
    while True:
        if plan.cut_before(place.k):
            worker.record("resume", k=place.k)
        try:
            await act()
        except Halt as halt:
            place.k = halt.k
            if halt.is_end:
                await place.come_to_end()
                return place.state()
        await place.come_to_cut()
        await worker.checkpoint(place.state)


class Halt(Exception):
    """Unwinds a coroutine that has come to the iteration before which everybody halts."""

    def __init__(self, stop: Message):
        self.k, self.is_end = stop.iteration, not stop.body


class Replica:
    """A worker's copy of the model.

    Attributes:
        k: the iteration of the run that the last cut was made before.
        w: the model that the worker computes at, shape (dim,).
        index: of the computation at `w`: what the servers said with the model.
        pending: the finished U that no server has answered yet.
    """

    def __init__(self, worker: Worker, plan: Plan, state: State):
        self.worker, self.plan = worker, plan
        self.k, self.w, self.pending = state.k, state.w, state.gradient
        self.index = int(state.memory.get("index", state.k))
        self._answers: dict[int, Message] = {}

    def push(self) -> None:
        """Send each server its slice of U, unless a new model came before U was finished."""
        if self.pending is not None:
            self._push()

    def _push(self, *body: int) -> None:
        servers, rank = self.worker.servers, self.worker.rank
        for server, part in zip(servers, shards(self.pending, len(servers)), strict=True):
            self.worker.send(server, Message(PUSH, self.index, rank, body, part))

    async def renew(self) -> None:
        """Wait for every server's new shard."""
        while len(self._answers) < len(self.worker.servers):
            m = await self.worker.receive(answer_or_stop(lacking=self._lacking()))
            if m.kind is STOP:
                raise Halt(m)
            self._answers[m.source] = m
        self._adopt()

    def _lacking(self) -> set[int]:
        return set(self.worker.servers) - self._answers.keys()

    def _adopt(self) -> None:
        answers = [self._answers[server] for server in self.worker.servers]
        self.w, self.index = joined([m.vector for m in answers]), answers[0].iteration
        self.pending, self._answers = None, {}

    async def come_to_cut(self) -> None:
        """Push nothing more. When the servers have heard that, their last answers are here; if
        some have not answered yet, all are asked again after the cut."""
        servers = self.worker.servers
        for server in servers:
            self.worker.send(server, Message(STOP, self.k, self.worker.rank))
        for server in servers:
            await self.worker.receive(stop_of(server))
        self._answers |= {m.source: m for m in self.worker.take(is_model)}
        if self._lacking():
            self._answers = {}
        else:
            self._adopt()

    async def come_to_end(self) -> None:
        """There is nothing left to say."""

    def state(self) -> State:
        """What lasts."""
        return State(self.k, self.w, self.pending, memory={"index": np.array(self.index)})


class Shard:
    """A server's part of the model, and its place in the run.

    Attributes:
        k: the open iteration; those before are complete here.
        w: the parameters, float32 of one dimension.
        living: workers that have not been lost.
        memory: arrays that a server's coroutine has to remember across cuts, by name.
    """

    def __init__(self, worker: Worker, plan: Plan, state: State):
        self.worker, self.plan, self.workers = worker, plan, worker.workers
        self.k, self.w = state.k, state.w
        self.memory = {name: array.copy() for name, array in state.memory.items()}
        self.living = set(self.workers)
        self._first = worker.servers[0]
        self.is_first = worker.rank == self._first
        self._stop = self._end = Message(STOP, plan.iterations, worker.rank)
        self._ended = False

    async def receive(self, kind: Kind, deadline: float = math.inf) -> Message | None:
        """The next message of this kind, or None at the deadline. Halts when the time for that has
        come. Workers that are lost are forgotten."""
        worker = self.worker
        while self.is_open:
            timeout = max(0.0, deadline - worker.now()) if deadline < math.inf else None
            m = await worker.receive(this_or_stop(kind, self._first), timeout)
            if m is None or m.kind is kind:
                return m
            if m.kind is PEER_LOST:
                self.living.discard(m.source)
            else:
                self._stop = m
        raise Halt(self._stop)

    @property
    def is_open(self) -> bool:
        """Whether the open iteration is to be completed before everybody halts."""
        return self.k < self._stop.iteration and not self._ended

    def commit(self, gradients: int) -> None:
        """So many gradients have gone into `w`, in the open iteration; none: it is set anew."""
        k = min(self.k, self.plan.iterations - 1)  # beyond the last one at the end of a run
        told = gradients if self.is_first else 0
        self.worker.record("commit", k=k, w=self.w, gradients=told)

    def end(self) -> None:
        """The run is over before the open iteration is."""
        self._ended = True
        self._stop = Message(STOP, self.k, self.worker.rank)
        self.worker.broadcast(self._stop)

    def complete(self, gradients: int, finishers: int | None = None) -> None:
        """Iteration k is over, with that many gradients in `w`, of so many workers (None: one of
        each). The first server sees whether anything comes before the next one."""
        finishers = gradients if finishers is None else finishers
        told = (gradients, finishers) if self.is_first else (0, 0)
        self.worker.record("update", k=self.k, w=self.w, gradients=told[0], finishers=told[1])
        self.k += 1
        if self.is_first:
            over = self.k == self.plan.iterations or self.worker.now() >= self.plan.max_time
            if over or self.plan.cut_before(self.k):
                body = () if over else (1,)
                self._stop = Message(STOP, self.k, self.worker.rank, body)
                self.worker.broadcast(self._stop)

    def answer(self, workers: Iterable[int], index: int, body: tuple[int, ...] = ()) -> None:
        """Send these workers the shard, with the index of their next computation."""
        if self._ended or (self.k >= self._stop.iteration and not self._stop.body):
            return  # the run is over
        model = Message(MODEL, index, self.worker.rank, body, self.w)
        for j in workers:
            self.worker.send(j, model)

    async def come_to_cut(self) -> None:
        """Leave what has not been used, until every worker has come."""
        async for push in self.last_pushes():
            self.leave(push)
        for j in self.workers:
            self.worker.send(j, Message(STOP, self.k, self.worker.rank))
        self._stop = self._end

    def leave(self, push: Message) -> None:
        """A push that a cut has come before: it will be pushed again."""

    async def last_pushes(self) -> AsyncIterator[Message]:
        """What comes in until every worker has said that it has halted."""
        coming = set(self.living)
        while coming:
            m = await self.worker.receive(push_or_stop)
            if m.kind is PUSH:
                yield m
            else:
                coming.discard(m.source)
                if m.kind is PEER_LOST:
                    self.living.discard(m.source)

    async def come_to_end(self) -> None:
        """Pushes that nobody has used by now have come too late."""

    def state(self) -> State:
        """What lasts."""
        memory = {name: array.copy() for name, array in self.memory.items()}
        return State(self.k, self.w, memory=memory)


def joined(parts: Sequence[np.ndarray]) -> np.ndarray:
    """The vector whose consecutive parts these are."""
    if len(parts) == 1:
        return parts[0]
    if isinstance(parts[0], Weightless):
        return Weightless(sum(part.nbytes for part in parts))
    return np.concatenate(parts)


def is_model(m: Message) -> bool:
    return m.kind is MODEL


def push_or_stop(m: Message) -> bool:
    return m.kind is PUSH or m.kind is STOP or m.kind is PEER_LOST


def new_model_or_end(m: Message) -> bool:
    """Matches what makes a computation vain: a newer model, the end of the run."""
    return m.kind is MODEL or (m.kind is STOP and not m.body)


def answer_or_stop(lacking: set[int]) -> Match:
    """Matches a shard of one of these servers, and the first server's STOP."""

    def matches(m: Message) -> bool:
        return m.kind is STOP or (m.kind is MODEL and m.source in lacking)

    return matches


def stop_of(source: int) -> Match:
    """Matches what `source` says when it has come to a cut."""

    def matches(m: Message) -> bool:
        return m.kind is STOP and m.source == source

    return matches


def this_or_stop(kind: Kind, first: int) -> Match:
    """Matches messages of this kind, the first server's STOP, and the loss of a worker."""

    def matches(m: Message) -> bool:
        return m.kind is kind or (m.kind is STOP and m.source == first) or m.kind is PEER_LOST

    return matches
