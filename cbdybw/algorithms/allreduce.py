"""allreduce: synchronous SGD, every worker with the mean of all gradients.

Source: the baseline that Lian et al., arXiv 1710.06952, call AllReduce-SGD; Horovod (arXiv
1802.05799) is its usual implementation.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from cbdybw.algorithms.local import gradient
from cbdybw.algorithms.plan import Plan, State
from cbdybw.clusters.worker import Worker
from cbdybw.mixing import descend
from cbdybw.problem import Problem


async def allreduce(worker: Worker, problem: Problem, plan: Plan, state: State) -> State:
    """Any of the N workers, from `state.k` on; returns its last state.

    w(k) = w(k-1) - η(k) (1/N) Σ_j g_j(w(k-1)), the same w on all workers.
    """
    k, w, n = state.k, state.w, plan.workers
    stop = plan.iterations if state.stop is None else state.stop

    while k < stop:
        if plan.cut_before(k):
            worker.record("resume", k=k)
        g = await gradient(worker, problem, plan, w, k)
        total, over = await sum_up(worker, plan, g)
        w = descend(w, plan.eta(k) / n, total)
        worker.record("average", k=k, w=w, active=())
        k += 1
        if over:
            stop = k
        if plan.cut_before(k):
            await worker.checkpoint(partial(State, k, w, stop=k if over else None))
    return State(k, w, stop=k if k < plan.iterations else None)


async def sum_up(worker: Worker, plan: Plan, g: np.ndarray) -> tuple[np.ndarray, bool]:
    """Σ_j g_j, and whether the time of some worker was over when it came here.

    Where time is limited its flag rides along as one more element, so all learn it in the same
    iteration. A timing-only g has no elements: there the flag goes by itself.
    """
    if math.isinf(plan.max_time):
        return await worker.allreduce(g, worker.workers), False
    over = np.array([worker.now() >= plan.max_time], np.float32)
    if isinstance(g, np.ndarray):
        total = await worker.allreduce(np.concatenate([g, over]), worker.workers)
        return total[:-1], bool(total[-1])
    total = await worker.allreduce(g, worker.workers)
    return total, bool((await worker.allreduce(over, worker.workers))[0])
