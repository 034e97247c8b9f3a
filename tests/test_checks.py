"""The demo's checks: each must be able to fail."""

import numpy as np

from experiments.checks import connected, count_epochs, exact_reduction, new_edges

PATH = np.array([(0, 1), (1, 2), (2, 3)])


def visits(*rows):
    return np.array(rows).reshape(-1, 2)


def edges(*rows):
    return np.array(rows).reshape(-1, 3)


ONE_EPOCH = visits((0, 1), (1, 0), (2, 2))
ITS_EDGES = edges((0, 1, 2), (1, 0, 1), (2, 2, 3))


def test_the_reduction_may_be_five_points_off_and_no_more():
    assert exact_reduction(0.623 + 0.0499, 0.623).passed
    assert not exact_reduction(0.623 + 0.0501, 0.623).passed
    assert not exact_reduction(0.623 - 0.0501, 0.623).passed


def test_an_epoch_is_complete_when_every_edge_has_been_new_once():
    epochs = count_epochs(ONE_EPOCH, PATH)
    assert epochs.complete == [range(3)]
    assert epochs.new_edge == {0: (1, 2), 1: (0, 1), 2: (2, 3)}


def test_of_several_new_edges_of_an_iteration_the_lowest_counts():
    epochs = count_epochs(visits((0, 0), (0, 1), (3, 1), (5, 2)), PATH)
    assert epochs.new_edge == {0: (0, 1), 3: (1, 2), 5: (2, 3)}
    assert epochs.complete == [range(6)]


def test_an_edge_that_is_not_new_counts_in_no_iteration():
    epochs = count_epochs(visits((0, 1), (1, 1), (2, 0)), PATH)
    assert epochs.new_edge == {0: (1, 2), 2: (0, 1)}
    assert epochs.complete == []


def test_a_missing_new_edge_is_counted_against_the_share():
    epochs = count_epochs(ONE_EPOCH, PATH)
    assert new_edges(epochs, ONE_EPOCH, PATH, ITS_EDGES, iterations=3).passed
    check = new_edges(epochs, ONE_EPOCH, PATH, ITS_EDGES, iterations=4)
    assert not check.passed
    assert check.says.startswith("3 of 4 iterations (75.0 %)")


def test_a_visit_of_an_edge_that_was_not_averaged_fails():
    check = new_edges(count_epochs(ONE_EPOCH, PATH), ONE_EPOCH, PATH, ITS_EDGES[:2], 3)
    assert not check.passed
    assert "1 visits name an edge that was not averaged" in check.says


def test_an_epoch_whose_active_edges_leave_a_worker_alone_fails():
    epochs = count_epochs(ONE_EPOCH, PATH)
    assert connected(epochs, ITS_EDGES, workers=4).passed
    assert connected(epochs, ITS_EDGES, workers=4).says == "1 of 1 epochs connect all 4 workers"
    assert not connected(epochs, ITS_EDGES[:2], workers=4).passed
    late = edges((0, 1, 2), (1, 0, 1), (3, 2, 3))  # the edge came after the epoch
    assert not connected(epochs, late, workers=4).passed


def test_a_run_without_a_complete_epoch_fails():
    assert not connected(count_epochs(ONE_EPOCH[:2], PATH), ITS_EDGES, workers=4).passed
