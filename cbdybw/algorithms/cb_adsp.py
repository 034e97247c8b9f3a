"""cb-ADSP: ADSP's control of the commit rate for workers on a graph, without a centre.

This is ours, from two papers: consensus by Metropolis weights (arXiv 2102.06280) at the pace of
ADSP (arXiv 1911.06949). Every worker goes local steps as fast as it can. Exchange k, which stands
for a commit, is due at the same time (k+1)Γ/ΔC by every worker's clock, so that all have made
equally many: fast workers go more steps between two exchanges, as in ADSP. A worker does not wait
for an exchange either. It sends its estimate x_j(k), goes on stepping, and when the neighbours'
have come it takes over the difference that averaging would have made:

    w_j ← w_j + Σ_{i∈N_j} P_ij (x_i(k) - x_j(k))

P is symmetric, so these differences sum to zero: an exchange never moves the mean of the estimates.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from cbdybw.algorithms.plan import UPDATE, Plan, State, message
from cbdybw.clusters.worker import Message, Worker
from cbdybw.mixing import combine, descend, metropolis
from cbdybw.problem import Problem


async def cb_adsp(worker: Worker, problem: Problem, plan: Plan, state: State) -> State:
    """Worker j = `worker.rank` from exchange `state.k` on; returns its last state.

    The run ends with the last exchange that is due by `plan.max_time`, which all workers know.
    """
    j, neighbours = worker.rank, plan.neighbours[worker.rank]
    row = metropolis(j, len(neighbours), {i: len(plan.neighbours[i]) for i in neighbours})
    between = plan.pace.period / plan.pace.rate
    exchanges = int(min(plan.iterations, plan.max_time // between))
    k, w, steps = state.k, state.w, int(state.memory.get("steps", 0))

    while k < exchanges:
        if plan.cut_before(k):
            worker.record("resume", k=k)
        sent, begun = {}, steps  # sent: x_i(k) of this worker and of those that have come
        while len(sent) <= len(neighbours):
            g = await worker.compute(problem.gradient, w, problem.batch(j, steps), index=steps)
            w = descend(w, plan.eta(steps), g)
            steps += 1
            if j not in sent and worker.now() >= (k + 1) * between:
                sent[j] = w
                for i in neighbours:
                    worker.send(i, Message(UPDATE, k, j, vector=w))
            sent |= {m.source: m.vector for m in worker.take(message(UPDATE, k))}
        w = w + (combine(row, sent) - sent[j])
        worker.record("average", k=k, w=w, active=neighbours, row=row, gradients=steps - begun)
        k += 1
        if plan.cut_before(k) and k < exchanges:
            memory = {"steps": np.array(steps)}
            await worker.checkpoint(partial(State, k, w, memory=memory))
    return State(k, w, memory={"steps": np.array(steps)})
