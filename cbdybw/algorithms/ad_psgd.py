"""AD-PSGD: each worker averages with one random neighbour at a time and waits for nobody else.

Source: Lian et al., Asynchronous Decentralized Parallel SGD, arXiv 1710.06952, Algorithm 1. Its k
counts gradients of single workers; N of them are one iteration here. [choice] Every worker tells
all others of each gradient that it uses, so that all know how many there have been.
"""

from __future__ import annotations

import numpy as np

from cbdybw.algorithms.local import gradient
from cbdybw.algorithms.plan import STOP, Plan, State, message
from cbdybw.clusters.worker import INTERRUPTED, Kind, Match, Message, Worker
from cbdybw.mixing import descend
from cbdybw.problem import Problem

ASK, ANSWER, STEP = Kind.ASK, Kind.ANSWER, Kind.STEP


async def ad_psgd(worker: Worker, problem: Problem, plan: Plan, state: State) -> State:
    """Worker j = `worker.rank` from `state.k` on, part by part; returns its last state.

    A part ends with a consistent cut or with the run, and leaves nothing behind but its state.
    """
    while state.k < (plan.iterations if state.stop is None else state.stop):
        if plan.cut_before(state.k):
            worker.record("resume", k=state.k)
        state = await gossip(worker, problem, plan, state)
        if plan.cut_before(state.k):
            await worker.checkpoint(lambda state=state: state)
    return state


async def gossip(worker: Worker, problem: Problem, plan: Plan, state: State) -> State:
    """Algorithm 1 for worker j until the next cut or the end; returns its state then.

    Again and again, while a second activity answers the neighbours that ask:
        g = g_j(ŵ), ŵ being w_j as it is when the computation starts,
        w_j, w_i ← (w_j + w_i) / 2 with a random neighbour i, atomically,
        w_j ← w_j - η(k) g.

    The run ends with K·N gradients; what is being computed then is abandoned. At a cut it is
    finished, and used afterwards. [choice] The minibatches and delays of a worker are numbered by
    its own steps; so is η within its local steps.
    """
    j = Gossip(worker, plan, state)
    worker.spawn(j.respond())
    g = state.gradient
    while not j.pauses and g is not INTERRUPTED:
        if g is None:
            until = is_stop if j.is_last else None
            g = await gradient(worker, problem, plan, j.w, j.steps, until)
        else:
            await j.average()
            if not j.pauses:  # meanwhile others may have used the last gradients of this part
                j.use(g)
                g = None
    await j.leave()
    return j.state(None if j.is_last else g)


class Gossip:
    """Worker j in one part: its estimate, which two activities change, and what it knows.

    [choice] Against deadlock the paper makes the graph bipartite and lets one side ask the other.
    Here the graph is coloured, whatever it is, and a worker asks neighbours of higher colours only;
    a bipartite graph has two colours, which is the paper's rule. A worker that waits for an answer
    holds back its own answers, which makes the average atomic. Who waits for whom then follows
    ascending colours, so somebody always answers.

    Attributes:
        w: w_j.
        k: iterations that are closed: k·N gradients have been used, and fewer than (k+1)·N.
        total: gradients that all workers have used, as far as j knows.
        steps: those of j itself.
        is_last: whether the run, and no cut, ends this part.
    """

    def __init__(self, worker: Worker, plan: Plan, state: State):
        self._worker, self._plan = worker, plan
        self.w, self.k = state.w, state.k
        memory = state.memory or {"total": 0, "steps": 0, "used": 0, "partners": ()}
        self.total, self.steps = int(memory["total"]), int(memory["steps"])
        self._used = int(memory["used"])  # gradients of j since it closed an iteration
        self._partners = [int(i) for i in memory["partners"]]  # since then
        self._stop = plan.iterations if state.stop is None else state.stop
        self._cut = plan.end_after(self.k)
        self.is_last = not plan.cut_before(self._cut)
        self._others = [i for i in worker.workers if i != worker.rank]
        self._asks = False
        self._held: list[Message] = []  # requests, while it asks
        self._close()  # gradients that were used before the news of a cut had come

    @property
    def pauses(self) -> bool:
        """Whether all gradients of this part have been used."""
        return self.k >= (self._stop if self.is_last else self._cut)

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
        for ask in self._held:
            self._answer(ask)
        self._held.clear()

    def use(self, g: np.ndarray) -> None:
        """One step along g, which everybody is told of, and of the end when the time is over."""
        worker, plan = self._worker, self._plan
        self.w = descend(self.w, plan.eta(self.total // plan.workers), g)
        self.steps += 1
        self._used += 1
        if worker.now() >= plan.max_time:
            self._stop = min(self._stop, plan.end_after(self.k))
        step = Message(STEP, self.steps, worker.rank, body=(self._stop,))
        for i in self._others:
            worker.send(i, step)
        self._count()

    async def respond(self) -> None:
        """The second activity: average with who asks, count the gradients of the others."""
        worker = self._worker
        while (m := await worker.receive(is_ask_or_step)).source != worker.rank:
            if m.kind is STEP:
                self._stop = min(self._stop, m.body[0])
                self._count()
                if self.is_last and self.pauses:  # what j computes will not be used
                    worker.send(worker.rank, Message(STOP, self.k, worker.rank))
            elif self._asks:
                self._held.append(m)
            else:
                self._answer(m)

    def _answer(self, ask: Message) -> None:
        self.w = 0.5 * (self.w + ask.vector)
        answer = Message(ANSWER, ask.iteration, self._worker.rank, vector=self.w)
        self._worker.send(ask.source, answer)
        self._partners.append(ask.source)

    def _count(self) -> None:
        self.total += 1
        self._close()

    def _close(self) -> None:
        """Close the iterations of this part for which there have been enough gradients."""
        while not self.pauses and self.total >= (self.k + 1) * self._plan.workers:
            active, gradients = tuple(self._partners), self._used
            self._worker.record("average", k=self.k, w=self.w, active=active, gradients=gradients)
            self._partners, self._used = [], 0
            self.k += 1

    async def leave(self) -> None:
        """Say that j asks nobody any more, and wait until all have said so.

        Links keep their order: by then every gradient has been counted and every request answered.
        """
        worker = self._worker
        worker.broadcast(Message(STOP, self.k, worker.rank))
        for i in self._others:
            await worker.receive(stop_of(i))
        worker.send(worker.rank, Message(ASK, self.k, worker.rank))  # ends the second activity

    def state(self, g: np.ndarray | None) -> State:
        """What lasts; `g` is finished and has not been used."""
        memory = {"total": self.total, "steps": self.steps, "used": self._used}
        memory["partners"] = self._partners
        return State(
            self.k,
            self.w,
            g,
            stop=self._stop if self._stop < self._plan.iterations else None,
            memory={name: np.array(value, np.int64) for name, value in memory.items()},
        )


def is_ask_or_step(m: Message) -> bool:
    """Matches what the second activity is for."""
    return m.kind is ASK or m.kind is STEP


def is_stop(m: Message) -> bool:
    """Matches the word of a worker, or of this one to itself, that the run has ended."""
    return m.kind is STOP


def stop_of(i: int) -> Match:
    """Matches the word of worker i that it has ended its part."""

    def matches(m: Message) -> bool:
        return m.kind is STOP and m.source == i

    return matches
