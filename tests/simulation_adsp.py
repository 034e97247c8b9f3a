"""Deterministic simulation: a whole run of workers that commit, drawn from one seed, and checked.

    python -m tests.simulation_adsp --seed=123

runs that seed alone and prints what was drawn. Step c of worker j leaves a mark at a coordinate of
its own (see `simulation_server.Ledger`), so the parameters say which steps have entered them, and a
server is followed bit for bit: each of its W is what the pushes that were sent make of the one
before.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from cbdybw.algorithms import ALGORITHMS, search
from cbdybw.algorithms.plan import Pace, Plan, shards
from cbdybw.algorithms.search import Order, Sight
from cbdybw.clusters.network import Network
from cbdybw.clusters.trace import decode
from cbdybw.clusters.virtual import VirtualCluster
from cbdybw.clusters.worker import Kind
from cbdybw.mixing import combine, descend
from tests import simulation
from tests.drawn import Cut, Saved, Served, alone
from tests.simulation_server import MARK, TAIL, Ledger, eta, first_states

AVERAGING = ("adacomm", "fixed_adacomm", "bsp")
NAMES = ("adsp", "adsp", "adsp_plus", "adsp_plus_plus", *AVERAGING)
LAWS = tuple(law for law in simulation.LAWS if law != "none")
MOST_STEPS = 600


class Committed(Ledger):
    """A ledger with a loss to look at, and minibatches of any size."""

    def batch(self, rank: int, index: int, size: int | None = None) -> tuple[int, int]:
        assert index < self.steps
        return rank, index

    def held_out_loss(self, w: np.ndarray) -> float:
        return float(np.square(w[-TAIL:] - 1).sum())


class Push(NamedTuple):
    """A commit as it was sent: of which round (training begun anew, or an iteration of ADACOMM),
    after how many steps, by how much; the index of its first step."""

    turn: int
    steps: int
    u: np.ndarray
    begin: int

    @property
    def indices(self) -> range:
        return range(self.begin, self.begin + self.steps)


class Use(NamedTuple):
    """What a server recorded: an update ends iteration k; a commit of no step sets W anew."""

    is_update: bool
    time: float
    k: int
    gradients: int
    w: np.ndarray


@dataclass
class Story:
    """What the ranks of a run tell."""

    uses: dict[int, list[Use]] = field(default_factory=lambda: defaultdict(list))
    pushes: dict[int, list[Push]] = field(default_factory=lambda: defaultdict(list))
    models: dict[int, list[bytes]] = field(default_factory=lambda: defaultdict(list))  # j → of c
    resumed: list[tuple[int, int]] = field(default_factory=list)  # (k, rank)
    _parts: dict[int, list[np.ndarray]] = field(default_factory=dict)

    def record(self, rank: int, time: float, event: str, fields: dict[str, Any]) -> None:
        if event == "resume":
            self.resumed.append((fields["k"], rank))
        else:
            use = Use(event == "update", time, fields["k"], fields["gradients"], fields["w"])
            self.uses[rank].append(use)

    def listen(self, worker) -> None:
        """Write down what a worker computes at and what it pushes (again after a cut: once)."""
        rank, send, compute = worker.rank, worker.send, worker.compute
        pushes, models = self.pushes[rank], self.models[rank]

        def noted_send(dest, message):
            if message.kind is Kind.PUSH:
                parts = self._parts.setdefault(rank, [])
                parts.append(message.vector)
                if len(parts) == len(worker.servers):
                    u, steps = np.concatenate(self._parts.pop(rank)), message.body[0]
                    assert steps
                    if not (pushes and np.array_equal(pushes[-1].u, u)):
                        pushes.append(Push(message.iteration, steps, u, len(models) - steps))
            send(dest, message)

        async def noted_compute(fn, w, batch, *, index, **options):
            assert not models or index == len(models) or len(pushes) == len(models) == 0
            models.append(w.tobytes())
            return await compute(fn, w, batch, index=index, **options)

        if rank in worker.workers:
            worker.send, worker.compute = noted_send, noted_compute


class Scenario(Served):
    @property
    def command(self) -> str:
        return f"python -m tests.simulation_adsp --seed={self.seed}"

    @property
    def problem(self) -> Committed:
        fixed = {"fixed_adacomm": self.plan.pace.tau, "bsp": 1}.get(self.algorithm)
        steps = (self.plan.iterations + 1) * fixed if fixed else MOST_STEPS
        return Committed(self.workers, self.servers, steps, self.seed)

    def orders(self, sights: np.ndarray) -> list[Order]:
        """What the scheduler has said: the first order, and the one after each sight."""
        find = getattr(search, self.algorithm, search.nothing)
        if self.algorithm == "adsp" and self.plan.pace.rate:
            find = search.fixed_rate
        course = find(self.plan.pace, [])
        return [next(course), *(course.send(Sight(*sight)) for sight in sights.tolist())]


def draw(seed: int) -> Scenario:
    """The scenario of a seed."""
    rng = np.random.default_rng((seed, 4))
    n, algorithm = int(rng.integers(1, 8)), str(rng.choice(NAMES))
    searches = ALGORITHMS[algorithm].searches
    servers = 1 if searches else int(rng.choice([1, 2, 3]))
    tuned = algorithm == "bsp" or (algorithm == "fixed_adacomm" and rng.random() < 0.4)
    pace = Pace(
        rate=int(rng.choice([0, 0, 1, 2, 5, 20])),
        period=float(rng.choice([2.0, 5.0, 10.0])),
        window=float(rng.choice([1.0, 4.0, 9.0])),
        epoch=float(rng.choice([5.0, 30.0])),
        shortest=float(rng.choice([0.0, 1.0])),
        restarts=bool(rng.random() < 0.3),
        points=int(rng.choice([3, 5])),
        eta=float(rng.choice([0.0, 0.0, 0.5])),
        momentum=float(rng.choice([0.0, 0.0, 0.4])),
        tau=int(rng.integers(1, 6)),
        batch_size=int(rng.choice([8, 30])) if tuned else 0,
    )
    plan = Plan(
        neighbours=[()] * n,
        connecting=(),
        diameter=0,
        eta=eta,
        iterations=int(rng.integers(1, 30 if searches else 12)),
        max_time=float(rng.choice([math.inf] * 4 + [0.5, 20.0, 130.0])),
        checkpoint_every=int(rng.choice([0, 0, 1, 3, 7])),
        pace=pace,
    )
    network = simulation.random_network(rng, n + servers)
    network |= {"bandwidth": 100 * network.get("bandwidth", math.inf)}  # vectors are long
    return Scenario(seed, algorithm, plan, servers, str(rng.choice(LAWS)), network)


@dataclass
class Run(Saved):
    """A finished run, and what its ranks said."""

    story: Story = field(default_factory=Story)


def run(scenario: Scenario, cut: Cut | None = None) -> Run:
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
        saver=result,
    )
    states = cut.states if cut else first_states(problem, n, scenario.servers)

    def main(worker):
        if not cut:
            result.story.listen(worker)
        return ALGORITHMS[scenario.algorithm].run(worker, problem, plan, states[worker.rank])

    result.states = cluster.run(main, start=cut.time if cut else 0.0)
    return result


def check(scenario: Scenario, result: Run) -> None:
    """Assert everything that must hold in a run."""
    plan, story, n = scenario.plan, result.story, scenario.workers
    end = _check_end(plan, story, result)
    everybody = [(k, rank) for k in result.cuts for rank in result.states]
    assert sorted(story.resumed) == sorted(everybody)
    cuts = [k for k in range(end + 1) if plan.cut_before(k)]
    assert sorted(result.cuts) in (
        cuts,
        [k for k in cuts if k < end],
    )  # time may end just after one
    for j in range(n):
        counts = result.states[j].memory["counts"].tolist()
        assert (counts[0], counts[2]) == (len(story.models[j]), len(story.pushes[j]))
    sights = result.states[n].memory.get("sights", np.empty((0, 2)))
    orders = scenario.orders(sights)
    for shard in range(scenario.servers):
        if scenario.algorithm in AVERAGING:
            _check_averages(scenario, story, shard, sights, orders)
        else:
            _check_commits(scenario, result, sights, orders)
            _check_targets(scenario, result, sights, orders)


def _check_end(plan: Plan, story: Story, result: Run) -> int:
    """All ranks end before the same iteration: K, or the one that is open when time is over."""
    (end,) = {state.k for state in result.states.values()}
    times = [use.time for use in story.uses[plan.workers] if use.is_update]
    assert [use.k for use in story.uses[plan.workers] if use.is_update] == list(range(end))
    assert all(time < plan.max_time for time in times[:-1])
    if end < plan.iterations:
        (rank, *_), last = decode(result.trace.events["code"]), result.trace.events["time"]
        assert last[rank == plan.workers].max() >= plan.max_time
    return end


class Follower:
    """Which push of each worker a server has to use next."""

    def __init__(self, story: Story, workers: int):
        self._left: dict[int, Iterator[Push]] = {j: iter(story.pushes[j]) for j in range(workers)}

    def take(self, j: int, turn: int) -> Push:
        """The next push of worker j; those of earlier rounds are passed over."""
        push = next(push for push in self._left[j] if push.turn >= turn)
        assert push.turn == turn
        return push

    def rest(self, turn: int) -> list[Push]:
        """Pushes of this round that have not been used."""
        return [p for left in self._left.values() for p in left if p.turn >= turn]


def _indices(problem: Ledger, marks: np.ndarray) -> dict[int, list[int]]:
    """j → indices of the steps of worker j whose coordinates are True."""
    found = defaultdict(list)
    for place in np.flatnonzero(marks[:-TAIL]).tolist():
        j, c = divmod(place, problem.steps)
        found[j].append(c)
    return found


def _begun(story: Story, j: int, turn: int) -> int:
    """The step of worker j from which η' counts where training began with this round."""
    return next(push.begin for push in story.pushes[j] if push.turn >= turn)


def _check_push(
    problem: Ledger, part: np.ndarray, j: int, push: Push, begun: int, divisor: int = 1
) -> None:
    """U_i is the sum of η' g over its steps, in this shard."""
    marks = np.zeros(len(part) - TAIL)
    marks[[j * problem.steps + c for c in push.indices]] = [
        eta(c - begun) / divisor * MARK for c in push.indices
    ]
    np.testing.assert_allclose(part[:-TAIL], marks, rtol=1e-5, atol=1e-9)


class Reference:
    """ADSP's server by the book: what its W has to be after each commit."""

    def __init__(self, scenario: Scenario, story: Story):
        self.scenario, self.story, self.problem = scenario, story, scenario.problem
        self.turn, self.used, self._next = -1, defaultdict(int), Follower(story, scenario.workers)
        self.begin(divisor=1)

    def begin(self, divisor: int) -> None:
        """Training begins (anew)."""
        self.w = self.problem.initial(np.random.default_rng(0))
        self._v, self._divisor = np.zeros_like(self.w), divisor
        self._pulled = dict.fromkeys(range(self.scenario.workers), self.w.tobytes())
        self.turn += 1

    def use(self, use: Use, order: Order) -> None:
        """The commit whose steps have just come into W."""
        ((j, _),) = _indices(self.problem, (use.w != 0) & (self.w == 0)).items()
        push = self._next.take(j, self.turn)
        assert push.steps == use.gradients
        assert self.story.models[j][push.begin] == self._pulled[j]
        begun = _begun(self.story, j, self.turn)
        _check_push(self.problem, push.u, j, push, begun, self._divisor)
        eta = self.scenario.plan.pace.eta or 1 / self.scenario.workers
        if order.momentum:
            self._v = order.momentum * self._v + eta * push.u
            self.w = self.w - self._v
        else:
            self.w = descend(self.w, eta, push.u)
        self._pulled[j] = self.w.tobytes()
        self.used[j, self.turn] += 1

    def lost(self) -> list[Push]:
        """Commits that should have been used."""
        return self._next.rest(self.turn)


def _check_commits(
    scenario: Scenario, result: Run, sights: np.ndarray, orders: list[Order]
) -> None:
    """ADSP's server uses each commit once, as it comes, with what its worker had pulled."""
    story, n = result.story, scenario.workers
    reference = Reference(scenario, story)
    for use in story.uses[n]:
        if use.is_update:
            assert use.gradients == 0
        elif use.gradients:
            reference.use(use, orders[np.searchsorted(sights[:, 0], use.time, "left")])
        else:
            order = orders[np.searchsorted(sights[:, 0], use.time, "right")]
            assert order.restart
            reference.begin(order.divisor)
        assert use.w.tobytes() == reference.w.tobytes()
    assert not reference.lost()
    state, used = result.states[n], reference.used
    assert state.w.tobytes() == reference.w.tobytes()
    assert state.memory["commits"].tolist() == [len(story.pushes[j]) for j in range(n)]
    assert state.memory["used"] == sum(used.values()) >= state.k * n
    if not result.cuts:
        _check_arrivals(scenario, result, used)


def _arrivals(scenario: Scenario, result: Run) -> list[tuple[float, int, int]]:
    """Time, worker and round of the pushes that came in at the first server."""
    events = result.trace.events
    rank, kind, turn, peer = decode(events["code"])
    pushes = (rank == scenario.workers) & (kind == Kind.PUSH)
    columns = events["time"], peer, turn
    return list(zip(*(column[pushes].tolist() for column in columns), strict=True))


def _check_arrivals(scenario: Scenario, result: Run, used: dict[tuple[int, int], int]) -> None:
    """Only a push that comes after its round is over is passed over."""
    uses = result.story.uses[scenario.workers]
    restarts = [u.time for u in uses if not u.is_update and u.gradients == 0]
    over = [*restarts, math.inf]
    in_time = defaultdict(int)
    for time, j, turn in _arrivals(scenario, result):
        if time <= over[turn]:
            in_time[j, turn] += 1
    assert in_time == used


def _check_targets(
    scenario: Scenario, result: Run, sights: np.ndarray, orders: list[Order]
) -> None:
    """C_target grows by what is ordered; check points tell of all commits that have come in."""
    pace, n, target, rows = scenario.plan.pace, scenario.workers, 0, []
    arrivals = np.array(_arrivals(scenario, result)).reshape(-1, 3)
    for (time, _), order in zip(sights.tolist(), orders[1:], strict=True):
        if order.rate:
            j = arrivals[arrivals[:, 0] <= time, 1].astype(int)
            counts = np.bincount(j, minlength=n)
            rows.append((time, target, counts.min(), counts.max()))
            target += max(1, round(order.rate * (order.span or order.seconds) / pace.period))
    memory = result.states[n].memory
    assert memory["target"] == target
    columns = slice(0, 2 if result.cuts else 4)  # pushes that a cut drops come in twice
    np.testing.assert_array_equal(
        memory["checks"][:, columns], np.reshape(rows, (-1, 4))[:, columns]
    )


def _check_averages(
    scenario: Scenario, story: Story, shard: int, sights: np.ndarray, orders: list[Order]
) -> None:
    """ADACOMM's servers average what all workers' τ steps have come to, in every round."""
    problem, n, servers = scenario.problem, scenario.workers, scenario.servers
    w = shards(problem.initial(np.random.default_rng(0)), servers)[shard]
    first, turn, began, follower = w, 0, 0, Follower(story, n)
    tau = {"fixed_adacomm": scenario.plan.pace.tau}.get(scenario.algorithm, 1)
    mean = dict.fromkeys(range(n), 1 / n)
    for use in story.uses[n + shard]:
        side = "left"
        if use.is_update:
            pushes = {j: follower.take(j, turn) for j in range(n)}
            parts = {j: shards(push.u, servers)[shard] for j, push in pushes.items()}
            for j, push in pushes.items():
                assert push.steps == tau
                _check_push(problem, parts[j], j, push, _begun(story, j, began))
            w = w - combine(mean, parts)
            assert use.gradients == (n * tau if shard == 0 else 0)
        else:
            w, side, began = first, "right", turn + 1
        assert use.w.tobytes() == w.tobytes()
        turn += 1
        if len(sights):
            tau = orders[np.searchsorted(sights[:, 0], use.time, side)].tau
    assert len(follower.rest(turn)) <= n


if __name__ == "__main__":
    alone(draw, run, check)
