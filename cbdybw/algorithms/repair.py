"""How the living meet after a loss: who is there, and where do they go on?

No paper says how. Every rank hears of every death from its cluster, though not at the same moment,
and what it has under way then is lost. Each tells the others REPAIR, with all the deaths it knows
of; one that learns of more in this way says it again. They have met when each has heard the very
same deaths from all who live. Links keep their order, so whatever somebody says before its REPAIR
is of before the loss, and is dropped with it; what is heard after it is of after the repair.

Whoever has nothing left to do says END to the root, and stays: it may be needed for a REPAIR. The
root, which never dies, says END when all who live have; from then on nobody is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from functools import partial, wraps
from typing import Any

import numpy as np

from cbdybw.algorithms.plan import Plan, State, message
from cbdybw.clusters.worker import Kind, Match, Message, Worker
from cbdybw.errors import FallenApart, PeerLost
from cbdybw.problem import Problem
from cbdybw.scar.blocks import euclidean
from cbdybw.scar.checkpoint import RunningCheckpoint
from cbdybw.scar.recovery import neighbour_average

REPAIR, END, PEER_LOST, MODEL = Kind.REPAIR, Kind.END, Kind.PEER_LOST, Kind.MODEL
ROOT = 0
"""It never dies."""

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
        self._noticed: set[int] = set()  # ranks of whose deaths the cluster has told this one
        self._told: Told = {}  # by those who know of the same deaths as this rank
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
        return self.of(range(self._worker.size))

    def of(self, ranks: Sequence[int]) -> list[int]:
        """Those of `ranks` who live."""
        lost = set(self.lost)
        return [rank for rank in ranks if rank not in lost]

    def outlive(self, loss: PeerLost) -> None:
        """Take in a death that the cluster has told of. Raises `loss` when it is the root's, which
        sums up the run."""
        if loss.rank == ROOT:
            raise loss
        deaths = list(self.deaths)
        deaths[loss.rank] = max(1, deaths[loss.rank])
        self._noticed.add(loss.rank)
        self._learn(deaths)
        self._count()

    async def meet(self, k: int, *said: int) -> Told:
        """Meet all who live; what each has said, its iteration `k` first. Nothing when the root has
        ended the run instead."""
        worker = self._worker
        self._count()
        while True:
            if worker.rank not in self._told:  # these deaths are news
                self._told[worker.rank] = (k, *said)
                repair = Message(REPAIR, k, worker.rank, (*self.deaths, *said))
                self._say(repair, self.ranks)
            if self._told.keys() >= set(self.ranks) and self._noticed.issuperset(self.lost):
                break
            m = await self._listen(is_repair if worker.rank == ROOT else is_repair_or_end)
            if m is not None and m.kind is END:
                return {}
        told, self._told = self._told, {}
        self.met = sum(self.deaths)
        worker.take(lambda m: m.kind < PEER_LOST and m.source in self.lost)
        return told

    async def part(self) -> bool:
        """There is nothing left to do here; whether that is so for all who live. If not, somebody
        has been lost, and the others are waiting in a meeting."""
        worker, ended = self._worker, {ROOT}
        if worker.rank != ROOT:
            self._say(Message(END, 0, worker.rank, (self.met,)), [ROOT])
        while True:
            self._count()
            if sum(self.deaths) > self.met and (self._replaced or self._told):
                return False
            if worker.rank == ROOT and ended.issuperset(self.ranks):
                self._say(Message(END, 0, ROOT), self.ranks)
                break
            m = await self._listen(is_repair_or_end)
            if m is None or m.kind is REPAIR:
                continue
            if worker.rank != ROOT:
                break
            if m.body[0] == self.met:
                ended.add(m.source)
        worker.forgive(range(worker.size))
        return True

    async def _listen(self, match: Match) -> Message | None:
        """The next message, a REPAIR taken in already; None when a loss has come instead."""
        try:
            m = await self._worker.receive(match)
        except PeerLost as loss:
            self.outlive(loss)
            return None
        if m.kind is REPAIR:
            size = self._worker.size
            deaths, said = list(m.body[:size]), m.body[size:]
            self._learn(deaths)
            if deaths == self.deaths:
                self._told[m.source] = (m.iteration, *said)
                self._worker.take(lambda old: old.kind < PEER_LOST and old.source == m.source)
        return m

    def _count(self) -> None:
        """Take in the deaths that the cluster has told of."""
        deaths = list(self.deaths)
        for m in self._worker.take(is_loss):
            deaths[m.source] = max(m.body[0], deaths[m.source])
            self._noticed.add(m.source)
        self._learn(deaths)

    def _learn(self, deaths: list[int]) -> None:
        """What has been said before is void when these deaths are news. A death is forgiven when
        the cluster has told of it: nothing more comes from that rank then."""
        before, self.deaths = self.deaths, [max(n) for n in zip(self.deaths, deaths, strict=True)]
        if self.deaths != before:
            self._told = {}
        if not self._replaced:
            self._worker.forgive(self._noticed)

    def _say(self, m: Message, ranks: Sequence[int]) -> None:
        for rank in ranks:
            if rank != self._worker.rank:
                self._worker.send(rank, m)


Run = Callable[[Worker, Problem, Plan, State], Coroutine[Any, Any, State]]


def surviving(run: Run) -> Run:
    """The consensus algorithm `run`, begun anew among the living whenever a worker is lost.

    [choice] The iteration that is open then is lost with it: all go on with the one after the last
    that anybody had begun, each with its estimate at the end of its last whole one.
    """

    @wraps(run)
    async def outliving(worker: Worker, problem: Problem, plan: Plan, state: State) -> State:
        if plan.survival.recovery == "none":
            return await run(worker, problem, plan, state)
        survivor, here = _Survivor(worker, plan, state), plan
        news, noticed = worker.restarts > 0, worker.now()
        while True:
            try:
                if news:
                    here = await survivor.begin_anew(noticed)
                    if here is None:
                        return survivor.state
                    news = False
                last = await run(worker, problem, here, survivor.state)
                if await survivor.living.part():
                    return last
            except PeerLost as loss:
                survivor.living.outlive(loss)
            news, noticed = True, noticed if news else worker.now()

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

    async def begin_anew(self, noticed: float) -> Plan | None:
        """Meet the living and take up the state to go on from; the plan of those who are there, or
        None when the run is over. `noticed`: when the loss was."""
        worker, plan, state = self._worker, self._plan, self.state
        told = await self.living.meet(state.k, not self._is_new)
        if not told:
            return None
        k = min(plan.iterations, 1 + max(said[0] for said in told.values()))
        new = [rank for rank, said in told.items() if not said[1]]
        if not plan.survival.replaces:
            plan = plan.among(self.living.of(worker.workers))
        state.w = await self._restored(k, new)
        state.k, state.gradient, state.visits = k, None, state.visits[:0]
        if self._is_new:
            self._is_new = False
            self._start_saving()
        if worker.rank == ROOT:
            lost = sorted(new) or self.living.lost
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
            raise FallenApart(f"worker {worker.rank} has no living neighbour to begin from")
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


def is_repair_or_end(m: Message) -> bool:
    return m.kind is REPAIR or m.kind is END


def is_loss(m: Message) -> bool:
    return m.kind is PEER_LOST
