"""dsgd_aau: Pathsearch's epochs, its thresholds and iteration times, and cb_dybw on trees."""

from collections import defaultdict
from dataclasses import replace
from fractions import Fraction
from functools import cache
from math import comb

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cbdybw.algorithms.epochs import Dtur
from cbdybw.algorithms.pathsearch import Pathsearch
from cbdybw.clusters import delays
from cbdybw.recorder import Recorder
from cbdybw.topology import build
from tests import drawn, simulation
from tests.timing import run

# Pathsearch alone

SQUARE = [(0, 1), (0, 2), (0, 3), (1, 2), (2, 3)]  # 0-1-2-3 and the diagonal 0-2


def epochs(visits, rule="one"):
    """How many epochs of the square are complete after each visit."""
    pathsearch = Pathsearch(SQUARE, 4, rule)
    counts = []
    for k, n in visits:
        pathsearch.visit(k, n)
        counts.append(pathsearch.epoch)
    return counts


def test_an_edge_is_new_as_long_as_its_ends_are_in_different_trees():
    pathsearch = Pathsearch(SQUARE, 4, "one")
    assert all(pathsearch.unvisited(n) for n in range(5))
    pathsearch.visit(0, 0)
    pathsearch.visit(1, 3)
    assert [pathsearch.unvisited(n) for n in range(5)] == [False, False, True, False, True]


def test_an_epoch_ends_when_all_workers_are_connected_and_the_next_begins_with_no_edge():
    assert epochs([(0, 0), (1, 3), (2, 1), (3, 4)]) == [0, 0, 0, 1]  # edge 1 closes a triangle
    pathsearch = Pathsearch(SQUARE, 4, "one").restore([(0, 0), (1, 3), (2, 4)])
    assert pathsearch.epoch == 1
    assert all(pathsearch.unvisited(n) for n in range(5))


def test_rule_one_counts_the_smallest_new_edge_and_rule_all_every_one_that_still_joins():
    visits = [(0, 0), (0, 1), (0, 3), (1, 4)]  # a triangle at once: two of its edges join
    assert epochs(visits, "one") == [0, 0, 0, 0]
    assert epochs(visits, "all") == [0, 0, 0, 1]


visits_of_five = st.sets(st.tuples(st.integers(0, 25), st.integers(0, 4)), max_size=60)


@given(visits_of_five, st.sampled_from(["one", "all"]), st.randoms(use_true_random=False))
def test_the_order_in_which_visits_come_in_does_not_matter(visits, rule, draw):
    in_order = Pathsearch(SQUARE, 4, rule).restore(sorted(visits))
    shuffled = list(visits)
    draw.shuffle(shuffled)
    pathsearch = Pathsearch(SQUARE, 4, rule).restore(shuffled)
    assert pathsearch.epoch == in_order.epoch
    for n in range(5):
        assert pathsearch.unvisited(n) == in_order.unvisited(n)


@given(visits_of_five, st.sampled_from(["one", "all"]), st.integers(0, 2**16))
def test_on_a_tree_it_is_dtur(visits, rule, seed):
    tree = nx.random_labeled_tree(6, seed=seed)
    edges = sorted((min(edge), max(edge)) for edge in tree.edges)
    pathsearch, dtur = Pathsearch(edges, 6, rule), Dtur(5, rule)
    for k, n in visits:
        pathsearch.visit(k, n)
        dtur.visit(k, n)
        assert pathsearch.epoch == dtur.epoch
        for edge in range(5):
            assert pathsearch.unvisited(edge) == dtur.unvisited(edge)


# Whole runs


class Members(Recorder):
    """A recorder that also keeps who averaged in which iteration, and with whom."""

    def __init__(self, iterations):
        super().__init__(iterations)
        self.members = defaultdict(dict)

    def record(self, rank, time, event, fields):
        super().record(rank, time, event, fields)
        if event == "average":
            self.members[fields["k"]][rank] = set(fields["active"])


def thresholds(graph, law, iterations, rule):
    """θ(k) and who has finished by then, straight from the definition, without messages: the least
    max(finish_i, finish_j) over edges of the graph that join two components of the epoch's edges.
    """
    n, visited = len(graph), nx.empty_graph(len(graph))
    finish = np.array([law(j, 0) for j in range(n)])
    edges = sorted((min(edge), max(edge)) for edge in graph.edges)
    for k in range(iterations):
        part = {j: number for number, c in enumerate(nx.connected_components(visited)) for j in c}
        theta = min(max(finish[i], finish[j]) for i, j in edges if part[i] != part[j])
        done = finish <= theta
        yield theta, set(np.flatnonzero(done).tolist())
        for i, j in edges:
            if done[i] and done[j] and not nx.has_path(visited, i, j):
                visited.add_edge(i, j)
                if rule == "one":
                    break
        if nx.is_connected(visited):
            visited = nx.empty_graph(n)
        for j in range(n):
            if done[j]:
                finish[j] = theta + law(j, k + 1)


@pytest.mark.parametrize("rule", ["one", "all"])
@pytest.mark.parametrize(
    ("graph", "workers"),
    [("ring", 7), ("star", 7), ("grid", 9), ("erdos_renyi:p=0.5", 9), ("complete", 6)],
)
def test_every_threshold_and_every_finisher_is_as_defined(graph, workers, rule):
    graph, law = build(graph, workers, 3), delays.parse("lognormal:mean=1,sigma=1", workers, 3)
    recorder = Members(200)
    run("dsgd_aau", graph, law, 200, recorder=recorder, edge_rule=rule)
    for k, (theta, finished) in enumerate(thresholds(graph, law, 200, rule)):
        assert recorder.last_close[k] == theta
        assert recorder.members[k] == {j: finished & set(graph[j]) for j in finished}


@pytest.mark.parametrize("seed", range(40))
def test_on_a_tree_a_run_equals_cb_dybw_bit_for_bit(seed):
    """Whatever delays, network, order, cuts and time limit; the trace and all parameters."""
    rng = np.random.default_rng(seed)
    scenario = simulation.draw(int(rng.integers(2**20)))
    workers = max(2, scenario.workers)
    tree = nx.path_graph(workers) if seed % 2 else nx.random_labeled_tree(workers, seed=seed)
    edges = tuple(sorted((min(edge), max(edge)) for edge in tree.edges))
    plan = replace(
        scenario.plan,
        neighbours=[tuple(sorted(tree[j])) for j in range(workers)],
        connecting=edges,
        policy="carry",
    )
    dybw, aau = (
        simulation.run(replace(scenario, plan=plan, algorithm=algorithm))
        for algorithm in ("cb_dybw", "dsgd_aau")
    )
    assert dybw.sha256() == aau.sha256()
    for rank, state in dybw.states.items():
        drawn.assert_same_state(state, aau.states[rank])


@cache
def rest_of_epoch(parts: tuple[int, ...]) -> Fraction:
    """Exact mean time to the end of an epoch on a complete graph, times Exp(1), policy carry.

    `parts` are the sizes of its trees, descending. What is left of an exponential time is
    distributed like a new one, so every iteration is a race of N, and every order of finishing is
    equally likely. It goes on as long as all who have finished are of the same tree, and then
    joins that tree with the next to finish: tree A is first with probability a/N, the first of
    another tree is of B with probability b/(N-a).
    """
    if len(parts) == 1:
        return Fraction(0)
    n = sum(parts)
    # The first r are of one tree with probability Σ C(a, r) / C(N, r); the next takes 1/(N-r).
    mean = Fraction(1, n) + sum(
        Fraction(sum(comb(a, r) for a in parts), comb(n, r) * (n - r)) for r in range(1, n)
    )
    for x, a in enumerate(parts):
        for y, b in enumerate(parts):
            if x != y:
                others = [c for z, c in enumerate(parts) if z not in (x, y)]
                joined = tuple(sorted([*others, a + b], reverse=True))
                mean += Fraction(a * b, n * (n - a)) * rest_of_epoch(joined)
    return mean


def test_the_exact_mean_on_small_complete_graphs_is_that_known_by_hand():
    assert rest_of_epoch((1, 1)) == Fraction(3, 2)  # both have to finish
    # Two of three, 1/3 + 1/2; then, with probability 1/3, all three: + 1/3 · 1.
    assert rest_of_epoch((1, 1, 1)) / 2 == (Fraction(5, 6) + Fraction(7, 6)) / 2


@pytest.mark.parametrize("rule", ["one", "all"])
@pytest.mark.parametrize("workers", [3, 6, 10])
def test_mean_times_on_a_complete_graph_are_within_one_percent_of_exact_theory(workers, rule):
    timed = run(
        "dsgd_aau",
        build("complete", workers, 0),
        "exponential:mean=1",
        45_000 // workers,
        edge_rule=rule,
        seed=4,
    )
    assert timed.mean == pytest.approx(
        float(rest_of_epoch((1,) * workers) / (workers - 1)), rel=0.01
    )
    complete = Pathsearch(timed.plan.edges, workers, rule).restore(timed.states[0].visits).epoch
    assert complete == timed.recorder.iterations // (workers - 1)
