"""How the living meet after a loss: who is there, and where do they go on?

No paper says how. Every rank hears of every death from its cluster, though not at the same moment,
and what it has under way then is lost. Each tells the others REPAIR, with all the deaths it knows
of; one that learns of more in this way says it again. They have met when each has heard the very
same deaths from all who live. Links keep their order, so what was sent before is here by then, and
can be told from what is sent afterwards by its iteration (`surviving`) or its era (`scar`).

Whoever has nothing left to do says END and stays until everybody has said so: it may be needed for
a REPAIR. A rank that has left knows that nobody will need it.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from functools import partial, wraps
from typing import Any

import numpy as np

from cbdybw.algorithms.plan import Plan, State, message
from cbdybw.clusters.worker import Kind, Message, Worker
from cbdybw.errors import FallenApart, PeerLost
from cbdybw.problem import Problem
from cbdybw.scar.blocks import euclidean
from cbdybw.scar.checkpoint import RunningCheckpoint
from cbdybw.scar.recovery import neighbour_average

REPAIR, END, PEER_LOST, MODEL = Kind.REPAIR, Kind.END, Kind.PEER_LOST, Kind.MODEL

Told = dict[int, tuple[int, ...]]
"""Rank → what it said at a meeting."""


class Living:
    """What one rank knows of the deaths so far.

    Args:
        replaced: whether new processes take the places of those that die.

    Attributes:
        deaths: of every rank, how often it has died.
        met: how many deaths the last meeting knew of; 0 before the first.
    """

    def __init__(self, worker: Worker, replaced: bool = False):
        self._worker, self._replaced = worker, replaced
        self._counted = [0] * worker.size  # deaths that this rank has heard of itself
        self.deaths = [0] * worker.size
        self.deaths[worker.rank] = worker.restarts
        self.met = 0

    @property
    def lost(self) -> list[int]:
        """Ranks that are no more, ascending."""
        return [] if self._replaced else [r for r, n in enumerate(self.deaths) if n]

    @property
    def ranks(self) -> list[int]:
        """Ranks that live, ascending."""
        lost = set(self.lost)
        return [rank for rank in range(self._worker.size) if rank not in lost]

    def of(self, ranks: Sequence[int]) -> list[int]:
        """Those of `ranks` who live."""
        lost = set(self.lost)
        return [rank for rank in ranks if rank not in lost]

    async def meet(self, k: int, *said: int) -> Told:
        """Meet all who live; what each has said, its iteration `k` first."""
        worker, told = self._worker, {}
        self._count()
        news = True
        while news or set(told) != set(self.ranks):
            if news:
                told = {worker.rank: (k, *said)}
                repair = Message(REPAIR, k, worker.rank, (*self.deaths, *said))
                for rank in self.ranks:
                    if rank != worker.rank:
                        worker.send(rank, repair)
                news = False
            try:
                m = await worker.receive(is_repair)
            except PeerLost:
                news = self._count()
                continue
            theirs = list(m.body[: worker.size])
            news = self._hear(theirs)
            if theirs == self.deaths:
                told[m.source] = (m.iteration, *m.body[worker.size :])
        self.met = sum(self.deaths)
        return told

    async def part(self) -> bool:
        """There is nothing left to do here; whether that is so for all who live. If not, somebody
        has been lost, and the others are waiting in a meeting."""
        worker, ended = self._worker, {self._worker.rank}
        for rank in self.ranks:
            if rank != worker.rank:
                worker.send(rank, Message(END, 0, worker.rank, (self.met,)))
        while ended < set(self.ranks):
            try:
                m = await worker.receive(is_end_or_repair)
            except PeerLost:
                self._count()
                if self._replaced:
                    return False
                continue
            if m.kind is END and m.body[0] == self.met:
                ended.add(m.source)
            if m.kind is REPAIR and sum(m.body[: worker.size]) > self.met:
                worker.send(worker.rank, m)  # for the meeting
                return False
        return True

    def _count(self) -> bool:
        """Take in the deaths that the cluster has told of; whether some were news."""
        for m in self._worker.take(is_loss):
            self._counted[m.source] += 1
        return self._hear(self._counted)

    def _hear(self, deaths: list[int]) -> bool:
        before = list(self.deaths)
        self.deaths = [max(pair) for pair in zip(before, deaths, strict=True)]
        self._worker.forgive(self.lost)
        if self.deaths[0]:
            raise PeerLost(0)  # it sums up the run
        return self.deaths != before


Run = Callable[[Worker, Problem, Plan, State], Coroutine[Any, Any, State]]


def surviving(run: Run) -> Run:
    """The consensus algorithm `run`, begun anew among the living whenever a worker is lost.

    [choice] The iteration that is open then is lost with it, so that nothing said before can be
    taken for what is said after: all go on with the one after the last that anybody had begun, each
    with its estimate at the end of its last whole one.
    """

    @wraps(run)
    async def outliving(worker: Worker, problem: Problem, plan: Plan, state: State) -> State:
        if plan.survival.recovery == "none":
            return await run(worker, problem, plan, state)
        survivor, here, news = _Survivor(worker, plan, state), plan, worker.restarts > 0
        noticed = worker.now()
        while True:
            try:
                if news:
                    here = await survivor.begin_anew(noticed)
                    news = False
                last = await run(worker, problem, here, survivor.state)
                survivor.state.advance(last.k, last.w)
                if await survivor.living.part():
                    return last
            except PeerLost:
                noticed = noticed if news else worker.now()
            news = True

    return outliving


class _Saved(State):
    """A worker's state, with a running checkpoint of its estimate."""

    checkpoint: RunningCheckpoint | None = None

    def advance(self, k: int, w: np.ndarray, gradient: np.ndarray | None = None) -> None:
        super().advance(k, w, gradient)
        if self.checkpoint is not None and self.checkpoint.due(k):
            self.checkpoint.save(w, k)


class _Survivor:
    """A worker of the consensus family that others may lose, or that takes a lost one's place.

    Attributes:
        living: what it knows of the deaths so far.
        state: its state at the end of the last iteration.
    """

    def __init__(self, worker: Worker, plan: Plan, state: State):
        self._worker, self._plan = worker, plan
        self.living = Living(worker, plan.survival.replaces)
        self.state = _Saved(state.k, state.w, visits=state.visits, stop=state.stop)
        self._is_new = worker.restarts > 0
        if not self._is_new:
            self._start_saving()

    async def begin_anew(self, noticed: float) -> Plan:
        """Meet the living and take up the state to go on from; the plan of those who are there.
        `noticed`: when the loss was."""
        worker, plan, state = self._worker, self._plan, self.state
        told = await self.living.meet(state.k, not self._is_new)
        k = min(plan.iterations, 1 + max(said[0] for said in told.values()))
        worker.take(lambda m: m.iteration < k and m.kind < PEER_LOST)
        new = [rank for rank, said in told.items() if not said[1]]
        if not plan.survival.replaces:
            plan = plan.among(self.living.of(worker.workers))
        state.w = await self._restored(k, new)
        state.k, state.gradient, state.visits = k, None, state.visits[:0]
        if self._is_new:
            self._is_new = False
            self._start_saving()
        if worker.rank == 0:
            lost = new or self.living.lost
            worker.record("recovered", k=k, lost=lost, noticed=noticed)
        return plan

    async def _restored(self, k: int, new: list[int]) -> np.ndarray:
        """The estimate to go on with; `new` have none."""
        worker, around = self._worker, self._plan.neighbours
        if self._plan.survival.recovery == "full" or (self._is_new and self._plan.survival.saves):
            store = self._plan.survival.store(worker.rank)
            return store.read(np.arange(len(store.blocks)))[0]
        if self._plan.survival.recovery != "neighbour":
            return self.state.w
        if not self._is_new:
            for rank in new:
                if rank in around[worker.rank]:
                    worker.send(rank, Message(MODEL, k, worker.rank, vector=self.state.w))
            return self.state.w
        left = [i for i in around[worker.rank] if i not in new]
        if not left:
            raise FallenApart([worker.rank])
        estimates = {i: (await worker.receive(message(MODEL, k, i))).vector for i in left}
        degrees = {i: len(around[i]) for i in (worker.rank, *left)}
        return neighbour_average(worker.rank, estimates, degrees)

    def _start_saving(self) -> None:
        survival, worker, w = self._plan.survival, self._worker, self.state.w
        if not survival.saves:
            return
        store = survival.store(worker.rank)
        self.state.checkpoint = RunningCheckpoint(
            store.blocks,
            np.arange(len(store.blocks)),
            w,
            fraction=survival.fraction,
            period=survival.period,
            policy=survival.policy,
            distance=euclidean,
            rng=partial(worker.rng, "checkpoint"),
            store=store,
            k=self.state.k,
        )


def is_repair(m: Message) -> bool:
    return m.kind is REPAIR


def is_end_or_repair(m: Message) -> bool:
    return m.kind is END or m.kind is REPAIR


def is_loss(m: Message) -> bool:
    return m.kind is PEER_LOST
