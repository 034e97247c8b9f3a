"""Backup workers at a parameter server: an iteration takes the fastest, b of N are left out.

The first server sees whose pushes come first and tells the other servers, so that all shards take
the same gradients. Policies of a worker that is left out:
    drop: it abandons its gradient when the new model comes and begins anew with everybody.
    carry: it keeps computing; its gradient, by then of an older model, joins the iteration that is
        open when it arrives, and it gets the model that comes of that. Each gradient is used once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

import numpy as np

from cbdybw.algorithms.plan import CLOSE, Plan, State
from cbdybw.algorithms.rooms import PUSH, Shard, take_part
from cbdybw.clusters.worker import Message, Worker
from cbdybw.mixing import combine, descend
from cbdybw.problem import Problem

WARM_UP = 10  # iterations of dbw that wait for everybody, to begin with [choice]
FULL_WAIT_EVERY = 50  # iterations of dbw after which one waits for everybody again [choice]
MEMORY = 0.95  # weight in the means of dbw that an observation keeps at the next one [choice]


async def ps_backup(worker: Worker, problem: Problem, plan: Plan, state: State) -> State:
    """Synchronous SGD with b = `plan.backup_workers` backup workers.

    w(k) = w(k-1) - η(k) 1/(N-b) Σ_j U_j over the N-b first to arrive, summed in rank order. Source:
    Chen et al., arXiv 1604.00981, who discard the gradients that come late: of the policies, drop
    is the nearest, but that a worker stops computing in vain as soon as the new model comes.
    """
    serve = partial(serve_fastest, n=plan.workers - plan.backup_workers)
    return await take_part(worker, problem, plan, state, serve)


async def serve_fastest(shard: Shard, n: int) -> None:
    """A server of ps_backup, until it halts."""
    arrivals = Arrivals(shard)
    while True:
        pushes = await arrivals.fastest(n)
        descend_along(shard, mean_of(pushes))
        arrivals.answer(pushes)


async def dbw(worker: Worker, problem: Problem, plan: Plan, state: State) -> State:
    """Dynamic backup workers: how many are waited for is chosen anew in every iteration.

    As ps_backup, with n(k) the n that promises the largest decrease of the loss per second, see
    `how_many`. Source: Xu, Neglia and Sebastianelli, arXiv 2004.14696; the rule is theirs, what it
    is told is estimated as `Estimates` says [choice]. Where only time is simulated there is nothing
    to gain, and it waits for everybody.
    """
    return await take_part(worker, problem, plan, state, serve_chosen)


async def serve_chosen(shard: Shard) -> None:
    """A server of dbw, until it halts."""
    arrivals, estimates = Arrivals(shard), Estimates(shard.memory, len(shard.workers))
    while True:
        k, eta = shard.k, shard.plan.eta(shard.k)
        pushes = await arrivals.fastest(estimates.choose(k, eta))
        mean = mean_of(pushes)
        descend_along(shard, mean)
        arrivals.answer(pushes)
        part = estimates.squares(pushes.values(), mean)  # of this shard; the servers add them up
        squares = await shard.worker.allreduce(part, shard.worker.servers)
        estimates.learn(eta, len(pushes), squares, arrivals.seconds)


def mean_of(pushes: dict[int, np.ndarray]) -> np.ndarray:
    """ḡ, the mean of the pushes, summed in rank order."""
    return combine(dict.fromkeys(pushes, 1 / len(pushes)), pushes)


def descend_along(shard: Shard, mean: np.ndarray) -> None:
    shard.w = descend(shard.w, shard.plan.eta(shard.k), mean)


class Arrivals:
    """The pushes that come in, and who takes part in an iteration.

    Attributes:
        seconds: from the beginning of the latest iteration to its first, second, … push.
    """

    def __init__(self, shard: Shard):
        self._shard, self._worker = shard, shard.worker
        self._carry = shard.plan.policy == "carry"
        self._pushes: dict[int, np.ndarray] = {}  # not used yet, by rank
        self._begin = shard.worker.now()
        self.seconds: list[float] = []

    async def fastest(self, n: int) -> dict[int, np.ndarray]:
        """The pushes of the open iteration, in rank order: the n that come first at the first
        server, which says to the others whose they are."""
        self.seconds = []
        if self._shard.is_first:
            while len(self._pushes) < n:
                await self._next()
            members = tuple(sorted(self._pushes))
            for server in self._worker.servers[1:]:
                close = Message(CLOSE, self._shard.k, self._worker.rank, body=members)
                self._worker.send(server, close)
        else:
            members = (await self._shard.receive(CLOSE)).body
            while not self._pushes.keys() >= set(members):
                await self._next()
        return {j: self._pushes.pop(j) for j in members}

    async def _next(self) -> None:
        push = await self._shard.receive(PUSH)
        if self._carry or push.iteration == self._shard.k:
            self._pushes[push.source] = push.vector
            self.seconds.append(self._worker.now() - self._begin)

    def answer(self, members: Iterable[int]) -> None:
        """The iteration is complete: its members get the new model, or everybody does."""
        shard, members = self._shard, list(members)
        shard.complete(gradients=len(members))
        self._begin = self._worker.now()
        if not self._carry:
            self._pushes.clear()
        shard.answer(members if self._carry else shard.workers, shard.k)


def how_many(
    eta: float,
    squared_gradient: float,
    variance: float,
    smoothness: float,
    seconds: np.ndarray,
) -> int:
    """The n to wait for: argmax_n [(η - Lη²/2) ‖∇F‖² - Lη² V/(2n)] / T̂(n), n = 1 … N.

    The numerator bounds from below how much a step along the mean of n gradients lowers the loss
    (arXiv 2004.14696). Of equally good n the largest; all N where no step promises to lower it.

    Args:
        eta: η.
        squared_gradient: ‖∇F‖².
        variance: V = E‖g - ∇F‖² of one worker's gradient.
        smoothness: L, the Lipschitz constant of ∇F.
        seconds: T̂(n) until the n-th gradient is here, non-decreasing, shape (N,).
    """
    n = np.arange(1, len(seconds) + 1)
    gain = (eta - smoothness * eta**2 / 2) * squared_gradient
    gain = gain - smoothness * eta**2 * variance / (2 * n)
    worth = np.full(len(n), -np.inf)
    with np.errstate(divide="ignore"):  # where no time passes, any gain is worth everything
        np.divide(gain, seconds, out=worth, where=gain > 0)
    return len(n) - int(np.argmax(worth[::-1]))


class Estimates:
    """What dbw believes of the gradients and of the time that they take.

    All are means in which older observations weigh less, by `MEMORY` at each new one. How they are
    observed is our choice throughout [choice]; ḡ is the mean of the n gradients of an iteration.
        V: the sample variance Σ_j ‖g_j - ḡ‖² / (n-1), of iterations with n ≥ 2.
        ‖∇F‖²: ‖ḡ‖² - V/n, whose expectation it is. The mean is cut off at 0.
        L: the secant between successive iterations, Δḡ over Δw = -η'ḡ' (a dash: the one before).
            Noise is in both: where ∇F has the slope L along Δw,
            E‖Δḡ‖² = L² ‖Δw‖² + 2L η'V/n' + V/n + V/n', which is solved for L ≥ 0.
        T̂(n): seconds until the n-th gradient came, made non-decreasing in n. They are seen up to
            the n waited for, so everybody is waited for in the first `WARM_UP` iterations and
            after every `FULL_WAIT_EVERY`.
    Under carry some gradients are of older models; they are observed like the others.

    Args:
        memory: where all of it is kept: arrays of a server's state.
        workers: N.
    """

    def __init__(self, memory: dict[str, np.ndarray], workers: int):
        self._memory = memory
        self._variance = Mean(memory, "variance", 1)
        self._gradient = Mean(memory, "squared_gradient", 1)
        self._secant = Mean(memory, "secant", 3)  # ‖Δw‖², η'V/n', ‖Δḡ‖² - V/n - V/n'
        self._seconds = Mean(memory, "seconds", workers)
        self._workers = workers

    @property
    def variance(self) -> float:
        """V."""
        return float(self._variance.values[0])

    @property
    def squared_gradient(self) -> float:
        """‖∇F‖²."""
        return max(0.0, float(self._gradient.values[0]))

    @property
    def smoothness(self) -> float:
        """L."""
        a, b, c = self._secant.values
        return max(0.0, float((np.sqrt(max(0.0, b * b + a * c)) - b) / a)) if a > 0 else 0.0

    @property
    def seconds(self) -> np.ndarray:
        """T̂(1 … N)."""
        return np.maximum.accumulate(self._seconds.values)

    def choose(self, k: int, eta: float) -> int:
        """n(k)."""
        if k < WARM_UP or k % FULL_WAIT_EVERY == 0:
            return self._workers
        return how_many(eta, self.squared_gradient, self.variance, self.smoothness, self.seconds)

    def squares(self, gradients: Iterable[np.ndarray], mean: np.ndarray) -> np.ndarray:
        """‖ḡ‖², Σ_j ‖g_j - ḡ‖² and ‖ḡ - ḡ'‖² of one shard, float32 of shape (3,)."""
        before = self._memory.get("mean", mean)
        self._memory["mean"] = mean = content(mean)
        spread = sum(square(content(g) - mean) for g in gradients)
        return np.array([square(mean), spread, square(mean - content(before))], np.float32)

    def learn(self, eta: float, n: int, squares: np.ndarray, seconds: Sequence[float]) -> None:
        """An iteration had n gradients, the step η, these squares (of the whole vectors), and its
        gradients came after these seconds."""
        norm, spread, change = squares.tolist()
        if n > 1:
            self._variance.add([spread / (n - 1)])
        noise = self.variance / n
        self._gradient.add([norm - noise])
        if "before" in self._memory:
            eta_before, norm_before, noise_before = self._memory["before"].tolist()
            step = eta_before**2 * norm_before
            self._secant.add([step, eta_before * noise_before, change - noise - noise_before])
        self._memory["before"] = np.array([eta, norm, noise])
        self._seconds.add(seconds)


class Mean:
    """Means of several quantities, each of the last observations mostly.

    Kept in `memory[name]`, shape (2, size): sums, and the weights that are in them.
    """

    def __init__(self, memory: dict[str, np.ndarray], name: str, size: int):
        self._sums, self._weights = memory.setdefault(name, np.zeros((2, size)))

    @property
    def values(self) -> np.ndarray:
        """The means; 0 for what has not been observed."""
        return self._sums / np.maximum(self._weights, 1e-300)

    def add(self, observed: Sequence[float]) -> None:
        """Observe the first so many quantities once more."""
        seen = slice(len(observed))
        self._sums[seen] = MEMORY * self._sums[seen] + observed
        self._weights[seen] = MEMORY * self._weights[seen] + 1


def square(v: np.ndarray) -> float:
    """‖v‖², summed in float64."""
    return float(np.sum(np.square(v, dtype=np.float64)))


def content(v: np.ndarray) -> np.ndarray:
    """The values of `v`: none where nothing is learnt."""
    return v if isinstance(v, np.ndarray) else np.zeros(0, np.float32)
