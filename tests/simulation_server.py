"""Deterministic simulation: a whole run with parameter servers, drawn from one seed, and checked.

    python -m tests.simulation_server --seed=123

runs that seed alone and prints what was drawn. What is learnt is a ledger: gradient c of worker j
has a mark at a coordinate of its own, in every shard. So the parameters themselves say which
gradients have entered them, in which iteration, with which weight and how often.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from cbdybw.algorithms import ALGORITHMS
from cbdybw.algorithms.backup import FULL_WAIT_EVERY, WARM_UP
from cbdybw.algorithms.plan import Plan, State, shards
from cbdybw.clusters.network import Network
from cbdybw.clusters.virtual import VirtualCluster
from cbdybw.clusters.worker import INTERRUPTED, Kind, keyed_rng
from tests import simulation
from tests.drawn import Cut, Saved, Served, alone

NAMES = ("bsp", "asp", "ssp", "ps_backup", "dbw")
TAIL = 4  # coordinates of each shard that are learnt
MARK = np.float32(2**-10)


def eta(k: int) -> float:
    """Differs from iteration to iteration: a weight says which one it belongs to."""
    return 0.25 * (1 + k % 3)


class Ledger:
    """A quadratic over `TAIL` coordinates of each shard; the others are marks of gradients.

    Args:
        steps: c < steps for every worker.
    """

    def __init__(self, workers: int, servers: int, steps: int, seed: int):
        self.steps, self.seed = steps, seed
        self.shape = (servers, workers * steps + TAIL)
        self.dim = servers * self.shape[1]

    def initial(self, rng: np.random.Generator) -> np.ndarray:
        w = np.zeros(self.shape, np.float32)
        w[:, -TAIL:] = 3 * rng.standard_normal(TAIL)
        return w.ravel()

    def batch(self, rank: int, index: int) -> tuple[int, int]:
        return rank, index

    def gradient(self, w: np.ndarray, batch: tuple[int, int]) -> np.ndarray:
        j, c = batch
        g = np.zeros(self.shape, np.float32)
        g[:, j * self.steps + c] = MARK
        noise = keyed_rng(self.seed, "noise", j, c).standard_normal(TAIL, np.float32)
        g[:, -TAIL:] = w.reshape(self.shape)[:, -TAIL:] - j % 3 + noise
        return g.ravel()

    def entries(self, change: np.ndarray) -> dict[tuple[int, int], float]:
        """(j, c) → weight of each gradient that has moved a shard by `change`."""
        marks = change[:-TAIL]
        return {divmod(n, self.steps): -marks[n] / MARK for n in np.flatnonzero(marks).tolist()}


class Update(NamedTuple):
    """What a server recorded of iteration k."""

    k: int
    time: float
    gradients: int
    w: np.ndarray


@dataclass
class Story:
    """What the ranks of a run tell."""

    updates: dict[int, list[Update]] = field(default_factory=lambda: defaultdict(list))
    commits: dict[int, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    pushed: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    models: dict[tuple[int, int], np.ndarray] = field(default_factory=dict)  # (j, index) → w
    resumed: list[tuple[int, int]] = field(default_factory=list)  # (k, rank)

    def record(self, rank: int, time: float, event: str, fields: dict[str, Any]) -> None:
        if event == "resume":
            self.resumed.append((fields["k"], rank))
        elif event == "commit":
            self.commits[rank].append((fields["k"], fields["gradients"]))
        else:
            assert event == "update"
            update = Update(fields["k"], time, fields["gradients"], fields["w"])
            self.updates[rank].append(update)

    def listen(self, worker, staleness: float = math.inf) -> None:
        """Write down what the worker computes at and what it pushes (again after a cut: once)."""
        rank, send, compute = worker.rank, worker.send, worker.compute
        pushed = self.pushed[rank]

        def noted_send(dest, message):
            first = message.kind is Kind.PUSH and dest == worker.servers[0]
            if first and pushed[-1:] != [message.iteration]:
                pushed.append(message.iteration)
            send(dest, message)

        async def noted_compute(fn, w, batch, *, index, **options):
            slowest = min(len(self.pushed[j]) for j in worker.workers)
            assert index - slowest <= staleness, f"worker {rank} at {index}, slowest {slowest}"
            assert (rank, index) not in self.models, "it computes this again"
            self.models[rank, index] = w
            u = await compute(fn, w, batch, index=index, **options)
            assert u is not INTERRUPTED or options["until"] is not None
            return u

        if rank in worker.workers:
            worker.send, worker.compute = noted_send, noted_compute


class Scenario(Served):
    @property
    def command(self) -> str:
        return f"python -m tests.simulation_server --seed={self.seed}"

    @property
    def problem(self) -> Ledger:
        n = self.workers
        return Ledger(n, self.servers, n * self.plan.iterations + 1, self.seed)


def draw(seed: int) -> Scenario:
    """The scenario of a seed."""
    rng = np.random.default_rng((seed, 2))
    n, servers = int(rng.integers(1, 8)), int(rng.choice([1, 2, 2, 3]))
    algorithm = str(rng.choice(NAMES))
    plan = Plan(
        neighbours=[()] * n,
        connecting=(),
        diameter=0,
        eta=eta,
        iterations=int(rng.integers(1, 80 if algorithm == "dbw" else 25)),
        policy=str(rng.choice(["carry", "drop"])),
        max_time=float(rng.choice([math.inf] * 5 + [0.5, 2.0, 6.0])),
        checkpoint_every=int(rng.choice([0, 1, 3, 7])),
        backup_workers=int(rng.integers(n)),
        staleness=int(rng.integers(5)),
    )
    law = str(rng.choice(simulation.LAWS))
    network = simulation.random_network(rng, n + servers)
    return Scenario(seed, algorithm, plan, servers, law, network)


@dataclass
class Run(Saved):
    """A finished run, and what its ranks said."""

    story: Story = field(default_factory=Story)


def first_states(problem, workers: int, servers: int) -> dict[int, State]:
    """Those of all ranks at iteration 0."""
    w = problem.initial(np.random.default_rng(0))
    return dict(enumerate(State(0, part) for part in [w] * workers + shards(w, servers)))


def run(scenario: Scenario, cut: Cut | None = None, save: bool = True) -> Run:
    """Run the scenario from its start, or from a cut of an earlier run."""
    result, n, plan, problem = Run(), scenario.workers, scenario.plan, scenario.problem
    law = simulation.delay_law(scenario)
    cluster = VirtualCluster(
        n + scenario.servers,
        delay=lambda rank, index: law(rank, index % 100),
        network=Network(**scenario.network),
        seed=scenario.seed,
        trace=result.trace,
        recorder=result.story,
        servers=scenario.servers,
        saver=result if save else None,
    )
    states = cut.states if cut else first_states(problem, n, scenario.servers)
    bound = plan.staleness if scenario.algorithm == "ssp" and not cut else math.inf

    def main(worker):
        result.story.listen(worker, bound)
        return ALGORITHMS[scenario.algorithm].run(worker, problem, plan, states[worker.rank])

    result.states = cluster.run(main, start=cut.time if cut else 0.0)
    return result


def check(scenario: Scenario, result: Run) -> None:
    """Assert everything that must hold in a run, at every iteration."""
    algorithm, plan, servers = scenario.algorithm, scenario.plan, scenario.servers
    end = check_end(plan, result)
    check_story(algorithm, plan, servers, scenario.problem, result.story, end)
    for k, cut in result.cuts.items():
        assert plan.cut_before(k)
        if algorithm in ("asp", "ssp"):
            assert cut.states[scenario.workers].memory["clocks"].sum() == k * scenario.workers
    everybody = [(k, rank) for k in result.cuts for rank in result.states]
    assert sorted(result.story.resumed) == sorted(everybody)


def check_end(plan: Plan, result: Run) -> int:
    """All ranks end before the same iteration: K, or the first whose time is over."""
    (end,) = {state.k for state in result.states.values()}
    times = [update.time for update in result.story.updates[plan.workers]]
    assert len(times) == end
    assert all(time < plan.max_time for time in times[:-1])
    assert end == plan.iterations or times[-1] >= plan.max_time
    assert sorted(result.cuts) == [k for k in range(end) if plan.cut_before(k)]
    return end


def check_story(
    algorithm: str, plan: Plan, servers: int, problem: Ledger, story: Story, end: int
) -> None:
    """Assert that every shard has each gradient when and as often as the algorithm says."""
    n, whole = plan.workers, problem.initial(np.random.default_rng(0))
    members = []
    for rank, first in enumerate(shards(whole, servers), n):
        updates = story.updates[rank]
        assert [update.k for update in updates] == list(range(len(updates)))
        assert len(updates) == end
        entered = _entries(problem, [first, *(update.w for update in updates)])
        told = [len(entries) for entries in entered] if rank == n else [0] * end
        single = Counter(dict.fromkeys(range(end), 0))
        for k, gradients in story.commits[rank]:
            single[k] += gradients
        assert [update.gradients + single[update.k] for update in updates] == told
        _check_entries(algorithm, plan, entered)
        # An iteration of asp and ssp that has not ended may have some on further servers.
        left = 1 if rank == n or algorithm not in ("asp", "ssp") else n
        _check_used_once(algorithm, plan, entered, story.pushed, left)
        members.append([set(entries) for entries in entered])
    if algorithm in ("ps_backup", "dbw"):
        assert all(of_shard == members[0] for of_shard in members)
    _check_models(algorithm, problem, story, n, servers)


def _entries(problem: Ledger, ws: Sequence[np.ndarray]) -> list[dict[tuple[int, int], float]]:
    return [problem.entries(after - before) for before, after in pairwise(ws)]


def _check_entries(algorithm: str, plan: Plan, entered: list[dict[tuple[int, int], float]]) -> None:
    """Who is in an iteration, and with which weight."""
    n = plan.workers
    for k, entries in enumerate(entered):
        size = len(entries)
        np.testing.assert_allclose(list(entries.values()), eta(k) / size, rtol=1e-5)
        if algorithm in ("bsp", "asp", "ssp"):
            assert size == n
        elif algorithm == "ps_backup":
            assert size == n - plan.backup_workers
        elif k < WARM_UP or k % FULL_WAIT_EVERY == 0:
            assert size == n
        if algorithm in ("bsp", "ps_backup", "dbw"):
            assert len({j for j, _ in entries}) == size
            fresh = algorithm == "bsp" or plan.policy == "drop"
            assert all(c == k if fresh else c <= k for _, c in entries)


def _check_used_once(
    algorithm: str, plan: Plan, entered: Sequence, pushed: dict[int, list[int]], left: int
) -> None:
    """A gradient enters once. Where none is abandoned all enter, in the order of their pushes, but
    for `left` of a worker at the end."""
    for j in range(plan.workers):
        used = [c for entries in entered for i, c in sorted(entries) if i == j]
        assert len(set(used)) == len(used)
        assert pushed[j] == sorted(set(pushed[j]))
        if algorithm in ("ps_backup", "dbw") and plan.policy == "drop":
            assert set(used) <= set(pushed[j])
        else:
            assert used == pushed[j][: len(used)]
            assert len(pushed[j]) - len(used) <= left


def _check_models(algorithm: str, problem: Ledger, story: Story, n: int, servers: int) -> None:
    """Workers compute at the servers' parameters; of which iteration, the index says."""
    for (j, c), w in story.models.items():
        if algorithm in ("asp", "ssp"):
            marks = w.reshape(problem.shape)[:, j * problem.steps : j * problem.steps + c]
            assert (marks != 0).all(), "all that a worker has pushed is in its model"
        elif c:
            held = [story.updates[n + s][c - 1].w for s in range(servers)]
            assert w.tobytes() == np.concatenate(held).tobytes()


if __name__ == "__main__":
    alone(draw, run, check)
