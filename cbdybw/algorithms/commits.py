"""Workers that go steps of their own and commit what these come to: what ADSP and ADACOMM share.

A worker pulls the model W, goes local steps W_i ← W_i - η' g, and pushes U_i = W - W_i, which is
the sum of its η' g; what differs is when it commits (its `Rhythm`) and what the server does
with U_i. A commit is its own: no worker waits for another unless the server lets it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial

import numpy as np

from cbdybw.algorithms.plan import STOP, Pace, Plan, State
from cbdybw.algorithms.rooms import MODEL, Halt, Replica, Shard, between_cuts
from cbdybw.algorithms.search import Order, Probe, Search, Sight
from cbdybw.clusters.worker import Kind, Message, Worker
from cbdybw.mixing import descend
from cbdybw.problem import Problem

TARGET = Kind.TARGET
ANEW = (1,)
"""What a model says at the end of its body when it is the first one again."""

Searcher = Callable[[Pace, list[Probe]], Search]
"""Begins a search that writes its probes into a journal."""


class Rhythm(ABC):
    """When a worker commits.

    Attributes:
        size: samples in the minibatches of this worker; 0: the workload's.
        divisor: the learning rate is η'/divisor.
        anew: whether the last model was the first one again.
    """

    size, divisor, anew = 0, 1, False

    @abstractmethod
    def is_over(self, now: float, steps: int) -> bool:
        """Whether to commit now, after so many steps since the last pull."""

    @abstractmethod
    def hear(self, m: Message, now: float, commits: int) -> None:
        """A TARGET or a MODEL has come after so many commits."""

    def commit(self, now: float) -> None:
        """It is time."""
        return

    def rest(self) -> None:
        """A consistent cut begins: an answer that comes now is no measure of anything."""
        return

    @abstractmethod
    def memory(self) -> dict[str, np.ndarray]:
        """What lasts."""


class Committer(Replica):
    """A worker's copy of the model that it goes steps on.

    Attributes:
        local: W_i, shape (dim,); `w` is the model that was pulled, `pending` a finished U_i.
        steps: minibatches so far; the next one's index.
        begun: minibatches when training last began: η' counts from there.
        pulled: minibatches when the model was pulled.
        commits: pushes so far.
        seconds: of computing since the model was pulled.
    """

    def __init__(self, worker: Worker, plan: Plan, state: State, rhythm: Rhythm):
        super().__init__(worker, plan, state)
        self.rhythm = rhythm
        counts = state.memory.get("counts", (0, 0, 0, 0, 0))
        self.steps, self.pulled, self.commits, is_whole, self.begun = map(int, counts)
        self.seconds = float(state.memory.get("seconds", 0.0))
        self.local = self.w if state.gradient is None else self.w - state.gradient
        if not is_whole:
            self.pending = None

    async def step(self, problem: Problem) -> None:
        """W_i ← W_i - η' g on the next minibatch."""
        worker, j, size = self.worker, self.worker.rank, self.rhythm.size
        batch = problem.batch(j, self.steps, size) if size else problem.batch(j, self.steps)
        work = size / self.plan.pace.batch_size if size else 1.0
        begin = worker.now()
        g = await worker.compute(problem.gradient, self.local, batch, index=self.steps, work=work)
        self.seconds += worker.now() - begin
        eta = self.plan.eta(self.steps - self.begun) / self.rhythm.divisor
        self.local = descend(self.local, eta, g)
        self.steps += 1

    def hear(self) -> None:
        """What the server has said: a new pace, another model to go on from, the end."""
        stop = None
        for m in self.worker.take(is_news):
            if m.kind is STOP:
                stop = m
            elif m.kind is TARGET:
                self.rhythm.hear(m, self.worker.now(), self.commits)
            else:
                self._answers[m.source] = m
                self._adopt()
        if stop:
            raise Halt(stop)

    async def renew(self) -> None:
        """Wait for the new model, and hear what was said before it came."""
        await super().renew()
        self.hear()

    def is_time(self) -> bool:
        """Whether to commit. After an unasked model there is nothing that could be."""
        steps = self.steps - self.pulled
        return steps > 0 and self.rhythm.is_over(self.worker.now(), steps)

    def commit(self) -> None:
        """U_i is what the steps since the last pull came to."""
        self.pending = self.w - self.local
        self.commits += 1
        self.rhythm.commit(self.worker.now())

    def push(self) -> None:
        """Send the servers their slices of U_i, with the number of steps and their time in µs."""
        self._push(self.steps - self.pulled, round(1e6 * self.seconds))

    def _adopt(self) -> None:
        answer = self._answers[self.worker.servers[0]]
        super()._adopt()
        self.local, self.pulled, self.seconds = self.w, self.steps, 0.0
        self.rhythm.hear(answer, self.worker.now(), self.commits)
        if self.rhythm.anew:
            self.begun = self.steps

    async def come_to_cut(self) -> None:
        self.rhythm.rest()
        await super().come_to_cut()
        for m in self.worker.take(is_target):
            self.rhythm.hear(m, self.worker.now(), self.commits)
        self._pause()

    async def come_to_end(self) -> None:
        """The server's last pushes are those that it gets before this."""
        for server in self.worker.servers:
            self.worker.send(server, Message(STOP, self.k, self.worker.rank))
        self._pause()

    def _pause(self) -> None:
        """W_i goes on as W - U_i, here as in a resumed run: the same bits."""
        self._made = self.pending if self.pending is not None else self.w - self.local
        self.local = self.w - self._made

    def state(self) -> State:
        """What lasts."""
        counts = (self.steps, self.pulled, self.commits, self.pending is not None, self.begun)
        memory = {"index": np.array(self.index), "counts": np.array(counts)}
        memory |= {"seconds": np.array(self.seconds), **self.rhythm.memory()}
        return State(self.k, self.w, self._made, memory=memory)


async def work(replica: Committer, problem: Problem) -> None:
    """A worker, until it halts: step until its rhythm says so, push, pull."""
    while True:
        while replica.pending is None:
            await replica.step(problem)
            replica.hear()
            if replica.is_time():
                replica.commit()
        replica.push()
        await replica.renew()


async def train(replica: Committer, problem: Problem) -> State:
    """A worker's part in a run from `replica.k` on; its last state."""
    return await between_cuts(replica, partial(work, replica, problem))


class Scheduler:
    """A search at work in the only server: it looks at the loss when the search wants to.

    The sights are what lasts of it; they are sent to the search again when a run is resumed.

    Attributes:
        order: what holds now.
        due: when the search wants to see the loss next.
        journal: the probes so far.
    """

    def __init__(self, shard: Shard, problem: Problem, find: Searcher):
        self._shard, self._problem = shard, problem
        self.journal: list[Probe] = []
        self._search = find(shard.plan.pace, self.journal)
        self.order = next(self._search)
        self._sights = [Sight(*row) for row in shard.memory.get("sights", np.zeros((0, 2)))]
        for sight in self._sights:
            self.order = self._search.send(sight)

    @property
    def due(self) -> float:
        return (self._sights[-1].time if self._sights else 0.0) + self.order.seconds

    def look(self) -> Order:
        """Show the search the loss; what holds from now on."""
        shard = self._shard
        loss = math.nan if self.order.blind else self._problem.held_out_loss(shard.w)
        sight = Sight(shard.worker.now(), loss)
        self._sights.append(sight)
        self.order = self._search.send(sight)
        if self.order.restart:
            shard.memory["restarted"] = np.array(sight.time)
        return self.order

    def memory(self) -> dict[str, np.ndarray]:
        """What lasts: the sights; and the probes, for the run's result."""
        sights = np.array(self._sights, float).reshape(-1, 2)
        return {"sights": sights, "probes": table(self.journal)}


def table(journal: list[Probe]) -> np.ndarray:
    """The probes as rows: rate, τ, μ, divisor, reward, then the time and the loss of each sight."""
    rows = [
        (
            *(p.order.rate, p.order.tau, p.order.momentum, p.order.divisor, p.reward),
            *sum(p.sights, ()),
        )
        for p in journal
    ]
    return np.array(rows, float)


def is_news(m: Message) -> bool:
    return m.kind is MODEL or m.kind is TARGET or m.kind is STOP


def is_target(m: Message) -> bool:
    return m.kind is TARGET
