"""What a worker computes in one iteration: a gradient, or several local steps of SGD.

With m = `plan.local_steps` > 1 a worker goes m steps by itself before it speaks to others, as in
local SGD; what it then has to tell is U = Σ_s g(w_s), the sum of its gradients along the way, so
that w - η U is where it has arrived. An algorithm need not know how many steps U stands for.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any

import numpy as np

from cbdybw.algorithms.plan import Plan
from cbdybw.clusters.worker import Match, Worker
from cbdybw.mixing import descend
from cbdybw.problem import Problem


def gradient(
    worker: Worker,
    problem: Problem,
    plan: Plan,
    w: np.ndarray,
    k: int,
    until: Match | None = None,
    free: bool = False,
) -> Awaitable[np.ndarray]:
    """U_j(k) at `w`, shape (dim,), or INTERRUPTED; awaited, it takes as long as m minibatches.

    Iteration k has the minibatches mk … mk+m-1 of the worker. `free`: at no cost in time.
    """
    j, m = worker.rank, plan.local_steps
    work = 0 if free else m
    if m == 1:
        batch = problem.batch(j, k)
        return worker.compute(problem.gradient, w, batch, index=k, work=work, until=until)
    batches = [problem.batch(j, m * k + s) for s in range(m)]
    return worker.compute(_along, problem, w, plan.eta(k), batches, index=k, work=work, until=until)


def _along(problem: Problem, w: np.ndarray, eta: float, batches: Sequence[Any]) -> np.ndarray:
    """Σ_s g(w_s) with w_0 = w and w_{s+1} = w_s - η g(w_s)."""
    total = g = problem.gradient(w, batches[0])
    for batch in batches[1:]:
        w = descend(w, eta, g)
        g = problem.gradient(w, batch)
        total = total + g
    return total
