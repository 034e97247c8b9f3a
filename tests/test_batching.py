"""Gradients in flight at the same time, evaluated in one call: nothing but the speed may change."""

from typing import Any, NamedTuple

import numpy as np
import pytest

from cbdybw import topology
from cbdybw.algorithms import ALGORITHMS
from cbdybw.algorithms.plan import Plan, State
from cbdybw.clusters import delays
from cbdybw.clusters.batching import InFlight
from cbdybw.clusters.network import Network
from cbdybw.clusters.trace import Trace
from cbdybw.clusters.virtual import VirtualCluster
from cbdybw.learning import workloads
from cbdybw.learning.flat import FlatModel
from cbdybw.learning.quadratic import Quadratic
from cbdybw.recorder import Recorder
from experiments import train
from experiments.settings import Settings
from tests.test_learning import digits

WORKERS, BATCH = 3, 32


@pytest.fixture(scope="module")
def dataset():
    return digits()


@pytest.fixture(scope="module")
def lrm(dataset):
    return workloads.build("lrm", dataset, BATCH, seed=1)


@pytest.fixture(scope="module")
def narrow(dataset):
    return workloads.build("2nn:width=16", dataset, BATCH, seed=1)


# --- which calls are evaluated together ----------------------------------------------------------


class Doubling:
    """Doubles, and notes what it was asked for at once."""

    def __init__(self):
        self.asked = []

    def twice(self, x):
        self.asked.append([x])
        return 2 * x

    def twice_many(self, calls):
        self.asked.append([x for (x,) in calls])
        return [2 * x for (x,) in calls]

    def half(self, x):
        return x / 2


def test_the_first_result_that_is_needed_evaluates_all_calls_in_flight():
    problem, in_flight = Doubling(), InFlight()
    first, second, third = (in_flight.begin(problem.twice, (x,)) for x in (1, 2, 3))
    assert problem.asked == []
    assert second() == 4
    fourth = in_flight.begin(problem.twice, (4,))
    assert (first(), third()) == (2, 6)
    assert problem.asked == [[1, 2, 3]]
    fifth = in_flight.begin(problem.twice, (5,))
    assert (fifth(), fourth()) == (10, 8)
    assert problem.asked == [[1, 2, 3], [4, 5]]


def test_a_call_that_was_cancelled_is_not_evaluated():
    problem, in_flight = Doubling(), InFlight()
    first, second, third = (in_flight.begin(problem.twice, (x,)) for x in (1, 2, 3))
    first.cancel()
    assert second() == 4
    third.cancel()  # evaluated in vain
    assert problem.asked == [[2, 3]]


def test_a_call_alone_is_evaluated_by_the_function_for_one():
    problem = Doubling()
    assert InFlight().begin(problem.twice, (3,))() == 6
    assert problem.asked == [[3]]


def test_calls_of_two_problems_do_not_mix():
    a, b, in_flight = Doubling(), Doubling(), InFlight()
    calls = [in_flight.begin(problem.twice, (x,)) for x, problem in enumerate((a, b, a, b))]
    assert [call() for call in calls] == [0, 2, 4, 6]
    assert (a.asked, b.asked) == ([[0, 2]], [[1, 3]])


@pytest.mark.parametrize("fn", [Doubling().half, lambda x: x, np.sqrt, print])
def test_a_function_that_has_none_for_many_is_left_alone(fn):
    assert InFlight().begin(fn, (1,)) is None


# --- gradients -----------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 7])
@pytest.mark.parametrize("workload", ["lrm", "2nn:width=16", "2nn:width=8,depth=3"])
def test_gradients_of_one_call_are_those_of_many(dataset, workload, n):
    problem, rng = workloads.build(workload, dataset, BATCH, seed=1), np.random.default_rng(n)
    estimates = rng.normal(scale=0.3, size=(n, problem.dim)).astype(np.float32)
    pairs = [(w, problem.batch(j % WORKERS, j)) for j, w in enumerate(estimates)]
    gradients = problem.gradient_many(pairs)
    assert len(gradients) == n
    for (w, batch), g in zip(pairs, gradients, strict=True):
        expected = problem.gradient(w, batch)
        np.testing.assert_allclose(g, expected, rtol=0, atol=1e-6)
        assert np.abs(expected).max() > 1e-2
        assert g.flags.owndata
        assert g.flags.writeable


def test_more_gradients_than_are_worth_one_call_come_in_several(dataset, monkeypatch):
    problem = workloads.build("2nn", dataset, 64, seed=1)
    sizes, gradients = [], FlatModel.gradients
    monkeypatch.setattr(
        FlatModel,
        "gradients",
        lambda self, w, x, y: sizes.append(len(w)) or gradients(self, w, x, y),
    )
    rng = np.random.default_rng(0)
    pairs = [(problem.initial(rng), problem.batch(0, k)) for k in range(14)]
    many = problem.gradient_many(pairs)
    assert sizes == [12, 2]  # 12 · 85,002 parameters · 64 samples < 2^26
    for (w, batch), g in zip(pairs, many, strict=True):
        np.testing.assert_allclose(g, problem.gradient(w, batch), rtol=0, atol=1e-6)


def test_minibatches_of_different_sizes_come_back_in_their_order(dataset):
    problem = workloads.build("2nn:width=16", dataset, 64, seed=1)
    rng = np.random.default_rng(0)
    asked = [64, 20, 64, 7, 20, 64]
    pairs = [(problem.initial(rng), problem.batch(0, k, size)) for k, size in enumerate(asked)]
    many = problem.gradient_many(pairs)
    assert len(many) == 6
    for (w, batch), g in zip(pairs, many, strict=True):
        np.testing.assert_allclose(g, problem.gradient(w, batch), rtol=0, atol=1e-6)
    np.testing.assert_array_equal(many[3], problem.gradient(*pairs[3]))  # by itself


def test_where_one_call_is_not_faster_there_is_none(dataset):
    assert workloads.build("2nn", dataset, 394, seed=1).gradient_many is not None
    assert workloads.build("2nn", dataset, 395, seed=1).gradient_many is None


# --- whole runs ----------------------------------------------------------------------------------


class Outcome(NamedTuple):
    states: dict[int, State]
    recorder: Recorder
    trace: Trace
    cuts: dict[int, tuple[float, dict[int, State]]]  # k → time and states

    @property
    def estimates(self) -> np.ndarray:
        return np.array([self.states[rank].w for rank in sorted(self.states)])


class Cuts(dict):
    """A saver that keeps every consistent cut."""

    def __init__(self):
        self.states = {}

    def save(self, rank, state):
        self.states[rank] = state

    def commit(self, cluster):
        (k,) = {state.k for state in self.states.values()}
        self[k] = cluster.time, self.states
        self.states = {}


def run(
    problem: Any,
    algorithm: str,
    workers: int,
    iterations: int,
    batch: bool,
    start: float = 0.0,
    states: dict[int, State] | None = None,
    **plan: Any,
) -> Outcome:
    graph = topology.build("ring", workers, 0)
    plan = Plan(
        topology.neighbours(graph), topology.connecting_edges(graph).edges, workers // 2,
        lambda k: 0.3, iterations, **plan,
    )  # fmt: skip
    recorder, trace, cuts = Recorder(iterations, keep_edges=True), Trace(), Cuts()
    cluster = VirtualCluster(
        workers, delay=delays.parse("exponential:mean=1", workers, 0), network=Network(), seed=0,
        trace=trace, recorder=recorder, saver=cuts, batch=batch,
    )  # fmt: skip
    w = problem.initial(np.random.default_rng(0))
    states = states or {rank: State(0, w) for rank in range(workers)}
    coroutine = ALGORITHMS[algorithm].run
    last = cluster.run(lambda worker: coroutine(worker, problem, plan, states[worker.rank]), start)
    return Outcome(last, recorder, trace, cuts)


CELLS = [
    ("cb_full", {"barrier": "global"}),
    ("cb_full", {"barrier": "neighbours"}),
    *(("cb_dybw", {"policy": policy}) for policy in ("carry", "drop", "late", "paper")),
]


@pytest.mark.parametrize(("algorithm", "plan"), CELLS)
@pytest.mark.parametrize("model", ["lrm", "narrow"])
def test_a_run_is_the_same_whether_gradients_are_evaluated_together_or_one_by_one(
    request, model, algorithm, plan
):
    problem = request.getfixturevalue(model)
    together, alone = (run(problem, algorithm, 3, 40, batch, **plan) for batch in (True, False))
    np.testing.assert_array_equal(together.recorder.edges, alone.recorder.edges)
    np.testing.assert_array_equal(together.recorder.used, alone.recorder.used)
    assert together.trace.events.tobytes() == alone.trace.events.tobytes()
    assert together.trace.spans.tobytes() == alone.trace.spans.tobytes()
    np.testing.assert_allclose(together.estimates, alone.estimates, rtol=0, atol=2e-6)
    moved = np.abs(alone.estimates - problem.initial(np.random.default_rng(0))).max()
    assert moved > 0.1


class Counted(Quadratic):
    """A quadratic that tells what was evaluated together, and feels it: a gradient changes with
    the number of those evaluated with it, far more than rounding would change it."""

    def __init__(self, workers: int):
        super().__init__(np.arange(4.0 * workers).reshape(workers, 4) % 7, 1.0, 0.5, seed=3)
        self.groups: list[int] = []

    def gradient(self, w, batch):
        self.groups.append(1)
        return super().gradient(w, batch)

    def gradient_many(self, pairs):
        self.groups.append(len(pairs))
        shift = np.float32(len(pairs) / 64)
        return [Quadratic.gradient(self, w, batch) + shift for w, batch in pairs]


def test_all_workers_of_a_barrier_are_evaluated_together():
    problem = Counted(8)
    run(problem, "cb_full", 8, 10, batch=True, barrier="global")
    assert problem.groups == [8] * 10


def test_one_by_one_every_worker_is_evaluated_by_itself():
    problem = Counted(8)
    run(problem, "cb_full", 8, 10, batch=False, barrier="global")
    assert problem.groups == [1] * 80


def test_stragglers_are_evaluated_with_those_who_began_with_them_and_once():
    problem = Counted(8)
    outcome = run(problem, "cb_dybw", 8, 30, batch=True, policy="carry")
    begun = int(outcome.recorder.used.sum()) + sum(
        state.gradient is not None for state in outcome.states.values()
    )
    assert begun <= sum(problem.groups) <= begun + 8  # the last ones end when nobody needs them
    assert problem.groups[0] == 8


@pytest.mark.parametrize("checkpoint_every", [1, 4, 7])
@pytest.mark.parametrize(("algorithm", "plan"), CELLS)
def test_a_resumed_run_evaluates_the_same_calls_together(algorithm, plan, checkpoint_every):
    plan = {**plan, "checkpoint_every": checkpoint_every}
    whole = run(Counted(6), algorithm, 6, 20, batch=True, **plan)
    assert len(whole.cuts) == (20 - 1) // checkpoint_every
    for k, (time, states) in whole.cuts.items():
        rest = run(Counted(6), algorithm, 6, 20, batch=True, start=time, states=states, **plan)
        np.testing.assert_array_equal(rest.estimates, whole.estimates, err_msg=f"from {k}")


def test_a_run_repeats_itself_bit_for_bit(narrow):
    first, second = (run(narrow, "cb_dybw", 3, 30, batch=True, policy="drop") for _ in range(2))
    np.testing.assert_array_equal(first.estimates, second.estimates)


# --- the flag ------------------------------------------------------------------------------------


def test_the_flag_turns_it_off(tmp_path, monkeypatch):
    calls, gradients = [], FlatModel.gradients
    monkeypatch.setattr(
        FlatModel,
        "gradients",
        lambda self, w, x, y: calls.append(len(w)) or gradients(self, w, x, y),
    )
    flags = {
        "algorithm": "cb_full", "dataset": "digits", "data_dir": str(tmp_path / "digits"), "pca": 0,
        "workers": 4, "batch_size": 64, "iterations": 5, "eval_every": 0,
    }  # fmt: skip
    off = train.run(Settings(**flags, batch_gradients=False), log=lambda line: None)
    assert calls == []
    on = train.run(Settings(**flags), log=lambda line: None)
    assert calls == [4] * 5
    assert on["train_loss"] == pytest.approx(off["train_loss"], rel=1e-5)
