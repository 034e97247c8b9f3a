"""AD-PSGD: each worker averages with one random neighbour at a time and waits for nobody else.

Source: Lian et al., Asynchronous Decentralized Parallel SGD, arXiv 1710.06952, Algorithm 1. Its k
counts gradients of single workers; N of them are one iteration here. [choice] Every worker tells
all others of each gradient that it uses, so that all know how many there have been.
"""

from __future__ import annotations

import math
from functools import partial
from typing import NoReturn

import numpy as np

from cbdybw.algorithms.local import gradient
from cbdybw.algorithms.plan import STOP, Plan, State, message
from cbdybw.clusters.worker import INTERRUPTED, Kind, Message, Worker
from cbdybw.mixing import descend
from cbdybw.problem import Problem

ASK, ANSWER, STEP = Kind.ASK, Kind.ANSWER, Kind.STEP


async def ad_psgd(worker: Worker, problem: Problem, plan: Plan, state: State) -> State:
    """Algorithm 1 for worker j = `worker.rank`, from `state.k` on; returns its last state.

    Again and again, while a second activity answers the neighbours that ask:
        g = g_j(ŵ), ŵ being w_j as it is when the computation starts,
        w_j, w_i ← (w_j + w_i) / 2 with a random neighbour i, atomically,
        w_j ← w_j - η(k) g.

    The run ends with K·N gradients; what is being computed then is abandoned. At a consistent cut
    it is finished and used afterwards. [choice] The minibatches and delays of a worker are numbered
    by its own steps, and so is η within local steps.
    """
    gossip = Gossip(worker, plan, state)
    worker.spawn(gossip.respond())
    g = state.gradient
    await gossip.begin_part()
    while g is not INTERRUPTED and not gossip.over:
        if gossip.at_cut:
            await worker.checkpoint(partial(gossip.state, g))
            await gossip.begin_part()
        elif g is None:
            g = await gradient(worker, problem, plan, gossip.w, gossip.steps, until=is_stop)
        else:
            await gossip.average()
            if not gossip.pauses:
                gossip.use(g)
                g = None
    await gossip.leave()
    return gossip.state(None)


class Gossip:
    """The estimate of worker j, which two activities change, and what j knows of the others.

    [choice] Against deadlock the paper makes the graph bipartite and lets one side ask the other.
    Here the graph is coloured, whatever it is, and a worker asks neighbours of higher colours only;
    a bipartite graph has two colours, the paper's rule. A worker that waits for an answer holds
    back its own answers, which makes the average atomic; who waits for whom then follows ascending
    colours, so somebody always answers.

    Attributes:
        w: w_j.
        k: iterations that are closed, each by N gradients more than the one before.
        total: gradients used by all workers, as far as j knows.
        steps: those of j itself.
        stop: the iteration before which all end, earlier than K when the time is over.
        cut: the iteration before which the next consistent cut comes.
    """

    def __init__(self, worker: Worker, plan: Plan, state: State):
        self._worker, self._plan = worker, plan
        self.w, self.k = state.w, state.k
        self.stop = plan.iterations if state.stop is None else state.stop
        self.cut = math.inf
        memory = state.memory or {"total": 0, "steps": 0, "used": 0, "partners": ()}
        self.total, self.steps = int(memory["total"]), int(memory["steps"])
        self._used = int(memory["used"])  # gradients of j since the last iteration was closed
        self._partners = [int(i) for i in memory["partners"]]  # since then
        self._asks = False
        self._held: list[Message] = []  # requests, while it asks

    @property
    def pauses(self) -> bool:
        """Whether the gradients up to the cut or the end have been used."""
        return self.k >= min(self.cut, self.stop)

    @property
    def at_cut(self) -> bool:
        """Whether all workers come to a cut now."""
        return self.k == self.cut

    @property
    def over(self) -> bool:
        """Whether the run has ended; a cut at its end comes first."""
        return self.k >= self.stop and not self.at_cut

    async def begin_part(self) -> None:
        """Go on after a cut, or start."""
        plan, worker = self._plan, self._worker
        following = plan.end_after(self.k)
        self.cut = following if plan.cut_before(following) else math.inf
        if plan.cut_before(self.k) and self.k < self.stop:
            # A resumed run has to start its responders before anybody asks.
            await worker.barrier(worker.workers)
            worker.record("resume", k=self.k)
        self._close()

    async def average(self) -> None:
        """Average with a random one of the neighbours that j may ask, if there are any."""
        worker, asked = self._worker, self._plan.asked[self._worker.rank]
        if not asked:
            return
        i = asked[worker.rng("partner", self.steps).integers(len(asked))]
        self._asks = True
        worker.send(i, Message(ASK, self.steps, worker.rank, vector=self.w))
        self.w = (await worker.receive(message(ANSWER, self.steps, i))).vector
        self._partners.append(i)
        self._asks = False
        while self._held:
            self._answer(self._held.pop(0))

    def use(self, g: np.ndarray) -> None:
        """One step along g, which everybody is told of."""
        worker, plan = self._worker, self._plan
        self.w = descend(self.w, plan.eta(self.total // plan.workers), g)
        self.steps += 1
        self._used += 1
        if worker.now() >= plan.max_time:
            self.stop = min(self.stop, plan.end_after(self.k))
        step = Message(STEP, self.steps, worker.rank, body=(self.stop,))
        for i in worker.workers:
            if i != worker.rank:
                worker.send(i, step)
        self._count()

    async def respond(self) -> NoReturn:
        """The second activity: answer who asks, count who tells of a gradient."""
        worker = self._worker
        while True:
            m = await worker.receive(is_ask_or_step)
            if m.kind is STEP:
                self.stop = min(self.stop, m.body[0])
                self._count()
                if self.over:  # the gradient under way is not needed
                    worker.send(worker.rank, Message(STOP, self.k, worker.rank))
            elif self._asks:
                self._held.append(m)
            else:
                self._answer(m)

    def _answer(self, ask: Message) -> None:
        self.w = 0.5 * (self.w + ask.vector)
        self._worker.send(
            ask.source, Message(ANSWER, ask.iteration, self._worker.rank, vector=self.w)
        )
        self._partners.append(ask.source)

    def _count(self) -> None:
        self.total += 1
        self._close()

    def _close(self) -> None:
        """Close the iterations whose gradients have been used, those behind a cut after it."""
        while not self.pauses and self.total >= (self.k + 1) * self._plan.workers:
            active, gradients = tuple(self._partners), self._used
            self._worker.record("average", k=self.k, w=self.w, active=active, gradients=gradients)
            self._partners, self._used = [], 0
            self.k += 1

    async def leave(self) -> None:
        """Say that j asks nobody any more, and wait until all have said so.

        Links keep their order: by then every gradient has been counted, every request answered.
        """
        worker = self._worker
        worker.broadcast(Message(STOP, self.k, worker.rank))
        for i in worker.workers:
            if i != worker.rank:
                await worker.receive(stop_of(i))

    def state(self, g: np.ndarray | None) -> State:
        """What lasts; `g` is finished and has not been used."""
        memory = {"total": self.total, "steps": self.steps, "used": self._used}
        arrays = {name: np.array(value, np.int64) for name, value in memory.items()}
        arrays["partners"] = np.array(self._partners, np.int64)
        stop = self.stop if self.stop < self._plan.iterations else None
        return State(self.k, self.w, g, stop=stop, memory=arrays)


def is_stop(m: Message) -> bool:
    """Matches the word that the run has ended, from anybody."""
    return m.kind is STOP


def stop_of(i: int):
    """Matches the last word of worker i."""

    def matches(m: Message) -> bool:
        return m.kind is STOP and m.source == i

    return matches


def is_ask_or_step(m: Message) -> bool:
    """Matches what the second activity is for."""
    return m.kind is ASK or m.kind is STEP
