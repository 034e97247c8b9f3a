"""Parameters as blocks: what is taken and put back, and how far blocks have moved."""

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cbdybw.scar import blocks as blocks_module
from cbdybw.scar.blocks import Blocks, euclidean, partition, total_variation

unequal = st.lists(st.integers(1, 6), min_size=1, max_size=12)
equal = st.builds(lambda n, size: [size] * n, st.integers(1, 12), st.integers(1, 6))


@st.composite
def chosen(draw):
    """Blocks, and some of them, perhaps none."""
    blocks = Blocks(draw(st.one_of(equal, unequal)))
    members = draw(st.sets(st.integers(0, len(blocks) - 1)))
    return blocks, np.array(sorted(members), np.int64)


def slices(blocks):
    """Each block's place in the vector, counted by hand."""
    end, places = 0, []
    for size in blocks.sizes.tolist():
        places.append(slice(end, end + size))
        end += size
    return places


@given(chosen())
def test_taking_packs_the_blocks_one_after_the_other(case):
    blocks, members = case
    x = np.arange(blocks.dim, dtype=np.float32)
    by_hand = [x[slices(blocks)[i]] for i in members]
    assert blocks.take(x, members).tolist() == [v for part in by_hand for v in part]


@given(chosen())
def test_putting_back_changes_these_blocks_and_no_others(case):
    blocks, members = case
    x = np.arange(blocks.dim, dtype=np.float32)
    packed = -1 - blocks.take(x, members)
    blocks.put(x, members, packed)
    np.testing.assert_array_equal(blocks.take(x, members), packed)
    for i, place in enumerate(slices(blocks)):
        values = np.arange(blocks.dim, dtype=np.float32)[place]
        np.testing.assert_array_equal(x[place], -1 - values if i in members else values)


@given(chosen())
def test_what_is_taken_is_no_view(case):
    blocks, members = case
    x = np.zeros(blocks.dim, np.float32)
    blocks.take(x, members)[:] = 1
    assert not x.any()


def test_rows_shards_and_arrays_are_cut_as_they_are_named():
    assert Blocks.rows(3, 4).sizes.tolist() == [4, 4, 4]
    assert Blocks.shards(10, 4).sizes.tolist() == [3, 3, 2, 2]
    assert Blocks.shards(3, 10).sizes.tolist() == [1, 1, 1]
    arrays = [np.zeros((2, 3)), np.zeros(5), np.zeros((4, 1, 2))]
    assert Blocks.of(arrays).sizes.tolist() == [6, 5, 8]
    assert Blocks.of(arrays, by="row").sizes.tolist() == [3, 3, 5, 2, 2, 2, 2]


@given(st.integers(1, 200), st.integers(1, 20))
def test_shards_are_cut_as_numpy_splits_arrays(dim, n):
    sizes = [len(part) for part in np.array_split(np.empty(dim), min(n, dim))]
    assert Blocks.shards(dim, n).sizes.tolist() == sizes


@pytest.mark.parametrize("sizes", [[3, 0], [-1], [[1, 2]]])
def test_blocks_without_values_are_refused(sizes):
    with pytest.raises(ValueError, match="at least one"):
        Blocks(sizes)


@given(st.integers(1, 40), st.integers(1, 7), st.integers(0, 2**32))
def test_parts_are_equally_large_but_for_one_block(n, parts, seed):
    counts = np.bincount(partition(n, parts, np.random.default_rng(seed)), minlength=parts)
    assert counts.sum() == n
    assert len(counts) == parts
    assert counts.max() - counts.min() <= 1


def test_any_two_blocks_are_together_as_often_as_chance_has_it():
    n, parts, draws = 8, 2, 4000
    rng = np.random.default_rng(0)
    owners = np.array([partition(n, parts, rng) for _ in range(draws)])
    p = 3 / 7  # of seven others, three are in the same half
    together = (owners[:, 0] == owners[:, 1]).mean()
    assert abs(together - p) < 4 * np.sqrt(p * (1 - p) / draws)


@pytest.mark.parametrize("sizes", [[500] * 700, [3] * 5, [1, 7, 2, 200_000, 5, 300], [140_000] * 2])
def test_euclidean_is_the_norm_of_each_blocks_change(sizes):
    rng = np.random.default_rng(0)
    blocks = Blocks(sizes)
    x, saved = rng.standard_normal((2, blocks.dim), np.float32)
    before = x.copy(), saved.copy()
    norms = [np.linalg.norm((x[s] - saved[s]).astype(np.float64)) for s in slices(blocks)]
    np.testing.assert_allclose(euclidean(x, saved, blocks), norms, rtol=2e-6)
    np.testing.assert_array_equal((x, saved), before)


@given(st.one_of(equal, unequal), st.integers(1, 12))
def test_runs_of_blocks_cover_all_and_hold_no_more_than_the_cache(sizes, most):
    blocks = Blocks(sizes)
    whole, blocks_module._IN_CACHE = blocks_module._IN_CACHE, most
    try:
        bounds = blocks.bounds
    finally:
        blocks_module._IN_CACHE = whole
    assert [bounds[0], bounds[-1]] == [0, len(blocks)]
    for first, last in itertools.pairwise(bounds):
        assert last == first + 1 or blocks.sizes[first:last].sum() <= most
        assert last == len(blocks) or blocks.sizes[first : last + 1].sum() > most


@given(st.data(), st.integers(1, 5), unequal)
def test_total_variation_is_what_a_loop_over_documents_counts(data, topics, lengths):
    blocks = Blocks(lengths)
    assignments = st.lists(
        st.integers(0, topics - 1), min_size=blocks.dim, max_size=blocks.dim
    ).map(lambda values: np.array(values, np.float32))
    z, saved = data.draw(assignments), data.draw(assignments)
    by_hand = []
    for place in slices(blocks):
        now, then = Counter(z[place].tolist()), Counter(saved[place].tolist())
        by_hand.append(sum(abs(now[t] - then[t]) for t in range(topics)) / 2)
    assert total_variation(topics)(z, saved, blocks).tolist() == by_hand


def test_total_variation_does_not_mind_the_order_of_a_documents_words():
    z = np.array([0, 1, 2, 2, 0, 0], np.float32)
    saved = np.array([2, 0, 1, 2, 2, 0], np.float32)
    assert total_variation(3)(z, saved, Blocks([3, 3])).tolist() == [0, 1]


@pytest.mark.parametrize("wrong", [-1.0, 3.0, np.nan])
def test_what_is_no_topic_is_refused(wrong):
    z = np.array([0, 1, 2, 1], np.float32)
    with pytest.raises(ValueError, match="no topic"):
        total_variation(3)(np.array([0, 1, wrong, 1], np.float32), z, Blocks([1, 3]))


def test_too_few_values_fill_no_blocks():
    with pytest.raises(ValueError, match="2 values"):
        Blocks([1, 2, 3]).put(np.zeros(6), np.array([2]), np.ones(2))
