"""cb-Full: consensus SGD in which each worker waits for all of its neighbours.

Source: Xiong et al., arXiv 2102.06280, Algorithm 1 with S_j(k) = N_j, the paper's baseline.
"""

from __future__ import annotations

from functools import partial

from cbdybw.algorithms.plan import STOP, UPDATE, Plan, State, message
from cbdybw.clusters.worker import Message, Worker
from cbdybw.mixing import combine, descend, metropolis
from cbdybw.problem import Problem


async def cb_full(worker: Worker, problem: Problem, plan: Plan, state: State) -> State:
    """Worker j = `worker.rank` from `state.k` on; returns its last state.

    w̃_j(k) = w_j(k-1) - η(k) g_j(w_j(k-1))
    w_j(k) = P_jj w̃_j(k) + Σ_{i∈N_j} P_ij w̃_i(k)

    With `plan.barrier == "global"` nobody begins iteration k+1 before everybody has ended k,
    with "neighbours" a worker waits for its neighbours only.
    """
    j, neighbours = worker.rank, plan.neighbours[worker.rank]
    row = metropolis(j, len(neighbours), {i: len(plan.neighbours[i]) for i in neighbours})
    k, w, stop = state.k, state.w, Stop(worker, plan, state.stop)

    while k < stop.before:
        if plan.cut_before(k):
            worker.record("resume", k=k)
        g = await worker.compute(problem.gradient, w, problem.batch(j, k), index=k)
        local = descend(w, plan.eta(k), g)
        stop.tell(k)
        update = Message(UPDATE, k, j, vector=local)
        for i in neighbours:
            worker.send(i, update)
        estimates = {j: local}
        for i in neighbours:
            estimates[i] = (await worker.receive(message(UPDATE, k, i))).vector
        w = combine(row, estimates)
        del update, estimates  # their memory is needed before the next average
        worker.record("average", k=k, w=w, active=neighbours, row=row)
        stop.hear()
        if plan.barrier == "global":
            await worker.barrier(worker.workers)
        k += 1
        if plan.cut_before(k):
            await worker.checkpoint(partial(State, k, w, stop=stop.agreed))
            stop = Stop(worker, plan, stop.agreed)  # tells again: nobody knows who was told
    return State(k, w, stop=stop.agreed)


class Stop:
    """The workers' agreement on the last iteration when `max_time` is over, without a centre.

    The worker whose time is over in iteration k names k + diameter + 1. It tells its neighbours
    before its UPDATE(k), they tell theirs before UPDATE(k+1), and so on. Links keep their order, so
    everybody knows before anybody gets there, and the smallest number named holds.
    """

    def __init__(self, worker: Worker, plan: Plan, agreed: int | None):
        self.before = plan.iterations if agreed is None else agreed
        self._told = plan.iterations
        self._worker, self._plan = worker, plan

    @property
    def agreed(self) -> int | None:
        """The iteration before which everybody stops for lack of time; None: not for that."""
        return self.before if self.before < self._plan.iterations else None

    def tell(self, k: int) -> None:
        """Before UPDATE(k): notice the time, pass news on."""
        worker = self._worker
        if worker.now() >= self._plan.max_time:
            self.before = min(self.before, k + self._plan.diameter + 1)
        if self.before < self._told:
            self._told = self.before
            for i in self._plan.neighbours[worker.rank]:
                worker.send(i, Message(STOP, self.before, worker.rank))

    def hear(self) -> None:
        """After the UPDATE(k) of all neighbours: what they said before."""
        for news in self._worker.take(_is_stop):
            self.before = min(self.before, news.iteration)


def _is_stop(m: Message) -> bool:
    return m.kind is STOP
