"""Communication graphs and DTUR's connecting edges."""

from itertools import pairwise

import networkx as nx
import pytest

from cbdybw.errors import BadInput
from cbdybw.topology import build, connecting_edges, neighbours


def edges(spec, workers, seed=0):
    return sorted(tuple(sorted(edge)) for edge in build(spec, workers, seed).edges)


def refusal(spec, workers, seed=0):
    with pytest.raises(BadInput) as error:
        build(spec, workers, seed)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    ("spec", "workers", "expected"),
    [
        ("ring", 4, [(0, 1), (0, 3), (1, 2), (2, 3)]),
        ("ring", 2, [(0, 1)]),
        ("ring", 1, []),
        ("path", 4, [(0, 1), (1, 2), (2, 3)]),
        ("star", 4, [(0, 1), (0, 2), (0, 3)]),
        ("complete", 4, [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]),
        ("grid", 6, [(0, 1), (0, 3), (1, 2), (1, 4), (2, 5), (3, 4), (4, 5)]),
        ("hypercube", 4, [(0, 1), (0, 2), (1, 3), (2, 3)]),
        ("hypercube", 1, []),
        ("erdos_renyi:p=1", 3, [(0, 1), (0, 2), (1, 2)]),
        ("random_regular:degree=3", 4, [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]),
    ],
)
def test_a_named_graph_has_exactly_these_edges(spec, workers, expected):
    assert edges(spec, workers) == expected


def test_a_grid_is_as_square_as_it_can_be():
    degrees = sorted(d for _, d in build("grid", 16, 0).degree)
    assert degrees == [2] * 4 + [3] * 8 + [4] * 4


@pytest.mark.parametrize("spec", ["erdos_renyi:p=0.3", "random_regular:degree=3"])
def test_a_random_graph_is_connected_and_keyed_by_its_seed(spec):
    draws = [edges(spec, 12, seed) for seed in range(20)]
    assert draws == [edges(spec, 12, seed) for seed in range(20)]
    assert len({tuple(draw) for draw in draws}) == 20
    assert all(nx.is_connected(nx.Graph(draw)) for draw in draws)


def test_every_worker_of_a_random_regular_graph_has_that_many_neighbours():
    assert [len(n) for n in neighbours(build("random_regular:degree=5", 30, 3))] == [5] * 30


def test_an_erdos_renyi_graph_has_about_p_of_all_edges():
    assert build("erdos_renyi:p=0.3", 200, 1).number_of_edges() == pytest.approx(5970, abs=260)


def test_neighbours_are_ascending_and_leave_the_worker_out():
    assert neighbours(build("ring", 5, 0)) == [(1, 4), (0, 2), (1, 3), (2, 4), (0, 3)]


def test_a_file_may_have_comments_and_blank_lines(tmp_path):
    path = tmp_path / "paper,p=0.graph"
    path.write_text("# the figure\n0 1\n\n2 1  # a chord\n3 2\n")
    assert edges(f"file:{path}", 4) == [(0, 1), (1, 2), (2, 3)]


@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        ("0 1\n1 2\n2 3\n1 0\n", "line 4 repeats the edge 1 0"),
        ("0 1\n2 2\n", "line 2: the edge 2 2 is a self-loop"),
        ("0 1\n\n1 4\n", "line 3: there is no worker 4; use 0 … 3"),
        ("0 1 2\n", "line 1: '0 1 2' is no edge"),
        ("0 -1\n", "line 1: '0 -1' is no edge"),
        ("0 1\n2 3\n", "not connected: worker 2 cannot be reached"),
        ("0 1\n1 2\n", "not connected: worker 3 cannot be reached"),
    ],
)
def test_a_bad_edge_list_is_refused_with_its_line(tmp_path, lines, complaint):
    path = tmp_path / "edges"
    path.write_text(lines)
    assert complaint in refusal(f"file:{path}", 4)


def test_a_file_that_is_missing_or_no_text_is_refused(tmp_path):
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe\x00")
    assert "cannot be read" in refusal(f"file:{tmp_path / 'absent'}", 4)
    assert "cannot be read" in refusal(f"file:{binary}", 4)


def test_a_prime_number_of_workers_is_told_which_grids_are_near():
    expected = "--graph=grid: 7 workers make no grid; use 6, 8 or 9, or --graph=ring"
    assert refusal("grid", 7) == expected
    assert "use 4 or 6, or --graph=ring" in refusal("grid", 3)


@pytest.mark.parametrize(
    ("spec", "workers", "complaint"),
    [
        ("torus", 6, "--graph=torus: 'torus' is not known; use one of ring, path, star"),
        ("ring:p=1", 6, "there is no key 'p'; use ring"),
        ("erdos_renyi", 6, "p is missing; use erdos_renyi:p="),
        ("erdos_renyi:p=0", 6, "p is '0'; use a finite number above 0 to 1"),
        ("erdos_renyi:p=1.1", 6, "p is '1.1'"),
        ("erdos_renyi:p=nan", 6, "p is 'nan'"),
        ("erdos_renyi:p=0.01", 50, "none of 100 draws is connected; use p well above ln(N)/N"),
        ("random_regular:degree=6", 6, "have at most 5 neighbours each"),
        ("random_regular:degree=3", 7, "use an even degree or 8 workers"),
        ("random_regular:degree=1", 6, "none of 100 draws is connected; use degree=3 or more"),
        ("random_regular:degree=2.5", 6, "degree is '2.5'; use a whole number from 1 up"),
        ("hypercube", 6, "6 is no power of 2; use 4 or 8 workers"),
        ("file:", 6, "path is ''"),
        ("ring", 0, "--workers=0"),
    ],
)
def test_a_graph_that_cannot_be_is_refused_and_told_what_to_change(spec, workers, complaint):
    assert complaint in refusal(spec, workers)


def assert_connects(graph, connection):
    assert all(low < high and graph.has_edge(low, high) for low, high in connection.edges)
    assert len(connection.edges) == len(graph) - 1
    tree = nx.Graph(connection.edges)
    assert len(graph) == 1 or (len(tree) == len(graph) and nx.is_connected(tree))
    degrees = [degree for _, degree in tree.degree]
    assert connection.is_path == (max(degrees, default=0) <= 2)
    if connection.is_path:
        assert all(set(a) & set(b) for a, b in pairwise(connection.edges)), "not in path order"


@pytest.mark.parametrize(
    ("spec", "workers"),
    [
        ("ring", 1),
        ("ring", 2),
        ("ring", 10_000),
        ("path", 10_000),
        ("grid", 9),
        ("grid", 10_000),
        ("complete", 256),
        ("hypercube", 1024),
        ("random_regular:degree=3", 100),
        ("random_regular:degree=4", 10_000),
        ("erdos_renyi:p=0.01", 1000),
    ],
)
def test_a_hamiltonian_path_is_found_on(spec, workers):
    graph = build(spec, workers, 1)
    connection = connecting_edges(graph)
    assert connection.is_path
    assert_connects(graph, connection)


def test_the_path_of_a_ring_counts_up():
    assert connecting_edges(build("ring", 5, 0)).edges == ((0, 1), (1, 2), (2, 3), (3, 4))


def test_the_example_graph_of_six_workers_has_a_path():
    graph = nx.empty_graph(6)
    graph.add_edges_from([(0, 1), (0, 2), (1, 2), (1, 3), (2, 4), (3, 4), (3, 5), (4, 5)])
    connection = connecting_edges(graph)
    assert connection.is_path
    assert_connects(graph, connection)


@pytest.mark.parametrize("spec", ["star", "random_regular:degree=3"])
def test_a_tree_stands_in_where_no_path_is_found(spec):
    graph = build(spec, 5000, 1)
    connection = connecting_edges(graph)
    assert not connection.is_path
    assert_connects(graph, connection)


def has_hamiltonian_path(graph):
    """By dynamic programming over subsets: in which nodes a path over exactly this set can end."""
    around = [sum(1 << u for u in graph[v]) for v in range(len(graph))]
    tails = {1 << v: 1 << v for v in range(len(graph))}
    for _ in range(len(graph) - 1):
        longer = {}
        for nodes, ends in tails.items():
            for u in range(len(graph)):
                if not nodes >> u & 1 and around[u] & ends:
                    longer[nodes | 1 << u] = longer.get(nodes | 1 << u, 0) | 1 << u
        tails = longer
    return bool(tails)


@pytest.mark.parametrize(("workers", "p"), [(6, 0.4), (8, 0.3), (11, 0.25)])
def test_on_small_sparse_graphs_a_path_is_found_whenever_there_is_one(workers, p):
    found = []
    for seed in range(40):
        graph = build(f"erdos_renyi:p={p}", workers, seed)
        connection = connecting_edges(graph)
        assert_connects(graph, connection)
        assert connection.is_path == has_hamiltonian_path(graph), f"seed {seed}"
        found.append(connection.is_path)
    assert 5 < sum(found) < 40  # both cases occur


def test_the_connecting_edges_are_the_same_every_time():
    graph = build("random_regular:degree=4", 500, 2)
    assert connecting_edges(graph) == connecting_edges(graph)
