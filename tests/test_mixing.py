"""Metropolis weights and the average that they define."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cbdybw.mixing import (
    combine,
    full_matrix,
    matrix,
    metropolis,
    second_eigenvalue,
    violation,
)
from cbdybw.problem import Weightless
from cbdybw.topology import build

EXAMPLE = [(1, 2), (0, 2, 3), (0, 1, 4), (1, 4, 5), (2, 3, 5), (3, 4)]  # N=6, 8 edges


def test_a_row_weighs_active_neighbours_by_the_larger_size_and_stands_in_rank_order():
    row = metropolis(2, 2, {5: 3, 0: 1})
    assert list(row.items()) == [(0, 1 / 3), (2, 1 - 1 / 3 - 1 / 4), (5, 1 / 4)]


def test_a_worker_without_active_neighbours_keeps_its_estimate():
    assert metropolis(4, 3, {}) == {4: 1.0}


def test_the_path_of_three_has_the_matrix_known_by_hand():
    expected = np.array([[2, 1, 0], [1, 1, 1], [0, 1, 2]]) / 3
    np.testing.assert_allclose(full_matrix(build("path", 3, 0)), expected, rtol=1e-15)


@pytest.mark.parametrize(
    ("graph", "workers", "expected"),
    [
        ("path", 3, 2 / 3),
        ("ring", 6, 2 / 3),
        ("ring", 10, 0.872678),
        ("path", 6, 0.910684),
        ("path", 10, 0.967371),
        ("star", 6, 5 / 6),
        ("complete", 5, 0.0),
    ],
)
def test_the_second_eigenvalue_of_known_graphs(graph, workers, expected):
    p = full_matrix(build(graph, workers, 0))
    assert second_eigenvalue(p) == pytest.approx(expected, abs=5e-7)


def test_the_example_of_six_workers_all_active():
    p = matrix(6, EXAMPLE)
    quarter = [[2, 1, 1, 0, 0, 0], [1, 1, 1, 1, 0, 0], [1, 1, 1, 0, 1, 0],
               [0, 1, 0, 1, 1, 1], [0, 0, 1, 1, 1, 1], [0, 0, 0, 1, 1, 2]]  # fmt: skip
    np.testing.assert_allclose(p, np.array(quarter) / 4, rtol=1e-15)
    assert second_eigenvalue(p) == pytest.approx(0.75)


def test_the_example_of_six_workers_of_which_four_have_finished():
    finished = [tuple(i for i in near if i < 4) if j < 4 else () for j, near in enumerate(EXAMPLE)]
    expected = np.eye(6)
    expected[:4, :4] = [
        [5 / 12, 1 / 4, 1 / 3, 0],
        [1 / 4, 1 / 4, 1 / 4, 1 / 4],
        [1 / 3, 1 / 4, 5 / 12, 0],
        [0, 1 / 4, 0, 3 / 4],
    ]
    np.testing.assert_allclose(matrix(6, finished), expected, rtol=1e-14)


def test_one_edge_an_iteration_still_brings_a_path_of_three_together():
    first, second = matrix(3, [(1,), (0,), ()]), matrix(3, [(), (2,), (1,)])
    off_consensus = second @ first - np.full((3, 3), 1 / 3)
    assert np.linalg.norm(off_consensus, 2) == pytest.approx(1 / 2)


@given(st.integers(1, 9), st.randoms(use_true_random=False))
def test_any_symmetric_active_sets_and_larger_announced_sizes_give_a_doubly_stochastic_matrix(
    n, draw
):
    edges = [(i, j) for j in range(n) for i in range(j) if draw.random() < 0.5]
    active = [tuple(sum(edge) - j for edge in edges if j in edge) for j in range(n)]
    sizes = [len(members) + draw.randrange(4) for members in active]
    assert violation(matrix(n, active, sizes)) < 1e-12


def test_one_sided_active_sets_are_a_violation():
    assert violation(matrix(2, [(1,), ()])) == pytest.approx(0.5)


def test_an_average_is_summed_in_rank_order_into_a_new_float32_vector():
    rng = np.random.default_rng(0)
    vectors = {i: rng.standard_normal(1000, np.float32) for i in (3, 0, 7, 5)}
    row = metropolis(3, 3, {7: 2, 0: 3, 5: 3})
    before = {i: vector.copy() for i, vector in vectors.items()}
    mean = combine(row, vectors)
    expected = row[0] * vectors[0]
    for i in (3, 5, 7):
        expected = expected + row[i] * vectors[i]
    assert mean.dtype == np.float32
    assert mean.tobytes() == expected.tobytes()
    for i, vector in vectors.items():
        assert vector.tobytes() == before[i].tobytes()


def test_vectors_of_workers_that_the_row_does_not_name_stay_outside():
    vectors = {0: np.float32([1.0]), 1: np.float32([np.nan])}
    assert combine({0: 1.0}, vectors) == [1.0]


def test_the_average_of_vectors_without_content_has_none():
    estimate = Weightless(400)
    assert combine({0: 0.5, 1: 0.5}, {0: estimate, 1: estimate}) is estimate
