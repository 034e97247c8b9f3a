"""cb-Full: consensus SGD in which each worker waits for all of its neighbours.

Source: Xiong et al., arXiv 2102.06280, Algorithm 1 with S_j(k) = N_j, the paper's baseline. Also
the two orders of a step, adapt-then-combine and combine-then-adapt, for the whole family.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np

from cbdybw.algorithms.local import gradient
from cbdybw.algorithms.plan import STOP, UPDATE, Plan, State, message
from cbdybw.algorithms.repair import surviving
from cbdybw.clusters.worker import Message, Worker
from cbdybw.mixing import combine, descend, metropolis
from cbdybw.problem import Problem


@surviving
async def cb_full(worker: Worker, problem: Problem, plan: Plan, state: State) -> State:
    """Worker j = `worker.rank` from `state.k` on; returns its last state.

    w̃_j(k) = w_j(k-1) - η(k) g_j(w_j(k-1))
    w_j(k) = P_jj w̃_j(k) + Σ_{i∈N_j} P_ij w̃_i(k)

    or as `offer` and `settle` say for the other order of a step.
    With `plan.barrier == "global"` nobody begins iteration k+1 before everybody has ended k,
    with "neighbours" a worker waits for its neighbours only.
    """
    j, neighbours = worker.rank, plan.neighbours[worker.rank]
    row = metropolis(j, len(neighbours), {i: len(plan.neighbours[i]) for i in neighbours})
    k, w, stop = state.k, state.w, Stop(worker, plan, state.stop)

    while k < stop.before:
        if plan.cut_before(k):
            worker.record("resume", k=k)
        g = await gradient(worker, problem, plan, w, k)
        own = offer(plan, k, w, g)
        stop.tell(k)
        update = Message(UPDATE, k, j, vector=own)
        for i in neighbours:
            worker.send(i, update)
        estimates = {j: own}
        for i in neighbours:
            estimates[i] = (await worker.receive(message(UPDATE, k, i))).vector
        w = settle(plan, k, row, estimates, g)
        del update, estimates  # their memory is needed before the next average
        worker.record("average", k=k, w=w, active=neighbours, row=row)
        stop.hear()
        k += 1
        state.advance(k, w)
        if plan.barrier == "global":
            await worker.barrier(plan.members)
        if plan.cut_before(k):
            await worker.checkpoint(partial(State, k, w, stop=stop.agreed))
            stop = Stop(worker, plan, stop.agreed)  # tells again: nobody knows who was told
    return State(k, w, stop=stop.agreed)


def offer(plan: Plan, k: int, w: np.ndarray, g: np.ndarray) -> np.ndarray:
    """What a worker with estimate `w` = w_j(k-1) and gradient `g` sends in iteration k.

    atc, adapt-then-combine: w̃_j(k) = w_j(k-1) - η(k) g_j, Algorithm 1. cta, combine-then-adapt:
    w_j(k-1) itself, as in D-PSGD (Lian et al. 2017). [choice] The gradient is one at w_j(k-1) in
    both, for a worker computes before it knows what its neighbours have; with a gradient at the
    combined estimate cta would be atc seen half an iteration later.
    """
    return descend(w, plan.eta(k), g) if plan.combine == "atc" else w


def settle(
    plan: Plan, k: int, row: Mapping[int, float], offers: Mapping[int, np.ndarray], g: np.ndarray
) -> np.ndarray:
    """w_j(k) from what the workers of `row` sent: atc Σ_i P_ij w̃_i(k), cta
    Σ_i P_ij w_i(k-1) - η(k) g_j. Alone, with P_jj = 1, a worker comes to w_j(k-1) - η(k) g_j in
    both orders."""
    mean = combine(row, offers)
    return mean if plan.combine == "atc" else descend(mean, plan.eta(k), g)


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
