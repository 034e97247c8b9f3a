"""cb-DyBW: a threshold decides in each iteration which slow neighbours are left out.

Source: Xiong et al., arXiv 2102.06280, Algorithm 1 (cb-DyBW) and Algorithm 2 (DTUR). How the
threshold is agreed on without a centre is this project's protocol; WORKSPACE_NOTES.md explains it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial

import numpy as np

from cbdybw.algorithms.consensus import offer, settle
from cbdybw.algorithms.epochs import Dtur, Epochs
from cbdybw.algorithms.local import gradient
from cbdybw.algorithms.plan import CLOSE, THRESHOLD, UPDATE, VISITED, Plan, State, message
from cbdybw.algorithms.repair import PEER_LOST, surviving
from cbdybw.clusters.worker import INTERRUPTED, Match, Message, Worker
from cbdybw.mixing import descend, metropolis
from cbdybw.problem import Problem


@surviving
async def cb_dybw(worker: Worker, problem: Problem, plan: Plan, state: State) -> State:
    """Algorithms 1 and 2 for worker j = `worker.rank`, from `state.k` on; its last state."""
    epochs = Dtur(len(plan.connecting), plan.edge_rule)
    edges = plan.connecting_edges[worker.rank]
    return await average_by_threshold(worker, problem, plan, state, epochs, edges)


async def average_by_threshold(
    worker: Worker,
    problem: Problem,
    plan: Plan,
    state: State,
    epochs: Epochs,
    edges: Mapping[int, int],
) -> State:
    """Algorithm 1 with the threshold that `epochs` give; `edges` are those of worker j that can be
    visited: neighbour i → number of the edge {i, j}.

    Straggler policies (a straggler has not finished when θ(k) comes):
        carry: it keeps computing and joins the iteration that is open when it finishes.
        drop: it abandons its gradient, w_j(k) = w_j(k-1).
        late: it finishes step k alone, w_j(k) = w̃_j(k), and starts k+1 behind the others.
        paper: as late, but the rest of its step costs no time (virtual cluster only).
    """
    j, neighbours = worker.rank, plan.neighbours[worker.rank]
    threshold = Threshold(worker, plan, state, epochs, edges)
    k, w, g = state.k, state.w, state.gradient
    interruptible = plan.policy in ("drop", "paper")
    goes_alone = plan.policy in ("late", "paper")

    while k < threshold.stop:
        if plan.cut_before(k):
            worker.record("resume", k=k)
        if interruptible and threshold.fired >= k:  # heard of together with an earlier one
            g = INTERRUPTED
        elif g is None:  # 1. a minibatch gradient at w_j(k-1)
            until = threshold_from(k) if interruptible else None
            g = await gradient(worker, problem, plan, w, k, until)
        if threshold.has_come(k):  # θ(k) came first: S_j(k) = ∅, P_jj(k) = 1
            if g is INTERRUPTED and goes_alone:
                g = await gradient(worker, problem, plan, w, k, free=True)
            if goes_alone:
                w = descend(w, plan.eta(k), g)
            if plan.policy != "carry":
                g = None
            worker.record("skip", k=k, w=w, used=goes_alone)
        elif threshold.stop <= k:  # the others have stopped before k
            break
        else:
            own = offer(plan, k, w, g)  # 2. w̃_j(k)
            for i in neighbours:  # 3.
                worker.send(i, Message(UPDATE, k, j, vector=own))
            updates = await threshold.wait(k)  # 4. until θ(k)
            row = await handshake(worker, k, neighbours, updates)  # 5.
            if threshold.stop <= k:
                break
            w, g = settle(plan, k, row, {j: own, **updates}, g), None  # 6.
            active = [i for i in row if i != j]
            worker.record("average", k=k, w=w, active=active, row=row)
            threshold.visited(k, active)
        k += 1
        state.advance(k, w, g)
        if plan.cut_before(k):
            await worker.checkpoint(partial(threshold.state, k, w, g))
            threshold.hear(k)
    return threshold.state(k, w, g)


async def handshake(
    worker: Worker, k: int, neighbours: Sequence[int], updates: Collection[int]
) -> dict[int, float]:
    """Row j of P(k). Edge (i, j) is active iff i and j each have the other's UPDATE(k).

    Each worker tells its neighbours its S and hears S_i from the members of S. They have finished
    iteration k too, so they answer. The weights use the sizes |S| that were told, which both ends
    of an edge know: P is symmetric and doubly stochastic whatever the network does.
    """
    j, members = worker.rank, sorted(updates)
    close = Message(CLOSE, k, j, body=tuple(members))
    for i in neighbours:
        worker.send(i, close)
    sizes = {}
    for i in members:
        told = (await worker.receive(message(CLOSE, k, i))).body
        if j in told:
            sizes[i] = len(told)
    return metropolis(j, len(members), sizes)


class Threshold:
    """Algorithm 2 (DTUR) at worker j: when θ(k) comes, and which edges have been visited.

    The worker that sees an edge complete that is new in this epoch, because it has finished and has
    the other end's UPDATE(k), tells everybody that iteration k ends. That ends k and says no more:
    a threshold may overtake an update on a real network, so the edge counts as visited only when
    the handshake has shown that its two ends averaged.

    Attributes:
        fired: the last iteration known to have ended.
        stop: the iteration before which everybody stops. Without consistent cuts some may learn
            too late, having gone on; the others then leave them alone.
    """

    def __init__(
        self, worker: Worker, plan: Plan, state: State, epochs: Epochs, edges: Mapping[int, int]
    ):
        self._worker, self._plan = worker, plan
        self._epochs, self._edges = epochs.restore(state.visits), edges
        self.fired = state.k - 1
        self.stop = plan.iterations if state.stop is None else state.stop

    def has_come(self, k: int) -> bool:
        """Whether θ(k) has come, or a later one. What is left of ended iterations is dropped."""
        self.hear(max(k, self.fired + 1))
        return self.fired >= k

    def hear(self, oldest: int) -> None:
        """Take in all news; drop what is left of iterations before `oldest`."""

        def news_or_stale(m: Message) -> bool:
            stale = m.iteration < oldest and m.kind < PEER_LOST  # what tells of losses stays
            return m.kind is THRESHOLD or m.kind is VISITED or stale

        for m in self._worker.take(news_or_stale):
            self._note(m)

    def _note(self, m: Message) -> None:
        if m.kind is THRESHOLD:
            self.fired = max(self.fired, m.iteration)
            if m.body:  # the sender's time was over
                self.stop = min(self.stop, self._plan.end_after(m.iteration))
        elif m.kind is VISITED:
            self._epochs.visit(m.iteration, m.body[0])

    async def wait(self, k: int) -> dict[int, np.ndarray]:
        """Wait for θ(k), causing it where this worker is the one to see it; i → w̃_i(k).

        Nothing comes back when the run has ended before k.
        """
        worker = self._worker
        updates: dict[int, np.ndarray] = {}
        told = False
        while self.fired < k < self.stop:
            if not told and self._ends(updates):
                self._fire(k)
                told = True
            m = await worker.receive(update_or_news(k))
            if m.kind is UPDATE:
                updates[m.source] = m.vector
            else:
                self._note(m)
        if self.stop <= k:
            return {}
        for m in worker.take(message(UPDATE, k)):
            updates[m.source] = m.vector
        return updates

    def _ends(self, updates: Iterable[int]) -> bool:
        """Whether a new edge is complete; a worker alone has no edges and waits for none."""
        return len(self._plan.members) == 1 or any(self._is_new(i) for i in updates)

    def _is_new(self, i: int) -> bool:
        """Whether the edge to neighbour i would bring this epoch on."""
        n = self._edges.get(i)
        return n is not None and self._epochs.unvisited(n)

    def _fire(self, k: int) -> None:
        """Tell everybody that iteration k ends, and whether the time is over."""
        worker = self._worker
        over = worker.now() >= self._plan.max_time
        threshold = Message(THRESHOLD, k, worker.rank, body=(1,) if over else ())
        # To itself too: who finishes at this very instant has finished by θ(k).
        worker.send(worker.rank, threshold)
        worker.broadcast(threshold)

    def visited(self, k: int, active: Iterable[int]) -> None:
        """The lower end of each new active edge tells everybody."""
        j = self._worker.rank
        for i in active:
            if j < i and self._is_new(i):
                n = self._edges[i]
                self._worker.broadcast(Message(VISITED, k, j, body=(n,)))
                self._epochs.visit(k, n)

    def state(self, k: int, w: np.ndarray, g: np.ndarray | None) -> State:
        """What lasts, after all news has been taken in."""
        self.hear(k)
        stop = self.stop if self.stop < self._plan.iterations else None
        return State(k, w, g, self._epochs.log, stop)


def threshold_from(k: int) -> Match:
    """Matches a threshold that ends iteration k (or a later one, and k with it)."""

    def matches(m: Message) -> bool:
        return m.kind is THRESHOLD and m.iteration >= k

    return matches


def update_or_news(k: int) -> Match:
    """Matches UPDATE(k), and thresholds and visits of any iteration."""

    def matches(m: Message) -> bool:
        kind = m.kind
        return kind is THRESHOLD or kind is VISITED or (kind is UPDATE and m.iteration == k)

    return matches
