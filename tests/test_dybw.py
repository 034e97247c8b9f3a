"""cb-DyBW: DTUR's epochs, thresholds and iteration times, and what each policy does."""

from collections import defaultdict
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cbdybw import theory
from cbdybw.algorithms.epochs import Dtur
from cbdybw.clusters import delays
from cbdybw.clusters.network import Network
from cbdybw.recorder import Recorder
from cbdybw.topology import build
from tests.timing import Watched, run

# DTUR alone


def epochs(visits, edges=3, rule="one"):
    """How many epochs are complete after each visit."""
    dtur = Dtur(edges, rule)
    counts = []
    for k, n in visits:
        dtur.visit(k, n)
        counts.append(dtur.epoch)
    return counts


def test_an_epoch_ends_when_every_edge_has_been_visited():
    assert epochs([(0, 1), (1, 0), (2, 2), (3, 2), (4, 0), (5, 1)]) == [0, 0, 1, 1, 1, 2]


def test_a_second_visit_in_an_epoch_counts_for_nothing():
    assert epochs([(0, 1), (1, 1), (2, 0), (3, 0), (4, 2)]) == [0, 0, 0, 0, 1]


def test_rule_one_counts_the_smallest_new_edge_of_an_iteration_and_rule_all_counts_all():
    visits = [(0, 2), (0, 1), (1, 0), (2, 2)]
    assert epochs(visits, rule="one") == [0, 0, 0, 1]
    assert epochs(visits, rule="all") == [0, 0, 1, 1]


def test_the_next_epoch_begins_with_the_next_iteration():
    # Edge 2 takes part in iteration 1 as well, which edge 1 has completed under rule "all".
    assert epochs([(0, 0), (0, 2), (1, 1), (1, 2), (2, 0), (3, 1)], rule="all")[-1] == 1
    assert epochs([(0, 0), (0, 2), (1, 1), (2, 0), (3, 1), (4, 2)], rule="all")[-1] == 2


def test_an_edge_is_unvisited_again_in_the_next_epoch():
    dtur = Dtur(2, "one")
    dtur.visit(0, 1)
    assert (dtur.unvisited(0), dtur.unvisited(1)) == (True, False)
    dtur.visit(1, 0)
    assert (dtur.unvisited(0), dtur.unvisited(1)) == (True, True)


@given(
    st.sets(st.tuples(st.integers(0, 25), st.integers(0, 3)), max_size=60),
    st.sampled_from(["one", "all"]),
    st.randoms(use_true_random=False),
)
def test_the_order_in_which_visits_come_in_does_not_matter(visits, rule, draw):
    in_order = Dtur(4, rule).restore(sorted(visits))
    shuffled = list(visits) + draw.sample(sorted(visits), len(visits) // 2)  # some come twice
    draw.shuffle(shuffled)
    dtur = Dtur(4, rule).restore(shuffled)
    assert dtur.log.tolist() == in_order.log.tolist() == [list(visit) for visit in sorted(visits)]
    assert dtur.epoch == in_order.epoch
    assert [dtur.unvisited(n) for n in range(4)] == [in_order.unvisited(n) for n in range(4)]
    dtur.visit(26, 1)
    in_order.visit(26, 1)
    assert dtur.epoch == in_order.epoch


def test_an_empty_log_has_no_rows():
    assert Dtur(0, "one").log.shape == (0, 2)
    assert Dtur(5, "all").log.shape == (0, 2)


# Iteration times


def thresholds(graph, connecting, law, iterations, policy, rule):
    """θ(k) and who has finished by then, straight from the definitions, without messages.

    finish_j(k) = start_j(k) + t_j, and θ(k) is the least max(finish_i, finish_j) over connecting
    edges that are new in the epoch.
    """
    n, new = len(graph), set(connecting)
    finish = np.array([law(j, 0) for j in range(n)])
    for k in range(iterations):
        theta = min(max(finish[i], finish[j]) for i, j in new)
        done = finish <= theta
        yield theta, set(np.flatnonzero(done).tolist())
        visited = [edge for edge in connecting if edge in new and done[list(edge)].all()]
        new -= set(visited if rule == "all" else visited[:1])
        new = new or set(connecting)
        for j in range(n):
            if policy == "late":
                finish[j] = max(theta, finish[j]) + law(j, k + 1)
            elif done[j] or policy in ("drop", "paper"):
                finish[j] = theta + law(j, k + 1)


class Members(Recorder):
    """A recorder that also keeps who averaged in which iteration, and with whom."""

    def __init__(self, iterations, workers):
        super().__init__(iterations, holders=workers)
        self.members = defaultdict(dict)

    def record(self, rank, time, event, fields):
        super().record(rank, time, event, fields)
        if event == "average":
            self.members[fields["k"]][rank] = set(fields["active"])


@pytest.mark.parametrize("rule", ["one", "all"])
@pytest.mark.parametrize("policy", ["carry", "drop", "late", "paper"])
@pytest.mark.parametrize("graph", ["path", "star", "erdos_renyi:p=0.5"])
def test_every_threshold_and_every_finisher_is_as_defined(graph, policy, rule):
    graph = build(graph, 7, 3)
    law = delays.parse("lognormal:mean=1,sigma=1", 7, 3)
    recorder = Members(300, 7)
    timed = run("cb_dybw", graph, law, 300, recorder=recorder, policy=policy, edge_rule=rule)
    expected = thresholds(graph, timed.plan.connecting, law, 300, policy, rule)
    for k, (theta, finished) in enumerate(expected):
        assert recorder.last_close[k] == theta
        assert recorder.members[k] == {j: finished & set(graph[j]) for j in finished}


ACTIVE = {2: 1.0, 3: 0.8333, 4: 0.7240, 6: 0.5984, 10: 0.4734}


@pytest.mark.parametrize("workers", ACTIVE)
@pytest.mark.parametrize(("policy", "rule"), [("carry", "one"), ("paper", "all")])
def test_mean_times_on_a_path_are_within_one_percent_of_exact_theory(policy, rule, workers):
    expected = theory.dtur_exponential(workers, rule)
    timed = run(
        "cb_dybw",
        build("path", workers, 0),
        "exponential:mean=1",
        min(24_000, 120_000 // workers),
        policy=policy,
        edge_rule=rule,
        seed=1,
    )
    assert timed.mean == pytest.approx(expected.mean, rel=0.01)
    assert timed.active == pytest.approx(expected.active, rel=0.01)
    visits = timed.states[0].visits
    complete = Dtur(workers - 1, rule).restore(visits).epoch
    assert timed.recorder.iterations / complete == pytest.approx(
        expected.iterations_per_epoch, rel=0.01
    )
    if rule == "one":
        assert timed.active == pytest.approx(ACTIVE[workers], rel=0.01)


@pytest.mark.parametrize(("workers", "slowdown"), [(6, 6.0), (6, 10.0), (10, 10.0)])
@pytest.mark.parametrize("interior", [False, True])
def test_a_persistent_straggler_delays_the_iterations_of_its_own_edges_only(
    workers, slowdown, interior
):
    rank = workers // 2 if interior else 0
    law = f"persistent:ranks={rank},slowdown={slowdown:g}"
    path, epoch = build("path", workers, 0), workers - 1
    timed = run("cb_dybw", path, law, 20 * epoch, policy="paper")
    expected = theory.persistent_straggler(workers, slowdown, interior)
    assert timed.mean == pytest.approx(expected.mean, rel=1e-12)
    assert timed.active == pytest.approx(expected.active, rel=1e-12)


@pytest.mark.parametrize("slowdown", [3, 10])
def test_one_random_straggler_is_as_in_exact_theory(slowdown):
    law = f"random_straggler:slowdown={slowdown},jitter=0.0001"
    timed = run("cb_dybw", build("path", 6, 0), law, 12_000, policy="paper", seed=3)
    expected = theory.one_random_straggler(6, slowdown)
    assert timed.mean == pytest.approx(expected.mean, rel=0.02)


POLICIES = {  # reduction against cb-Full's global round: paper and drop, late, carry; in percent
    "exponential:mean=1": (2.45, 62.6, 31.2, 62.2),
    "shifted_exponential:base=0.5,mean=0.5": (1.725, 44.5, 22.2, 56.9),
    "persistent:ranks=0,slowdown=6,jitter=0.05": (6.15, 66.6, 0.0, 80.0),
    "persistent:ranks=3,slowdown=6,jitter=0.05": (6.15, 50.0, 0.0, 60.0),
    "random_straggler:slowdown=6,jitter=0.05": (6.15, 76.4, 45.0, 70.5),
}


@pytest.mark.parametrize("law", POLICIES)
def test_the_reduction_depends_on_law_and_policy_as_derived(law):
    """4,000 iterations; within 1.5 points, three standard errors of the noisiest row."""
    full, at_once, late, carry = POLICIES[law]
    reductions = {
        policy: 100
        * (1 - run("cb_dybw", build("path", 6, 0), law, 4000, policy=policy).mean / full)
        for policy in ("paper", "drop", "late", "carry")
    }
    expected = {"paper": at_once, "drop": at_once, "late": late, "carry": carry}
    assert reductions == pytest.approx(expected, abs=1.5)


def test_only_drop_and_carry_leave_gradients_out():
    used = {
        policy: run("cb_dybw", build("path", 6, 0), "exponential:mean=1", 3000, policy=policy).used
        for policy in ("paper", "late", "drop", "carry")
    }
    assert used == pytest.approx({"paper": 1, "late": 1, "drop": 0.5984, "carry": 0.5984}, rel=0.03)


# What a straggler does, by hand: path 0-1-2, workers 0 and 1 take 1 s, worker 2 takes 2.5 s


@pytest.mark.parametrize(
    ("policy", "closes", "taken", "estimate"),
    [
        # It joins iteration 1 with the gradient begun in 0: (0 + 12) / 2 at edge {1, 2} …
        ("carry", [1.0, 2.5], [(0, 0.0)], 8.0),
        # … begins again at 1, and has done nothing of iteration 0.
        ("drop", [1.0, 3.5], [(1, 0.0)], 8.0),
        # It is alone in 0, and brings both gradients to 1.
        ("late", [1.0, 5.0], [(0, 0.0), (1, 12.0)], 16.0),
        ("paper", [1.0, 3.5], [(0, 0.0), (1, 12.0)], 16.0),
    ],
)
def test_a_straggler_does_what_its_policy_says(policy, closes, taken, estimate):
    problem, law = Watched(), {0: 1.0, 1: 1.0, 2: 2.5}
    timed = run(
        "cb_dybw",
        build("path", 3, 0),
        lambda rank, index: law[rank],
        2,
        problem=problem,
        eta=1.0,
        policy=policy,
    )
    assert timed.recorder.last_close.tolist() == closes
    assert problem.taken == taken
    # P(1) is that of the path of three: worker 2 keeps 2/3.
    assert timed.states[2].w[0] == pytest.approx(estimate)
    assert timed.states[1].w[0] == pytest.approx(estimate / 2)


def test_a_straggler_that_slept_through_many_iterations_clears_its_mailbox_at_once():
    workers, left = {}, []

    class Mail(Recorder):
        """Notes how much mail the straggler has left whenever it skips an iteration."""

        def record(self, rank, time, event, fields):
            super().record(rank, time, event, fields)
            if rank == 0 and event == "skip":
                left.append(len(workers[0]._mailbox))

    run(
        "cb_dybw",
        build("complete", 8, 0),
        "persistent:ranks=0,slowdown=40,jitter=0.05",
        2000,
        recorder=Mail(2000, holders=8),
        meet=lambda worker: workers.setdefault(worker.rank, worker),
    )
    wakes = [n for n, mail in enumerate(left) if mail > 10]  # the first skip after a sleep
    assert len(left) > 1500
    assert len(wakes) > 100
    assert all(later - earlier > 1 for earlier, later in pairwise(wakes))


@pytest.mark.parametrize("policy", ["drop", "paper"])
def test_who_hears_of_two_thresholds_at_once_begins_with_the_iteration_after_both(policy):
    seconds = {(2, 0): 1.5, (3, 0): 100.0, (3, 1): 100.0}
    timed = run(
        "cb_dybw",
        build("path", 4, 0),
        lambda rank, index: seconds.get((rank, index), 1.0),
        3,
        network=Network(links={(i, 3): (5.0, float("inf")) for i in (0, 1)}),
        policy=policy,
    )
    # Worker 3 hears of θ(0) = 1 at 6 s, but of θ(1) = 2 from worker 2 at once.
    assert timed.recorder.last_close.tolist() == [1.0, 2.0, 3.0]


# The end


@pytest.mark.parametrize("policy", ["carry", "drop", "late"])
def test_a_worker_alone_takes_one_step_after_the_other(policy):
    timed = run("cb_dybw", build("ring", 1, 0), "constant:mean=2", 5, policy=policy)
    assert timed.recorder.last_close.tolist() == [2.0, 4.0, 6.0, 8.0, 10.0]
    stopped = run("cb_dybw", build("ring", 1, 0), "constant:mean=2", 50, max_time=7.0)
    assert (stopped.states[0].k, stopped.states[0].stop) == (4, 4)


@pytest.mark.parametrize("policy", ["carry", "drop", "late"])
def test_two_workers_are_cb_full(policy):
    law = delays.parse("exponential:mean=1", 2, 9)
    two = build("path", 2, 0)
    dybw = run("cb_dybw", two, law, 60, policy=policy)
    full = run("cb_full", two, law, 60)
    assert dybw.recorder.last_close.tolist() == full.recorder.last_close.tolist()
    assert dybw.active == 1.0


def test_workers_that_finish_together_are_all_active():
    timed = run("cb_dybw", build("ring", 5, 0), "constant:mean=1", 10)
    assert timed.recorder.active.tolist() == [10] * 10
    assert timed.mean == 1.0


@pytest.mark.parametrize("latency", [0.0, 0.2])
@pytest.mark.parametrize("policy", ["carry", "drop", "late", "paper"])
def test_max_time_ends_a_run_without_cuts_at_the_next_iteration(policy, latency):
    timed = run(
        "cb_dybw",
        build("ring", 6, 0),
        "exponential:mean=1",
        1000,
        network=Network(latency),
        policy=policy,
        max_time=15.0,
    )
    k = timed.recorder.iterations
    ends = {state.stop for state in timed.states.values()}
    assert ends == {k}
    assert timed.recorder.last_close[k - 2] <= 15.0 + 2 * latency
    assert timed.recorder.last_close[k - 1] >= 15.0


@pytest.mark.parametrize("policy", ["carry", "drop", "late", "paper"])
def test_max_time_ends_a_run_with_cuts_at_the_next_cut(policy):
    timed = run(
        "cb_dybw",
        build("ring", 6, 0),
        "exponential:mean=1",
        1000,
        network=Network(latency=0.3, jitter=0.5, seed=1),
        policy=policy,
        max_time=15.0,
        checkpoint_every=8,
    )
    assert len({(state.k, state.stop) for state in timed.states.values()}) == 1
    k = timed.states[0].k
    assert k % 8 == 0
    assert timed.recorder.iterations == k
    assert timed.recorder.last_close[k - 9] < 15.0 + 5.0  # the cut before was in time
    assert timed.recorder.last_close[k - 1] >= 15.0
