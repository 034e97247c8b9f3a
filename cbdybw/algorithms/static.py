"""cb-DyBW with a fixed number of backup workers: each waits for all but b of its neighbours.

Source: Xiong et al., arXiv 2102.06280, Algorithm 1 with S_j(k) = the |N_j| - b fastest neighbours,
made symmetric by the handshake of `dybw`. How iterations end without a threshold is a [choice].

Nobody waits for ever. Let m be the smallest iteration that anybody is in. A neighbour of a worker
in m has closed m-1, so that worker may start m, and its gradient ends some day. It then skips m or
sends UPDATE(m). So does each of its neighbours in m, and those that are further have closed m. Thus
from every neighbour it will hear UPDATE(m) or CLOSE(m) in the end, stops waiting, and says CLOSE(m)
before it waits for the CLOSE(m) of neighbours whose UPDATE(m) it has: they are in m or further and
say it by the same argument. Everybody leaves m. Who waits at a cut has closed all before it, and
who has left has said so, which closes all the rest.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import partial

import numpy as np

from cbdybw.algorithms.consensus import cb_full, offer, settle
from cbdybw.algorithms.dybw import handshake
from cbdybw.algorithms.local import gradient
from cbdybw.algorithms.plan import CLOSE, STOP, UPDATE, Plan, State, message
from cbdybw.clusters.worker import Match, Message, Worker
from cbdybw.mixing import descend
from cbdybw.problem import Problem

LEAD = 8
"""No worker is more iterations ahead of a neighbour: what it has sent has to be kept there."""


async def cb_static(worker: Worker, problem: Problem, plan: Plan, state: State) -> State:
    """Worker j = `worker.rank` from `state.k` on; returns its last state.

    A straggler of iteration k is still computing when a neighbour closes k. Under the policy
        carry: it keeps computing, then skips what neighbours have closed and joins the next one;
        drop: it abandons its gradient, w_j(k) = w_j(k-1), and goes on to k+1;
        late: it finishes step k alone, w_j(k) = w_j(k-1) - η(k) g_j, and starts k+1 behind.
    To skip k is to close it: it makes stragglers of those neighbours, too, that are still computing
    k, and frees those that have finished from waiting for this one.

    With b = 0 nobody is left out and there is nothing to agree on: cb_full, neighbours' barrier.
    """
    if plan.backup_workers == 0:
        return await cb_full(worker, problem, replace(plan, barrier="neighbours"), state)
    j, neighbours = worker.rank, plan.neighbours[worker.rank]
    closing = Closing(worker, plan, state)
    k, w, g = state.k, state.w, state.gradient
    drops, goes_alone = plan.policy == "drop", plan.policy == "late"

    while k < closing.stop:
        if plan.cut_before(k):
            worker.record("resume", k=k)
        await closing.reach(k)
        if g is None and not (drops and closing.last >= k):
            until = close_from(k) if drops else None
            g = await gradient(worker, problem, plan, w, k, until)
        if closing.has_come(k):  # S_j(k) = ∅, P_jj(k) = 1
            if goes_alone:
                w = descend(w, plan.eta(k), g)
            if plan.policy != "carry":
                g = None
            for i in neighbours:
                worker.send(i, Message(CLOSE, k, j))
            worker.record("skip", k=k, w=w, used=goes_alone)
        else:
            own = offer(plan, k, w, g)
            for i in neighbours:
                worker.send(i, Message(UPDATE, k, j, vector=own))
            updates = await closing.wait(k)  # for the |N_j| - b fastest
            row = await handshake(worker, k, neighbours, updates)
            closing.agreed(k, updates)
            w, g = settle(plan, k, row, {j: own, **updates}, g), None
            worker.record("average", k=k, w=w, active=[i for i in row if i != j], row=row)
        closing.look_at_the_clock(k)
        k += 1
        if plan.cut_before(k):
            await worker.checkpoint(partial(closing.state, k, w, g))
            closing.hear(k)
    closing.leave(k)
    return closing.state(k, w, g)


class Closing:
    """Which iterations the neighbours of worker j have closed, and what follows from it.

    A worker closes every iteration once and in order, by averaging or by skipping. Links keep their
    order, so a neighbour whose CLOSE(k) comes without an UPDATE(k) before it has skipped k.

    Attributes:
        last: the last iteration that a neighbour is known to have closed.
        stop: the iteration before which worker j stops.
    """

    def __init__(self, worker: Worker, plan: Plan, state: State):
        self._worker, self._plan = worker, plan
        neighbours = plan.neighbours[worker.rank]
        self._enough = max(0, len(neighbours) - plan.backup_workers)
        # Neighbour → the last iteration it is known to have closed. At a cut all are even.
        self._closed = dict.fromkeys(neighbours, state.k - 1)
        self.last = state.k - 1
        self.stop = plan.iterations if state.stop is None else state.stop

    async def reach(self, k: int) -> None:
        """Before iteration k starts: wait for neighbours that are too far behind."""
        while min(self._closed.values(), default=k) < k - 1 - LEAD:
            self._note(await self._worker.receive(close_or_stop))

    def has_come(self, k: int) -> bool:
        """Whether a neighbour has closed k, or a later one."""
        self.hear(k)
        return self.last >= k

    def hear(self, k: int) -> None:
        """Take in all news; drop updates for iterations before k."""

        def news_or_stale(m: Message) -> bool:
            return close_or_stop(m) or (m.kind is UPDATE and m.iteration < k)

        for m in self._worker.take(news_or_stale):
            self._note(m)

    def _note(self, m: Message) -> None:
        if m.kind is CLOSE:
            self._close(m.source, m.iteration)
            self.last = max(self.last, m.iteration)
        elif m.kind is STOP and self._plan.checkpoint_every:  # everybody's
            self.stop = min(self.stop, m.iteration)
        elif m.kind is STOP:  # the sender's alone, who is not ahead of anybody by leaving
            self._close(m.source, self._plan.iterations)

    def _close(self, i: int, k: int) -> None:
        # What `wait` and the handshake have picked out may be newer than what is still to be heard.
        self._closed[i] = max(self._closed[i], k)

    async def wait(self, k: int) -> dict[int, np.ndarray]:
        """Wait for UPDATE(k) of enough neighbours, or of all that do not skip k; i → what i sent.

        Who has come by then counts, be it more than enough. The CLOSE(k) of those whose UPDATE(k)
        is here is left for the handshake.
        """
        worker = self._worker
        missing = {i for i, closed in self._closed.items() if closed < k}
        updates: dict[int, np.ndarray] = {}
        while missing and len(updates) < self._enough:
            m = await worker.receive(news_of(k, missing))
            missing.discard(m.source)
            if m.kind is UPDATE:
                updates[m.source] = m.vector
            else:
                self._note(m)
        for m in worker.take(message(UPDATE, k)):
            updates[m.source] = m.vector
        return updates

    def agreed(self, k: int, members: dict[int, np.ndarray]) -> None:
        """After the handshake of k, in which `members` have said CLOSE(k)."""
        for i in members:
            self._close(i, k)
            self.last = k

    def look_at_the_clock(self, k: int) -> None:
        """After iteration k: when the time is over, stop here, or with everybody at the next cut.

        Who is told of a cut is told before it is complete, for its sender has to attend it too.
        """
        worker, plan = self._worker, self._plan
        if worker.now() < plan.max_time or self.stop <= plan.end_after(k):
            return
        self.stop = plan.end_after(k)
        if plan.checkpoint_every:
            worker.broadcast(Message(STOP, self.stop, worker.rank))

    def leave(self, k: int) -> None:
        """Tell the neighbours not to wait in iteration k and later ones, when there are any."""
        if k < self._plan.iterations:
            for i in self._plan.neighbours[self._worker.rank]:
                self._worker.send(i, Message(STOP, k, self._worker.rank))

    def state(self, k: int, w: np.ndarray, g: np.ndarray | None) -> State:
        """What lasts, after all news has been taken in."""
        self.hear(k)
        stop = self.stop if self.stop < self._plan.iterations else None
        return State(k, w, g, stop=stop)


def close_from(k: int) -> Match:
    """Matches the close of iteration k or a later one."""

    def matches(m: Message) -> bool:
        return m.kind is CLOSE and m.iteration >= k

    return matches


def news_of(k: int, missing: Collection[int]) -> Match:
    """Matches what the `missing` say of iteration k: UPDATE, or that they skip it or have left."""

    def matches(m: Message) -> bool:
        if m.source not in missing:
            return False
        said = m.kind is UPDATE or m.kind is CLOSE
        return (said and m.iteration == k) or (m.kind is STOP and m.iteration <= k)

    return matches


def close_or_stop(m: Message) -> bool:
    """Matches every word on what the sender takes no more part in."""
    return m.kind is CLOSE or m.kind is STOP
