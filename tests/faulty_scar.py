"""What must hold in every iteration of a SCAR run in which ranks are lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from cbdybw.clusters.watch import KILL
from cbdybw.clusters.worker import Kind, Worker
from cbdybw.errors import PeerLost
from cbdybw.problem import iterate
from cbdybw.scar.blocks import Blocks, euclidean
from cbdybw.scar.checkpoint import Memory

BLOCKS = 12


class Ledger:
    """x tells what has entered it: part j of n in iteration k adds n at (k, j), and 1 at a last
    place, in every block."""

    distance = staticmethod(euclidean)

    def __init__(self, iterations: int, workers: int):
        self.shape = BLOCKS, iterations * workers + 1
        self.workers, self.dim = workers, BLOCKS * self.shape[1]
        self.blocks = Blocks.rows(*self.shape)

    def initial(self, rng: np.random.Generator) -> np.ndarray:
        return np.zeros(self.dim, np.float32)

    def part(self, x: np.ndarray, j: int, n: int, k: int) -> np.ndarray:
        part = np.zeros(self.shape, np.float32)
        part[:, k * self.workers + j] = n
        part[:, -1] = 1
        return part.ravel()


class Model(NamedTuple):
    """What a worker computes at: x(k), as number j of n, when so many had died of every rank."""

    deaths: tuple[int, ...]
    k: int
    j: int
    n: int
    rank: int
    x: np.ndarray


class Write(NamedTuple):
    """What a server has saved; `gained` from the copies of another."""

    server: int
    members: np.ndarray
    saved_at: np.ndarray
    packed: np.ndarray
    gained: bool


class Noted(Memory):
    """A store all of whose writes are kept."""

    def __init__(self, server: int, blocks: Blocks, events: list):
        super().__init__(blocks)
        self._server, self._events = server, events

    def write(self, k, members, packed, then=None) -> None:
        gained = isinstance(k, np.ndarray)
        at = np.broadcast_to(k, len(members)).copy()
        self._events.append(Write(self._server, members.copy(), at, packed.copy(), gained))
        super().write(k, members, packed, then)


class Story:
    """What happens to the model, in order."""

    def __init__(self, workers: int, servers: int):
        self.events: list[Model | Write] = []
        self.deaths = dict.fromkeys(range(workers + servers), (0,) * (workers + servers))

    def store(self, blocks: Blocks) -> Callable[[int], Noted]:
        stores: dict[int, Noted] = {}
        return lambda rank: stores.setdefault(rank, Noted(rank, blocks, self.events))

    def record(self, rank: int, time: float, event: str, fields: dict[str, Any]) -> None:
        assert event in ("begin", "update", "lost", "recovered")

    def listen(self, worker: Worker) -> None:
        rank, size, send, compute = worker.rank, worker.size, worker.send, worker.compute

        def noted_send(dest, message):
            if message.kind is Kind.REPAIR:
                self.deaths[rank] = tuple(message.body[:size])
            send(dest, message)

        async def noted_compute(fn, x, j, n, k, **options):
            self.events.append(Model(self.deaths[rank], k, j, n, rank, x.copy()))
            return await compute(fn, x, j, n, k, **options)

        worker.send, worker.compute = noted_send, noted_compute


def check(scenario: Any, result: Any) -> None:
    """Every model follows from the one before, from what was saved, and from nothing else."""
    workers, servers = scenario.workers, range(scenario.workers, scenario.ranks)
    killed = {fault.rank for fault in scenario.faults if fault.kind == KILL}
    if result.loss is not None:
        assert isinstance(result.loss, PeerLost)
        assert killed.issuperset(servers)
    story = result.story
    events = list(story.events)
    if result.loss is None:
        living = [rank for rank in range(workers) if rank in result.states]
        last = Model(story.deaths[0], scenario.plan.iterations, 0, 0, 0, result.states[0].w)
        events.append(last)
        for j in living:
            assert result.states[j].w.tobytes() == last.x.tobytes()
    chain = Chain(scenario)
    for event in events:
        (chain.write if isinstance(event, Write) else chain.model)(event)


class Chain:
    """The models of a run, one after the other."""

    def __init__(self, scenario: Any):
        self._workers, self._full = scenario.workers, scenario.plan.survival.recovery == "full"
        self._problem = Ledger(scenario.plan.iterations, scenario.workers)
        self._last: Model | None = None
        self._gained: dict[int, np.ndarray] = {}  # block → its value, since the last model
        self._holder = np.full(BLOCKS, -1)
        self._killed = {fault.rank for fault in scenario.faults if fault.kind == KILL}
        self._saved: dict[int, list[tuple[int, np.ndarray]]] = {b: [] for b in range(BLOCKS)}

    def write(self, event: Write) -> None:
        """What is gained is the newest copy of each block, its value and its iteration, and it is
        a block of a server that has died; nobody else's blocks are saved."""
        blocks, before = self._problem.blocks, self._holder[event.members]
        if event.gained:
            assert event.server not in before
            assert self._killed.issuperset(before)
        else:
            assert set(before) <= {-1, event.server}
        self._holder[event.members] = event.server
        rows = event.packed.reshape(len(event.members), -1)
        for block, at, value in zip(event.members, event.saved_at, rows, strict=True):
            copies = self._saved[block]
            if event.gained:
                newest = max(copies, key=lambda copy: copy[0])[0]
                assert at == newest
                assert any(at == k and value.tobytes() == v.tobytes() for k, v in copies)
                self._gained[block] = value
            copies.append((int(at), value))
        assert blocks.subset(event.members).dim == event.packed.size

    def model(self, model: Model) -> None:
        last = self._last
        self._check_place(model)
        if last is not None and (last.deaths, last.k) == (model.deaths, model.k):
            assert model.x.tobytes() == last.x.tobytes(), "all workers have the same model"
            return
        if last is not None and last.deaths == model.deaths:
            assert model.k == last.k + 1
            assert not self._gained
            expected = iterate(self._problem, last.x, last.k, last.n)
            assert model.x.tobytes() == expected.tobytes()
        else:
            self._check_recovered(model)
        self._last, self._gained = model, {}

    def _check_place(self, model: Model) -> None:
        living = [j for j in range(self._workers) if not model.deaths[j]]
        if model.n:
            assert (model.n, model.rank) == (len(living), living[model.j])

    def _check_recovered(self, model: Model) -> None:
        """Lost blocks are what was saved of them; the others are as they were, or have completed
        the open iteration, with all parts but perhaps those of workers who have died in it."""
        last = self._last
        n = self._workers
        if last is None:
            before = np.zeros(self._problem.shape, np.float32)
            last = Model((0,) * len(model.deaths), 0, 0, n, 0, before)
            assert model.k == 0 or (model.n == 0 and model.k == 0)
        assert model.k - last.k in (0, 1), "no iteration is left out"
        then = [j for j in range(n) if not last.deaths[j]]
        lost = [place for place, j in enumerate(then) if model.deaths[j]]
        used: set[int] = set()
        x, before = (v.reshape(self._problem.shape) for v in (model.x, last.x))
        for block in range(BLOCKS):
            if self._full:
                copies = [v for k, v in self._saved[block] if k <= model.k]
                at = max(k for k, _ in self._saved[block] if k <= model.k)
                copies = [v for k, v in self._saved[block] if k == at]
                assert any(x[block].tobytes() == v.tobytes() for v in copies)
            elif block in self._gained:
                assert x[block].tobytes() == self._gained[block].tobytes()
            elif model.k == last.k:
                assert x[block].tobytes() == before[block].tobytes()
            else:
                change = x[block] - before[block]
                own = change[last.k * n : last.k * n + n]
                whole = np.where(np.arange(n) < len(then), len(then), 0)
                for place in lost:
                    if own[place] == 0:
                        whole[place] = 0
                    else:
                        used.add(place)
                np.testing.assert_array_equal(own, whole)
                assert np.count_nonzero(change[:-1]) == np.count_nonzero(own)
                assert change[-1] == np.count_nonzero(own)
        if model.k > last.k and model.deaths[n:] == last.deaths[n:] and not self._full:
            assert used.issuperset(lost), "some server had completed the iteration with all parts"
