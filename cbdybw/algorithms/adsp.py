"""ADSP: workers commit at a parameter server on timers of their own, and never wait for others.

Source: Hu, Wang and Chen, "ADSP: Adaptive Synchronous Parallel" (AAAI 2020, arXiv 1911.06949). The
scheduler, here a part of the server, says at each check point how many commits C_target everybody
should have made by the next one. Worker i, who has made c_i, spreads the missing
ΔC_i = C_target - c_i over the check period Γ: fast workers go more steps between two commits, and
all commit equally often. The server uses each commit when it comes: W ← W - η U_i, η = 1/M.

Iteration k of the run is the M commits kM … (k+1)M-1, whoever they come from. When `max_time` is
over the run ends at once, whatever is in flight is still used, and no commit is lost.
"""

from __future__ import annotations

import math

import numpy as np

from cbdybw.algorithms import search
from cbdybw.algorithms.commits import ANEW, TARGET, Committer, Rhythm, Scheduler, Searcher, train
from cbdybw.algorithms.plan import Pace, Plan, State
from cbdybw.algorithms.rooms import PUSH, Shard, between_cuts
from cbdybw.algorithms.search import Order
from cbdybw.clusters.worker import Message, Worker
from cbdybw.mixing import descend
from cbdybw.problem import Problem


async def adsp(worker: Worker, problem: Problem, plan: Plan, state: State) -> State:
    """ADSP with the commit rate `plan.pace.rate`, or the one that its scheduler finds online."""
    find = search.fixed_rate if plan.pace.rate else search.adsp
    return await _take_part(worker, problem, plan, state, find)


async def adsp_plus(worker: Worker, problem: Problem, plan: Plan, state: State) -> State:
    """ADSP+: ADSP with the commit rate that a search before training found the best."""
    return await _take_part(worker, problem, plan, state, search.adsp_plus)


async def adsp_plus_plus(worker: Worker, problem: Problem, plan: Plan, state: State) -> State:
    """ADSP++: as ADSP+, with commit rate, momentum and learning rate searched for together."""
    return await _take_part(worker, problem, plan, state, search.adsp_plus_plus)


async def _take_part(
    worker: Worker, problem: Problem, plan: Plan, state: State, find: Searcher
) -> State:
    worker.forgive(worker.workers)
    if worker.rank in worker.servers:
        server = Server(worker, problem, plan, state, find)
        return await between_cuts(server, server.serve)
    timer = Timer(plan.pace, state.memory.get("timer"))
    return await train(Committer(worker, plan, state, timer), problem)


class Timer(Rhythm):
    """When worker i commits next: T_i = Γ/ΔC_i - O_i, looked at after each step.

    With due times, commit n since the check point is due nΓ/ΔC_i - O_i after it: what a step has
    taken too long does not delay the commits that follow, so that at a check point the workers'
    counts differ by at most 1 where step + O_i ≤ Γ/(2ΔC_i) [choice]. With restarts, as in the
    authors' code, T_i runs anew from each commit and is never shorter than `Pace.shortest`.

    Attributes:
        rate: ΔC_i = max(1, C_target - c_i); 0 before the first check point.
        overhead: O_i, seconds from the last push to its answer.
    """

    def __init__(self, pace: Pace, memory: np.ndarray | None):
        self._pace = pace
        values = [0, 1, 0] + [0.0] * 5 if memory is None else memory.tolist()
        self.rate, self.divisor, self._since = map(int, values[:3])
        self.overhead, self._begin, self._span, self._pushed, self._pulled = values[3:]

    def hear(self, m: Message, now: float, commits: int) -> None:
        """A check point, or the answer to a commit."""
        if m.kind is TARGET:
            target, begin, span, self.divisor = m.body
            self._begin, self._span, self._since = begin / 1e6, span / 1e6, 0
            self.rate = max(1, target - commits)
        else:
            if self._pushed > self._pulled:  # else it comes unasked, or after a cut
                self.overhead = now - self._pushed
            self._pulled, self.anew = now, m.body == ANEW

    @property
    def due(self) -> float:
        """When to commit."""
        if not self.rate:
            return math.inf
        between = self._span / self.rate
        if self._pace.restarts:
            return self._pulled + max(self._pace.shortest, between - self.overhead)
        return self._begin + (self._since + 1) * between - self.overhead

    def is_over(self, now: float, steps: int) -> bool:
        return now >= self.due

    def commit(self, now: float) -> None:
        self._since, self._pushed = self._since + 1, now

    def rest(self) -> None:
        self._pushed = self._pulled

    def memory(self) -> dict[str, np.ndarray]:
        counts = (self.rate, self.divisor, self._since)
        times = (self.overhead, self._begin, self._span, self._pushed, self._pulled)
        return {"timer": np.array((*counts, *times), float)}


class Server(Shard):
    """ADSP's parameter server, with its scheduler.

    `memory` has, beside what the scheduler keeps: `target` C_target, `round` how often training
    began anew, `commits` c_i of all workers, `used` how many of them have moved W, `checks` a row
    for each check point: seconds, the C_target that it ends, least and most commits of a worker.
    """

    def __init__(self, worker: Worker, problem: Problem, plan: Plan, state: State, find: Searcher):
        super().__init__(worker, plan, state)
        memory = self.memory
        if "round" not in memory:
            memory |= {name: np.array(0) for name in ("target", "round", "used")}
            memory |= {"commits": np.zeros(len(self.workers), int), "checks": np.empty((0, 4))}
            if isinstance(self.w, np.ndarray):
                memory |= {"first": self.w, "velocity": np.zeros_like(self.w)}
        self._scheduler = Scheduler(self, problem, find)

    async def serve(self) -> None:
        """Until it halts."""
        scheduler, max_time = self._scheduler, self.plan.max_time
        while True:
            push = await self.receive(PUSH, min(scheduler.due, max_time))
            if push is not None:
                self.use(push)
            elif scheduler.due < max_time:
                self.check_point(scheduler.look())
            else:
                self.end()

    def use(self, push: Message) -> None:
        """W ← W - v with v ← μ v + η U_i. What a worker has made of the model before training began
        anew is of no use; its commit counts nevertheless."""
        memory, i = self.memory, push.source
        memory["commits"][i] += 1
        if push.iteration != memory["round"]:
            return
        eta = self.plan.pace.eta or 1 / len(self.living)
        momentum = self._scheduler.order.momentum
        if momentum and "velocity" in memory:
            memory["velocity"] = momentum * memory["velocity"] + eta * push.vector
            self.w = self.w - memory["velocity"]
        else:
            self.w = descend(self.w, eta, push.vector)
        steps, _ = push.body
        self.commit(steps)
        memory["used"] += 1
        if self.is_open and memory["used"] % len(self.workers) == 0:
            self.complete(gradients=0)
        self.answer((i,), push.iteration)

    def check_point(self, order: Order) -> None:
        """Tell the workers what the scheduler wants from now on."""
        memory, now = self.memory, self.worker.now()
        if order.rate:
            counts = memory["commits"][sorted(self.living)]
            row = now, memory["target"], counts.min(), counts.max()
            memory["checks"] = np.vstack((memory["checks"], row))
            span = order.span or order.seconds
            memory["target"] += max(1, round(order.rate * span / self.plan.pace.period))
            news = (int(memory["target"]), round(1e6 * now), round(1e6 * span), order.divisor)
            self.worker.broadcast(Message(TARGET, self.k, self.worker.rank, news))
        if order.restart:  # with the target before the model, no step goes the old way
            if "first" in memory:
                self.w, memory["velocity"] = memory["first"], np.zeros_like(self.w)
            self.commit(gradients=0)
            memory["round"] += 1
            self.answer(sorted(self.living), int(memory["round"]), ANEW)

    def state(self) -> State:
        self.memory |= self._scheduler.memory()
        return super().state()

    def leave(self, push: Message) -> None:
        if push.iteration != self.memory["round"]:  # its worker has the first model since
            self.use(push)

    async def come_to_end(self) -> None:
        """Use what is still in flight: nothing that a worker has sent is lost."""
        async for push in self.last_pushes():
            self.use(push)
