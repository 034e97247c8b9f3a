"""What must hold in every iteration of a consensus run in which workers are lost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import networkx as nx
import numpy as np

from cbdybw.algorithms.plan import Plan
from cbdybw.clusters.watch import KILL
from cbdybw.clusters.worker import Kind, Worker
from cbdybw.errors import FallenApart
from cbdybw.scar.blocks import Blocks
from cbdybw.scar.checkpoint import Memory
from tests.invariants import Average, check_averages

SHARDS = 3
Deaths = tuple[int, ...]


class Story:
    """What the workers say, and what each has to compute at next."""

    def __init__(self, plan: Plan):
        self.plan, n = plan, plan.workers
        self.averages: dict[tuple[Deaths, int], list[Average]] = defaultdict(list)
        self.skips: set[tuple[Deaths, int, int]] = set()
        self.sent: dict[tuple[Deaths, int, int], np.ndarray] = {}
        self.met: dict[Deaths, dict[int, tuple[int, int]]] = defaultdict(dict)  # (k, has one)
        self.deaths: dict[int, Deaths] = dict.fromkeys(range(n), (0,) * n)
        self.died: list[tuple[float, int, bool]] = []  # time, rank, whether it is replaced
        self.recovered: list[dict[str, Any]] = []
        self.restored = 0  # starts of new processes that have been checked
        self._estimate: dict[int, np.ndarray] = {}
        self._lives, self._checked = dict.fromkeys(range(n), 0), dict.fromkeys(range(n), True)
        self._handed: dict[tuple[int, int], np.ndarray] = {}  # MODEL: (source, dest) → the last

    def store(self, dim: int) -> Callable[[int], Memory]:
        stores: dict[int, Memory] = {}
        blocks = Blocks.shards(dim, SHARDS)
        self._store = lambda rank: stores.setdefault(rank, Memory(blocks))
        return self._store

    def record(self, rank: int, time: float, event: str, fields: dict[str, Any]) -> None:
        if event == "lost":
            self.died.append((time, rank, fields["replaced"]))
        elif event == "recovered":
            self.recovered.append(fields | {"time": time})
        else:
            k, w, deaths = fields["k"], fields["w"], self.deaths[rank]
            self._estimate[rank] = w
            if event == "skip":
                assert (deaths, k, rank) not in self.skips
                self.skips.add((deaths, k, rank))
            else:
                average = Average(k, rank, tuple(fields["active"]), fields["row"], w)
                self.averages[deaths, k].append(average)

    def listen(self, worker: Worker) -> None:
        rank, n, send, compute = worker.rank, worker.size, worker.send, worker.compute

        def noted_send(dest, message):
            if message.kind is Kind.UPDATE:
                self.sent[self.deaths[rank], message.iteration, rank] = message.vector
            elif message.kind is Kind.MODEL:
                if worker.restarts == self._lives[rank]:  # else it has just been handed its own
                    assert message.vector.tobytes() == self._estimate[rank].tobytes()
                self._handed[rank, dest] = message.vector
            elif message.kind is Kind.REPAIR:
                self.deaths[rank] = deaths = tuple(message.body[:n])
                self.met[deaths][rank] = (message.iteration, message.body[n])
                self._checked[rank] = False
            send(dest, message)

        async def noted_compute(fn, w, *rest, **options):
            if not self._checked[rank]:
                self._check_start(worker, w)
            self._estimate[rank], self._checked[rank] = w, True
            return await compute(fn, w, *rest, **options)

        worker.send, worker.compute = noted_send, noted_compute
        self._estimate[rank] = np.arange(len(self._store(rank)._values), dtype=np.float32) + rank

    def _check_start(self, worker: Worker, w: np.ndarray) -> None:
        """After a repair: at the estimate it had, at what was saved of it, between neighbours."""
        rank, recovery = worker.rank, self.plan.survival.recovery
        said = self.met[self.deaths[rank]]
        is_new, self._lives[rank] = worker.restarts > self._lives[rank], worker.restarts
        if is_new and said[rank][1]:
            return  # it was restored at an earlier meeting, and this one came before it computed
        self.restored += is_new
        assert is_new == (not said[rank][1])
        if recovery == "full" or (is_new and recovery == "partial"):
            store = self._store(rank)
            expected = store.read(np.arange(len(store.blocks)))[0]
        elif is_new:
            around = self.plan.neighbours
            old = [i for i in around[rank] if said[i][1]]
            weights = [1 / (1 + max(len(around[i]), len(around[rank]))) for i in old]
            estimates = [self._handed[i, rank].astype(np.float64) for i in old]
            expected = np.average(estimates, axis=0, weights=weights)
            np.testing.assert_allclose(w, expected, rtol=1e-6, atol=1e-6)
            return
        else:
            expected = self._estimate[rank]
        assert w.tobytes() == expected.tobytes()


def check(scenario: Any, result: Any) -> None:
    """Assert everything that must hold."""
    story = result.story
    graph = nx.Graph()
    graph.add_nodes_from(range(scenario.workers))
    graph.add_edges_from(scenario.plan.edges)
    _check_end(scenario, result, graph)
    killed = {fault.rank for fault in scenario.faults if fault.kind == KILL}
    alone = {0} if len(result.lost) == scenario.workers - 1 else set()  # it meets nobody
    for (deaths, k), averages in story.averages.items():
        done = {a.j: a for a in averages}
        assert len(done) == len(averages)
        assert not story.skips & {(deaths, k, j) for j in done}
        missing = {i for a in averages for i in a.active} - done.keys()
        for i in missing:  # it has died in k, or met the others while it was in k
            assert i in killed | alone or any(
                said.get(i, (None,))[0] == k for met, said in story.met.items() if met > deaths
            )
        for a in averages:
            assert abs(sum(a.row.values()) - 1) < 1e-12
            for i in set(a.active) & done.keys():
                assert done[i].row[a.j] == a.row[i]
        if len(done) > 1 and not missing:
            sent = {(k, j): story.sent[deaths, k, j] for j in done}
            check_averages(scenario.workers, scenario.plan.neighbours, averages, sent, {})


def _check_end(scenario: Any, result: Any, graph: nx.Graph) -> None:
    """The run goes on exactly as long as those who live are connected."""
    story, replaces = result.story, scenario.plan.survival.replaces
    lost = {rank for _, rank, replaced in story.died if not replaced}
    for recovery in story.recovered:
        assert replaces or nx.is_connected(graph.subgraph(set(graph) - set(recovery["lost"])))
    if result.loss is None:
        for j, state in result.states.items():
            if story._checked[j]:
                assert state.w.tobytes() == story._estimate[j].tobytes()
        return
    assert isinstance(result.loss, FallenApart)
    if not replaces:
        assert not nx.is_connected(graph.subgraph(set(graph) - lost))
    else:  # a new worker has nobody to begin from
        assert scenario.plan.survival.recovery == "neighbour"
        new = [{j for j, (_, has) in said.items() if not has} for said in story.met.values()]
        assert any(set(graph[j]) <= some for some in new for j in some)
