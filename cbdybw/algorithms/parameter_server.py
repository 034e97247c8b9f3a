"""Parameter servers that wait for all workers, for none, or for the slowest: BSP, ASP and SSP.

Workers compute, push and wait as `rooms` says; here is what a server does.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from cbdybw.algorithms.adacomm import averaging
from cbdybw.algorithms.plan import Plan, State
from cbdybw.algorithms.rooms import PUSH, Shard, take_part
from cbdybw.clusters.worker import Worker
from cbdybw.mixing import combine, descend
from cbdybw.problem import Problem


async def bsp(worker: Worker, problem: Problem, plan: Plan, state: State) -> State:
    """Bulk synchronous parallel: an iteration is over when every worker has pushed.

    w(k) = w(k-1) - η(k) (1/N) Σ_j U_j(k), summed in rank order. The baseline of ADSP (arXiv
    1911.06949) and of all that follows. Where minibatches differ in size it is ADACOMM with τ = 1.
    """
    if plan.pace.batch_size:
        return await averaging(worker, problem, plan, state, tau=1)
    return await take_part(worker, problem, plan, state, serve_bsp)


async def serve_bsp(shard: Shard) -> None:
    """A server of BSP, until it halts."""
    workers, plan = shard.workers, shard.plan
    mean = dict.fromkeys(workers, 1 / len(workers))
    while True:
        pushes = {}
        while len(pushes) < len(workers):
            push = await shard.receive(PUSH)
            pushes[push.source] = push.vector
        shard.w = descend(shard.w, plan.eta(shard.k), combine(mean, pushes))
        shard.complete(gradients=len(workers))
        shard.answer(workers, shard.k)


async def asp(worker: Worker, problem: Problem, plan: Plan, state: State) -> State:
    """Asynchronous parallel: each push is used and answered at once; nobody waits for others.

    w ← w - (η(k)/N) U_j on each arrival [choice: N gradients go as far as one step of BSP].
    Iteration k of the run is the N pushes kN … (k+1)N-1, whoever they come from, and the run ends
    after K·N. Shards that see the pushes in another order apply them in that order.
    """
    return await take_part(worker, problem, plan, state, partial(serve_stale, staleness=math.inf))


async def ssp(worker: Worker, problem: Problem, plan: Plan, state: State) -> State:
    """Stale synchronous parallel: ASP in which nobody runs ahead by more than s steps.

    With c_j the pushes of worker j so far, the answer to j is held back while c_j - min_i c_i > s
    = `plan.staleness`. s = 0 has the pace of BSP. (The code of ADSP's authors blocks where
    c_j - min_i c_i ≥ s', so s' = s + 1.)
    """
    serve = partial(serve_stale, staleness=plan.staleness)
    return await take_part(worker, problem, plan, state, serve)


async def serve_stale(shard: Shard, staleness: float) -> None:
    """A server of SSP, or of ASP, until it halts. `shard.memory` has the clocks c, shape (N,)."""
    n, eta = len(shard.workers), shard.plan.eta
    clocks = shard.memory.setdefault("clocks", np.zeros(n, np.int64))
    pushes, slowest = int(clocks.sum()), clocks.min()
    waiting = set()
    while True:
        push = await shard.receive(PUSH)
        j = push.source
        if push.iteration == clocks[j]:  # else it is used already: a cut came before the answer
            shard.w = descend(shard.w, eta(shard.k) / n, push.vector)
            shard.commit(gradients=1)
            clocks[j] += 1
            pushes += 1
            if pushes % n == 0:
                shard.complete(gradients=0)
        waiting.add(j)
        before, slowest = slowest, clocks.min()
        for i in sorted(waiting) if slowest > before else (j,):
            if clocks[i] - slowest <= staleness:
                waiting.remove(i)
                shard.answer((i,), int(clocks[i]))
