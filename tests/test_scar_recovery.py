"""What takes the place of lost parameters, and what that perturbs."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cbdybw.errors import BadInput
from cbdybw.mixing import full_matrix
from cbdybw.scar import recovery
from cbdybw.scar.blocks import Blocks
from cbdybw.scar.checkpoint import Memory
from cbdybw.scar.log import Log
from cbdybw.topology import build


@st.composite
def failures(draw):
    """Blocks, parameters, what is saved of them, and which blocks are lost."""
    blocks = Blocks(draw(st.lists(st.integers(1, 5), min_size=1, max_size=8)))
    values = st.lists(st.floats(-1e6, 1e6, width=32), min_size=blocks.dim, max_size=blocks.dim).map(
        lambda v: np.array(v, np.float32)
    )
    lost = sorted(draw(st.sets(st.integers(0, len(blocks) - 1))))
    return blocks, draw(values), draw(values), np.array(lost, np.int64)


def norm(change):
    return np.linalg.norm(change.astype(np.float64))


@given(failures())
def test_partial_recovery_sets_the_lost_blocks_back_and_leaves_the_others(failure):
    blocks, x, saved, lost = failure
    before = x.copy()
    restored = recovery.partial(x, lost, blocks, blocks.take(saved, lost))
    is_lost = np.repeat(np.isin(np.arange(len(blocks)), lost), blocks.sizes)
    np.testing.assert_array_equal(restored, np.where(is_lost, saved, x))
    np.testing.assert_array_equal(x, before)


@given(failures())
def test_partial_recovery_never_perturbs_more_than_full_recovery(failure):
    """Theorem 4.1."""
    blocks, x, saved, lost = failure
    partial = recovery.partial(x, lost, blocks, blocks.take(saved, lost))
    assert norm(partial - x) <= norm(recovery.full(saved) - x)


@given(failures())
def test_with_everything_lost_partial_recovery_is_full_recovery(failure):
    blocks, x, saved, _ = failure
    everything = np.arange(len(blocks))
    partial = recovery.partial(x, everything, blocks, blocks.take(saved, everything))
    assert partial.tobytes() == recovery.full(saved).tobytes()


def test_what_is_restored_is_not_the_saved_copy_itself():
    saved = np.zeros(3, np.float32)
    recovery.full(saved)[:] = 1
    assert not saved.any()


def spread(p, squares):
    """Standard deviation of ‖δ'‖² / ‖δ‖² when a share p of the n blocks is drawn."""
    n, total = len(squares), squares.sum()
    return math.sqrt(p * (1 - p) / (n - 1) * (n * (squares**2).sum() - total**2)) / total


def shares(blocks, x, saved, subsets):
    """‖δ'‖² / ‖δ‖² when each of these subsets is lost."""
    whole = norm(saved - x) ** 2
    return np.array([
        norm(recovery.partial(x, lost, blocks, blocks.take(saved, lost)) - x) ** 2 / whole
        for lost in subsets
    ])  # fmt: skip


@pytest.mark.parametrize("sizes", [[3] * 8, [1, 2, 3, 4, 5, 6, 7, 8]])
def test_over_all_halves_the_mean_perturbation_is_half_to_the_last_digit(sizes):
    """Theorem 4.2 by counting: 70 subsets."""
    blocks, rng = Blocks(sizes), np.random.default_rng(0)
    x, saved = rng.integers(-9, 9, (2, blocks.dim)).astype(np.float32)
    subsets = [np.array(s) for s in itertools.combinations(range(8), 4)]
    ratios = shares(blocks, x, saved, subsets)
    squares = np.add.reduceat((saved - x).astype(np.float64) ** 2, blocks.starts)
    assert ratios.mean() == pytest.approx(0.5, rel=1e-12)
    assert ratios.std() == pytest.approx(spread(0.5, squares), rel=1e-12)


@pytest.mark.parametrize("p", [1 / 4, 1 / 2, 3 / 4])
def test_over_random_subsets_the_mean_perturbation_is_their_share(p):
    """Theorem 4.2 by drawing, mean and spread."""
    n, draws, seed = 40, 4000, 1
    print(f"{seed=}")
    blocks, rng = Blocks.rows(n, 5), np.random.default_rng(seed)
    x, saved = rng.standard_normal((2, blocks.dim), np.float32)
    saved *= np.repeat(rng.exponential(size=n), 5).astype(np.float32)  # unequal blocks
    subsets = [np.sort(rng.choice(n, int(p * n), replace=False)) for _ in range(draws)]
    ratios = shares(blocks, x, saved, subsets)
    exact = spread(p, np.add.reduceat((saved - x).astype(np.float64) ** 2, blocks.starts))
    assert abs(ratios.mean() - p) < 4 * exact / math.sqrt(draws)
    assert ratios.std() == pytest.approx(exact, rel=4 / math.sqrt(2 * draws))


# The newest copies.


def stores(tmp_path, blocks):
    return [
        Memory(blocks),
        Log(tmp_path / "0", blocks, "model"),
        Log(tmp_path / "1", blocks, "model"),
    ]


def test_the_newest_copy_of_each_block_is_found_among_several_stores(tmp_path):
    blocks = Blocks([1, 2, 1, 3])
    memory, one, other = stores(tmp_path, blocks)
    for store, k, members in (
        (memory, 2, [0, 1]), (one, 1, [0, 1, 3]), (one, 5, [1]), (other, 4, [1, 3]),
    ):  # fmt: skip
        members = np.array(members)
        store.write(k, members, np.full(blocks.sizes[members].sum(), k, np.float32))
    packed, saved_at = recovery.newest([memory, one, other], np.array([0, 1, 3]))
    assert saved_at.tolist() == [2, 5, 4]
    assert packed.tolist() == [2, 5, 5, 4, 4, 4]
    with pytest.raises(BadInput, match="no copy of block 2 ") as refusal:
        recovery.newest([memory, one, other], np.arange(4))
    assert "\n" not in str(refusal.value)


def test_a_damaged_copy_is_taken_from_another_store_and_it_is_said(tmp_path):
    blocks = Blocks([1, 2])
    _, one, other = stores(tmp_path, blocks)
    everything = np.arange(2)
    for k, log in enumerate((one, other)):
        log.write(k, everything, np.full(3, k, np.float32))
        log.flush()
    path = tmp_path / "1" / "000000001.blocks"
    path.write_bytes(path.read_bytes()[:-1])
    packed, saved_at = recovery.newest([one, other], everything)
    assert (packed.tolist(), saved_at.tolist()) == ([0, 0, 0], [0, 0])
    assert other.damage == (f"{path}: is cut short",)
    with pytest.raises(BadInput, match=r"no copy of block 0 and 1 others .*is cut short"):
        recovery.newest([other], everything)


# Neighbours.


def test_a_lost_worker_begins_between_its_neighbours_by_their_weights():
    """Of degree 2, beside workers of degrees 1 and 4: weights 1/3 and 1/5, or 5/8 and 3/8."""
    estimates = {3: np.array([8, 0], np.float32), 1: np.array([0, 16], np.float32)}
    w = recovery.neighbour_average(2, estimates, {1: 1, 2: 2, 3: 4})
    np.testing.assert_allclose(w, [3, 10], rtol=1e-6)
    assert w.dtype == np.float32


@pytest.mark.parametrize("graph", ["ring", "complete", "star"])
def test_the_weights_are_the_lost_workers_row_of_p_scaled_to_a_sum_of_one(graph):
    graph = build(graph, 6, seed=0)
    p = full_matrix(graph)
    w = np.random.default_rng(0).standard_normal((6, 3)).astype(np.float32)
    for lost in range(6):
        living = [i for i in graph[lost] if i != 5] or list(graph[lost])
        row = np.where(np.isin(np.arange(6), living), p[lost], 0)
        average = recovery.neighbour_average(lost, {i: w[i] for i in living}, dict(graph.degree))
        np.testing.assert_allclose(average, row @ w / row.sum(), rtol=1e-5, atol=1e-6)


def test_workers_that_agree_give_a_lost_one_what_they_agree_on():
    w = np.arange(4, dtype=np.float32)
    average = recovery.neighbour_average(0, {1: w, 2: w.copy()}, {0: 2, 1: 3, 2: 1})
    np.testing.assert_allclose(average, w, rtol=1e-6)


def test_without_a_living_neighbour_there_is_nothing_to_begin_from():
    with pytest.raises(ValueError, match="no neighbour of worker 3"):
        recovery.neighbour_average(3, {}, {3: 2})


# Blocks of lost servers.


@given(st.integers(1, 60), st.integers(2, 7), st.data())
def test_blocks_of_lost_parts_go_to_the_living_who_keep_theirs(n, parts, data):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    owner = 10 + rng.integers(parts, size=n)
    heirs = recovery.heirs(owner, range(10, 10 + parts), rng)
    lost = data.draw(st.lists(st.integers(10, 9 + parts), unique=True, max_size=parts - 1))
    after = owner
    for count in range(len(lost) + 1):  # one after the other
        before, after = after, recovery.holders(heirs, lost[:count])
        orphans = np.isin(before, lost[:count])
        np.testing.assert_array_equal(after[~orphans], before[~orphans])
        assert not np.isin(after, lost[:count]).any()
    np.testing.assert_array_equal(np.sort(heirs, axis=1), [range(10, 10 + parts)] * n)


def test_an_orphan_comes_to_each_of_the_living_equally_often():
    owner = np.repeat([0, 1, 2, 3], 6000)
    heirs = recovery.heirs(owner, range(4), np.random.default_rng(2))
    for lost, share in (({0}, 1 / 3), ({0, 2}, 1 / 2)):
        counts = np.bincount(recovery.holders(heirs, lost)[owner == 0], minlength=4)
        living = counts[[j for j in range(4) if j not in lost]]
        assert living.sum() == 6000
        assert np.abs(living - 6000 * share).max() < 4 * math.sqrt(6000 * share * (1 - share))
