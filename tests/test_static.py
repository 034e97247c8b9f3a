"""cb_static: whom a fixed number of backup workers leaves out, and what that takes in time."""

import heapq
from itertools import count

import numpy as np
import pytest

from cbdybw import theory
from cbdybw.algorithms.static import LEAD
from cbdybw.clusters import delays
from cbdybw.clusters.network import Network
from cbdybw.learning.quadratic import Quadratic
from cbdybw.recorder import Recorder
from cbdybw.topology import build, neighbours
from tests.timing import Watched, run


class Members(Recorder):
    """A recorder that also keeps when each worker averaged, and with whom, and what it skipped."""

    def __init__(self, iterations):
        super().__init__(iterations)
        self.averages, self.skips = {}, set()

    def record(self, rank, time, event, fields):
        super().record(rank, time, event, fields)
        if event == "average":
            self.averages[fields["k"], rank] = time, set(fields["active"])
        else:
            self.skips.add((fields["k"], rank))


class WithoutMessages:
    """The algorithm without latency, by one who sees all workers at once.

    A worker is starting, computing, ready (its gradient is finished or abandoned), waiting for
    enough neighbours, or agreeing with those it has.
    """

    def __init__(self, graph, b, law, iterations, policy):
        self.near, self.b, self.law, self.policy = neighbours(graph), b, law, policy
        n = len(graph)
        self.iterations, self.time = iterations, 0.0
        self.k, self.closed, self.phase = [0] * n, [-1] * n, ["starting"] * n
        self.carried = [False] * n
        self.sent, self.members = set(), {}
        self.averages, self.skips = {}, set()
        self.ends, self.number = [], count()
        self.computing = {}  # worker → the number of its event

    def run(self):
        workers = range(len(self.k))
        while True:
            while sum(map(self.begin, workers)) or sum(map(self.finish, workers)):
                pass  # until nothing happens at this instant any more
            if not self.ends:
                return self
            self.time, number, j = heapq.heappop(self.ends)
            if self.computing.get(j) == number:
                del self.computing[j]
                self.phase[j] = "ready"

    def begin(self, j):
        """Up to the sending of j's estimate; whether anything has changed."""
        k, closed = self.k[j], [self.closed[i] for i in self.near[j]]
        left_behind = max(closed) >= k
        if self.phase[j] == "starting" and k < self.iterations and min(closed) >= k - 1 - LEAD:
            if self.carried[j] or (left_behind and self.policy == "drop"):
                self.phase[j] = "ready"
            else:
                self.phase[j], self.computing[j] = "computing", next(self.number)
                heapq.heappush(self.ends, (self.time + self.law(j, k), self.computing[j], j))
        elif self.phase[j] == "computing" and left_behind and self.policy == "drop":
            del self.computing[j]
            self.phase[j] = "ready"
        elif self.phase[j] == "ready" and left_behind:
            self.skips.add((k, j))
            self.closed[j], self.k[j], self.phase[j] = k, k + 1, "starting"
            self.carried[j] = self.policy == "carry"
        elif self.phase[j] == "ready":
            self.sent.add((k, j))
            self.phase[j], self.carried[j] = "waiting", False
        else:
            return False
        return True

    def finish(self, j):
        """From there to the average; whether anything has changed."""
        k, near = self.k[j], self.near[j]
        if self.phase[j] == "waiting":
            here = {i for i in near if (k, i) in self.sent}
            may_come = [i for i in near if i not in here and self.closed[i] < k]
            if len(here) < len(near) - self.b and may_come:
                return False
            self.members[k, j], self.closed[j], self.phase[j] = here, k, "agreeing"
        elif self.phase[j] == "agreeing":
            here = self.members[k, j]
            if not all((k, i) in self.members for i in here):
                return False
            active = {i for i in here if j in self.members[k, i]}
            self.averages[k, j] = self.time, active
            self.k[j], self.phase[j] = k + 1, "starting"
        else:
            return False
        return True


@pytest.mark.parametrize(
    ("graph", "workers", "b"),
    [("ring", 7, 1), ("grid", 9, 1), ("random_regular:degree=4", 12, 2), ("complete", 6, 4)],
)
@pytest.mark.parametrize(
    ("policy", "law"),
    [
        ("carry", "shifted_exponential:base=0.5,mean=0.5"),
        ("drop", "lognormal:mean=1,sigma=1"),
        ("drop", "persistent:ranks=0,slowdown=40,jitter=0.3"),
        ("late", "lognormal:mean=1,sigma=1"),
        ("late", "persistent:ranks=0,slowdown=40,jitter=0.3"),
    ],
)
def test_every_average_happens_when_and_among_whom_it_is_defined_to(graph, workers, b, policy, law):
    """Under carry only with a law that lets nobody run into the limit of the lead: workers with
    finished gradients that wait for the same neighbour go on at the same instant, and who is first
    then depends on the order of messages."""
    graph, law = build(graph, workers, 3), delays.parse(law, workers, 3)
    recorder = Members(150)
    run("cb_static", graph, law, 150, recorder=recorder, policy=policy, backup_workers=b)
    expected = WithoutMessages(graph, b, law, 150, policy).run()
    assert recorder.averages == expected.averages
    assert recorder.skips == expected.skips


@pytest.mark.parametrize(
    ("policy", "workers", "b"),
    [
        ("drop", 6, 1),
        ("drop", 6, 3),
        ("drop", 7, 2),
        ("drop", 4, 3),
        ("carry", 6, 1),
        ("carry", 5, 1),
    ],
)
def test_on_a_complete_graph_an_iteration_lasts_until_all_but_b_have_finished(workers, b, policy):
    """Exp(1): H_N - H_b, the mean of the (N-b)-th of N. Under carry the same, as what is left of an
    exponential time is distributed like a new one, while stragglers are rarely so slow that the
    others wait for them after eight iterations."""
    complete = build("complete", workers, 0)
    timed = run(
        "cb_static", complete, "exponential:mean=1", 10_000, policy=policy, backup_workers=b, seed=2
    )
    expected = float(theory.harmonic(workers) - theory.harmonic(b))
    assert timed.mean == pytest.approx(expected, rel=0.01)
    finished = workers - b
    assert timed.recorder.finishers.tolist() == timed.recorder.used.tolist() == [finished] * 10_000
    assert timed.recorder.active.tolist() == [finished * (finished - 1)] * 10_000


@pytest.mark.parametrize("graph", ["ring", "star", "erdos_renyi:p=0.5"])
def test_without_backup_workers_it_is_cb_full_with_the_barrier_of_neighbours(graph):
    graph, law = build(graph, 7, 0), "exponential:mean=1"
    problem = Quadratic(np.eye(7), lam=1.0, sigma=1.0, seed=0)
    static, full = Members(60), Members(60)
    mine = run("cb_static", graph, law, 60, recorder=static, problem=problem, backup_workers=0)
    theirs = run("cb_full", graph, law, 60, recorder=full, problem=problem, barrier="neighbours")
    assert static.averages == full.averages
    for j in range(7):
        assert mine.states[j].w.tobytes() == theirs.states[j].w.tobytes()


# By hand: a triangle with one backup worker, workers 0, 1 and 2 take 1, 1.1 and 1.5 s


@pytest.mark.parametrize(
    ("policy", "closes", "taken", "estimates"),
    [
        # It joins iteration 1 at 1.5 with the gradient begun in 0; worker 0 comes before worker 1.
        ("carry", [1.1, 2.1], [(0, 0.0)], [6.0, 0.0, 6.0]),
        # It begins again at 1.1 and at 2.2.
        ("drop", [1.1, 2.2], [], [0.0, 0.0, 0.0]),
        # It is alone in 0 until 1.5 and in 1 until 3.
        ("late", [1.1, 2.2], [(0, 0.0), (1, 12.0)], [0.0, 0.0, 24.0]),
    ],
)
def test_a_straggler_does_what_its_policy_says(policy, closes, taken, estimates):
    problem, law = Watched(), (1.0, 1.1, 1.5)
    timed = run(
        "cb_static",
        build("complete", 3, 0),
        lambda rank, index: law[rank],
        2,
        problem=problem,
        eta=1.0,
        policy=policy,
        backup_workers=1,
    )
    assert timed.recorder.last_close.tolist() == pytest.approx(closes)
    assert problem.taken == taken
    assert [float(timed.states[j].w[0]) for j in range(3)] == pytest.approx(estimates)


def test_nobody_is_more_than_eight_iterations_ahead_of_a_neighbour():
    recorder, law = Members(12), (100.0, 1.0, 1.0, 1.0)
    run(
        "cb_static",
        build("ring", 4, 0),
        lambda rank, index: law[rank],
        12,
        recorder=recorder,
        policy="late",
        backup_workers=1,
    )
    # Workers 1, 2, 3 are through iteration 8 at 9 s. In 9, 1 and 3 would be nine ahead of worker 0,
    # which closes 0 at 100 s and 1 at 200 s; worker 2 waits for one of them.
    closes = [recorder.averages[k, 2][0] for k in range(12)]
    assert closes == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 101.0, 201.0, 301.0]
    assert {k for k, rank in recorder.skips if rank == 0} == set(range(12))


# The end


@pytest.mark.parametrize("policy", ["carry", "drop", "late"])
def test_a_worker_alone_takes_one_step_after_the_other(policy):
    alone = build("ring", 1, 0)
    timed = run("cb_static", alone, "constant:mean=2", 5, policy=policy, backup_workers=1)
    assert timed.recorder.last_close.tolist() == [2.0, 4.0, 6.0, 8.0, 10.0]


@pytest.mark.parametrize("latency", [0.0, 0.3])
@pytest.mark.parametrize("policy", ["carry", "drop", "late"])
def test_without_cuts_each_worker_ends_with_the_iteration_in_which_its_time_is_over(
    policy, latency
):
    ends, recorder = {}, Members(1000)
    timed = run(
        "cb_static",
        build("ring", 6, 0),
        "exponential:mean=1",
        1000,
        network=Network(latency),
        recorder=recorder,
        policy=policy,
        max_time=15.0,
        backup_workers=1,
    )
    for (k, rank), (time, _) in recorder.averages.items():
        ends[rank] = max(ends.get(rank, (0, 0.0)), (k, time))
        assert time < 15.0 or k == timed.states[rank].k - 1
    for rank, state in timed.states.items():
        assert state.stop == state.k < 100
        last, time = ends[rank]
        assert time >= 15.0 or (state.k - 1, rank) in recorder.skips or last < state.k - 1


@pytest.mark.parametrize("policy", ["carry", "drop", "late"])
def test_with_cuts_all_workers_end_at_the_cut_after_the_time_is_over(policy):
    timed = run(
        "cb_static",
        build("ring", 6, 0),
        "exponential:mean=1",
        1000,
        network=Network(latency=0.3, jitter=0.5, seed=1),
        policy=policy,
        max_time=15.0,
        checkpoint_every=8,
        backup_workers=1,
    )
    ((k, stop),) = {(state.k, state.stop) for state in timed.states.values()}
    assert k == stop
    assert k % 8 == 0
    assert timed.recorder.last_close[k - 9] < 15.0
    assert timed.recorder.last_close[: timed.recorder.iterations].max() >= 15.0
