"""ADACOMM and Fixed ADACOMM: every worker goes τ local steps, then all average their models.

Source: the baselines of ADSP (arXiv 1911.06949 and its authors' code); ADACOMM itself is Wang and
Joshi's (arXiv 1810.08313), whose learning rate also changes with τ, which is left out here as in
that code. With U_i what worker i's τ steps have come to,

    W ← W - (1/M) Σ_i U_i ,

summed in rank order, when all M have come: iteration k of the run. A worker that has finished
waits. In a search for τ, training begins anew, and what is on its way is of no use.
"""

from __future__ import annotations

import numpy as np

from cbdybw.algorithms import search
from cbdybw.algorithms.commits import ANEW, Committer, Rhythm, Scheduler, Searcher, train
from cbdybw.algorithms.plan import Plan, State
from cbdybw.algorithms.rooms import PUSH, Shard, between_cuts
from cbdybw.clusters.worker import Message, Worker
from cbdybw.mixing import combine
from cbdybw.problem import Problem

ROUNDING = 1e-3  # samples: equal speeds must not cost one


async def fixed_adacomm(worker: Worker, problem: Problem, plan: Plan, state: State) -> State:
    """Fixed ADACOMM: τ = `plan.pace.tau` throughout."""
    return await averaging(worker, problem, plan, state, tau=plan.pace.tau)


async def adacomm(worker: Worker, problem: Problem, plan: Plan, state: State) -> State:
    """ADACOMM: τ is found before training and falls with the loss, see `search.adacomm`."""
    return await averaging(worker, problem, plan, state, tau=1, find=search.adacomm)


async def averaging(
    worker: Worker,
    problem: Problem,
    plan: Plan,
    state: State,
    tau: int,
    find: Searcher = search.nothing,
) -> State:
    """A rank's part in a run that begins with τ local steps; with τ = 1 it is BSP."""
    if worker.rank in worker.servers:
        server = Server(worker, problem, plan, state, tau, find)
        return await between_cuts(server, server.serve)
    rounds = Rounds(plan.pace.batch_size, tau, state.memory.get("rounds"))
    return await train(Committer(worker, plan, state, rounds), problem)


class Rounds(Rhythm):
    """A worker commits after τ steps, on minibatches of b_i; the server says both with its model.

    Attributes:
        size: b_i; 0: the workload's.
        tau: τ.
    """

    def __init__(self, size: int, tau: int, memory: np.ndarray | None):
        self.size, self.tau = (size, tau) if memory is None else map(int, memory)

    def is_over(self, now: float, steps: int) -> bool:
        return steps >= self.tau

    def hear(self, m: Message, now: float, commits: int) -> None:
        self.tau, self.size, *more = m.body
        self.anew = tuple(more) == ANEW

    def memory(self) -> dict[str, np.ndarray]:
        return {"rounds": np.array((self.size, self.tau))}


class Server(Shard):
    """A parameter server that averages.

    `memory` has, beside what a scheduler keeps: `round` how often the workers have got a model,
    `tau` τ, `first` the parameters at the start, `sizes` b_i of all workers, `tuned` when these
    were last set.
    """

    def __init__(self, worker: Worker, problem: Problem, plan: Plan, state: State, tau: int, find):
        super().__init__(worker, plan, state)
        memory, n = self.memory, len(self.workers)
        if "round" not in memory:
            memory |= {"round": np.array(0), "tau": np.array(tau), "tuned": np.array(0.0)}
            memory["sizes"] = np.full(n, plan.pace.batch_size)
            if isinstance(self.w, np.ndarray):
                memory["first"] = self.w
        self._mean = dict.fromkeys(self.workers, 1 / n)
        self._pushes: dict[int, Message] = {}  # of this round
        self._scheduler = Scheduler(self, problem, find)

    async def serve(self) -> None:
        """Until it halts."""
        while True:
            push = await self.receive(PUSH, self._scheduler.due)
            if push is None:
                self.check_point()
            elif push.iteration == self.memory["round"]:
                self._pushes[push.source] = push
                if len(self._pushes) == len(self.workers):
                    self.average()

    def average(self) -> None:
        """All have come."""
        pushes = self._pushes
        self.w = self.w - combine(self._mean, {i: m.vector for i, m in pushes.items()})
        self.complete(sum(m.body[0] for m in pushes.values()), finishers=len(pushes))
        self.tune()
        self.go_on()

    def tune(self) -> None:
        """R²SP's rule, in every check period: b_i = ⌊b M v_i / Σ_j v_j⌋, at least 1, with v_i the
        speed of worker i in the last round."""
        memory, pace, now = self.memory, self.plan.pace, self.worker.now()
        if pace.batch_size and now >= memory["tuned"] + pace.period:
            bodies = np.array([self._pushes[i].body for i in self.workers], float)
            samples, seconds = bodies[:, 0] * memory["sizes"], np.maximum(bodies[:, 1], 1) / 1e6
            shares = samples / seconds / np.mean(samples / seconds)
            sizes = np.floor(pace.batch_size * shares + ROUNDING)
            memory |= {"sizes": np.maximum(1, sizes.astype(int)), "tuned": np.array(now)}

    def go_on(self, more: tuple[int, ...] = ()) -> None:
        """The next round begins."""
        self._pushes = {}
        self.memory["round"] += 1
        index, tau = int(self.memory["round"]), int(self.memory["tau"])
        for i, size in zip(self.workers, self.memory["sizes"].tolist(), strict=True):
            self.answer((i,), index, (tau, size, *more))

    def check_point(self) -> None:
        """A τ for the rounds to come, which may begin with the first parameters."""
        order = self._scheduler.look()
        self.memory["tau"] = np.array(order.tau)
        if order.restart:
            self.w = self.memory.get("first", self.w)
            self.commit(gradients=0)
            self.go_on(ANEW)

    def state(self) -> State:
        self.memory |= self._scheduler.memory()
        return super().state()
