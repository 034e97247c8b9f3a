"""Faults on the virtual cluster: what strikes a rank, who cannot hear for a while, how a death
becomes known, and the new processes that take the places of the dead.

A rank that stands still or is disconnected hears nothing. What comes meanwhile waits and keeps the
order of its link: it comes when the spell is over, after everything else of that instant. Without
a spell and without the dead everything happens as on a cluster without faults, bit for bit.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from cbdybw.clusters.instants import CONTROL, DATA, LATE
from cbdybw.clusters.watch import CORRUPT, KILL
from cbdybw.clusters.worker import FIRST_CONTROL, Message
from cbdybw.errors import PeerLost

if TYPE_CHECKING:
    from cbdybw.clusters.virtual import VirtualCluster
    from cbdybw.clusters.virtual_worker import Activity, VirtualWorker

NOTICED_AFTER = 0.02
"""[choice] Seconds after which the living know of a death: ranks of Open MPI take 10 to 40 ms."""

_ROOT = 0


class Arrival(NamedTuple):
    """A message under way, and who talks to whom in which life."""

    node: VirtualWorker
    message: Message
    life: int
    theirs: int
    number: int  # of its first event: the order of its link
    waited: bool


class Mortality:
    """The faults of one run.

    Args:
        replaces: whether a new process takes the place of one that dies, once that is noticed and
            as long as the root is at work.
        corrupt: damages the running checkpoint of a rank.

    Attributes:
        deaths: rank → how often it has died, as is known by now.
    """

    def __init__(
        self, cluster: VirtualCluster, replaces: bool, corrupt: Callable[[int], None] | None
    ):
        self._cluster, self._replaces, self._corrupt = cluster, replaces, corrupt
        self.deaths: dict[int, int] = {}
        self._held: dict[tuple[int, int], float] = {}  # link → when the last that waited comes

    # What strikes

    def watch_the_clock(self, node: VirtualWorker) -> None:
        """Have the next fault of `node` that comes by the clock come."""
        if (at := node._watch.next_time()) < float("inf"):
            self._cluster._at(max(at, self._cluster.time), DATA, self._due, node)

    def _due(self, node: VirtualWorker) -> None:
        if not node._finished:
            if self.strikes_dead(node):
                self.bury(node)
            else:
                self.watch_the_clock(node)

    def strikes_dead(self, node: VirtualWorker) -> bool:
        """What is due strikes `node`; whether it dies of that. Its watch itself knows of spells."""
        dies = False
        for fault in node._watch.due(node._iteration, self._cluster.time):
            dies |= fault.kind == KILL
            if fault.kind == CORRUPT and not dies:
                self._corrupt(node.rank)
        return dies

    # Who cannot hear

    def post(self, sender: VirtualWorker, dest: int, message: Message) -> None:
        """Let the message come when both its ends are able to talk."""
        cluster, now, node = self._cluster, self._cluster.time, self._cluster._nodes[dest]
        itself = dest == sender.rank
        leaves = sender._watch.wakes(now) if itself else sender._watch.hears(now)
        lives = sender.restarts, node.restarts
        hold = partial(self._hold, sender, node, message, lives, leaves - now)
        if itself or cluster._network.instant:
            hold(now, False, prompt=True)
        elif cluster._network.shares:
            cluster._share(sender.rank, dest, message, hold)
        else:
            hold(*cluster._network.arrival(sender.rank, dest, message, now))

    def _hold(
        self,
        sender: VirtualWorker,
        node: VirtualWorker,
        message: Message,
        lives: tuple[int, int],
        later: float,
        due: float,
        behind: bool,
        prompt: bool = False,
    ) -> None:
        """The message, which leaves `later` than it was sent, would else arrive when `due`."""
        cluster, link = self._cluster, (sender.rank, node.rank)
        at = node._watch.wakes(due + later) if node is sender else node._watch.hears(due + later)
        before = self._held.get(link, -1.0)
        waits = at > due or at <= before
        if waits:
            self._held[link] = at = max(at, before)
        control = message.kind >= FIRST_CONTROL
        if prompt and not waits:
            if control:
                sender._control_sent = cluster.time
            elif sender._control_sent != cluster.time:
                cluster._deliver((node, message))
                return
            behind = True
        cluster._last_arrival = max(cluster._last_arrival, at)
        place = CONTROL if control or behind or waits else DATA
        cluster._at(
            at, place, self._arrive, Arrival(node, message, *lives, cluster._number + 1, waits)
        )

    def _arrive(self, arrival: Arrival) -> None:
        """Nothing is heard of the dead once their death is known, nor by those who follow them.
        What a spell that has begun meanwhile holds back stays in its place on its link."""
        node, message, life, theirs, number, waited = arrival
        if life != self.deaths.get(message.source, 0) or theirs != node.restarts:
            return
        now, link = self._cluster.time, (message.source, node.rank)
        itself = message.source == node.rank
        at = node._watch.wakes(now) if itself else node._watch.hears(now)
        before = self._held.get(link, -1.0)
        if at > now or (before == now and not waited):
            self._held[link] = max(at, before)
            event = at, CONTROL + number, self._arrive, arrival._replace(waited=True)
            heapq.heappush(self._cluster._heap, event)
        else:
            self._cluster._deliver((node, message))

    def calm(self) -> bool:
        """Whether everybody can hear, and nothing waits that was said before."""
        now = self._cluster.time
        return all(node._watch.hears(now) == now for node in self._cluster._nodes) and not any(
            at >= now for at in self._held.values()
        )

    def resume(self, activity: Activity, value: Any) -> None:
        """Resume an activity when its rank can hear what happened."""
        cluster = self._cluster
        at = activity.worker._watch.hears(cluster.time)
        if at > cluster.time:
            cluster._at(at, LATE, cluster._ready.append, (activity, value))
        else:
            cluster._ready.append((activity, value))

    # Deaths

    def bury(self, node: VirtualWorker) -> None:
        """`node` dies, which the others notice in a moment."""
        node._finish()
        self._cluster._at(self._cluster.time + NOTICED_AFTER, LATE, self._notice, node)

    def _notice(self, node: VirtualWorker) -> None:
        cluster, rank = self._cluster, node.rank
        count = self.deaths[rank] = self.deaths.get(rank, 0) + 1
        replaced = self._replaces and not cluster._nodes[_ROOT]._finished
        fields = {"k": node._iteration, "replaced": replaced}
        cluster._recorder.record(rank, cluster.time, "lost", fields)
        if replaced:
            node._begin_anew()
            cluster._start(node, cluster._main(node))
            self.watch_the_clock(node)
        else:
            cluster.lost.append(rank)
            cluster._unfinished -= 1
        for other in cluster._nodes:
            if other is not node:
                self._tell((other, other.restarts, rank, count))
        self._break_collectives(rank)

    def _tell(self, news: tuple[VirtualWorker, int, int, int]) -> None:
        node, life, rank, count = news
        if node._finished or node.restarts != life:
            return
        at = node._watch.hears(self._cluster.time)
        if at > self._cluster.time:
            self._cluster._at(at, DATA, self._tell, news)
        else:
            node._lose(rank, count)

    def _break_collectives(self, rank: int) -> None:
        """Who waits in one for `rank` is told, even if it had come: others may be gone. Those who
        have forgiven it go on without it."""
        cluster = self._cluster
        for key in [key for key in cluster._arrivals if rank in key[1]]:
            living = [a for a in cluster._arrivals.pop(key) if not a.activity.over]
            if not all(rank in arrival.activity.worker._forgiven for arrival in living):
                for arrival in living:
                    self.resume(arrival.activity, PeerLost(rank))
            elif living:
                cluster._arrivals[key] = living
                cluster._look_at(key)
