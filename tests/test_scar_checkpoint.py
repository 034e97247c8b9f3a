"""Running checkpoints: which blocks are saved, when, and how old the copies are."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cbdybw.errors import BadInput
from cbdybw.scar.blocks import Blocks, euclidean
from cbdybw.scar.checkpoint import NOWHERE, POLICIES, Memory, RunningCheckpoint, largest

C = 8


def begin(blocks, x, members=None, *, fraction=1 / 8, period=C, policy="priority", seed=0, **more):
    """A running checkpoint in memory, and its store."""
    store = Memory(blocks)
    members = np.arange(len(blocks)) if members is None else members
    return RunningCheckpoint(
        blocks, members, x, fraction=fraction, period=period, policy=policy, distance=euclidean,
        rng=lambda k: np.random.default_rng((seed, k)), store=store, **more,
    ), store  # fmt: skip


def walk(rng, blocks, n):
    """n vectors, each some way from the one before."""
    return np.cumsum(rng.standard_normal((n, blocks.dim)), 0).astype(np.float32)


@given(st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0, np.inf]), min_size=1, max_size=20), st.data())
def test_the_largest_distances_are_found_and_of_equal_ones_the_first(d, data):
    count = data.draw(st.integers(1, len(d)))
    by_hand = sorted(sorted(range(len(d)), key=lambda i: (-d[i], i))[:count])
    assert largest(np.array(d, np.float32), count).tolist() == by_hand


def test_a_block_that_is_no_number_any_more_counts_as_farthest():
    assert largest(np.array([1, np.nan, 3, np.nan]), 3).tolist() == [1, 2, 3]
    assert largest(np.array([np.nan, np.nan, np.nan]), 2).tolist() == [0, 1]


@pytest.mark.parametrize("sizes", [[4] * 24, list(range(1, 25))])
def test_priority_saves_exactly_the_blocks_that_have_moved_farthest(sizes):
    rng = np.random.default_rng(1)
    blocks = Blocks(sizes)
    x = walk(rng, blocks, 40)
    running, store = begin(blocks, x[0], fraction=1 / 4)
    saved, budget = x[0].copy(), 0.0
    for k in range(1, 40):
        ends = np.cumsum(sizes)[:-1]
        moved = [float(np.linalg.norm(d)) for d in np.split((x[k] - saved).astype("f8"), ends)]
        budget += blocks.dim / 4
        by_hand = []
        for i in sorted(range(24), key=lambda i: -moved[i]):
            if sizes[i] > budget:
                break
            by_hand.append(i)
            budget -= sizes[i]
        by_hand.sort()
        assert running.save(x[k], k).tolist() == by_hand
        for i in by_hand:
            np.split(saved, ends)[i][:] = np.split(x[k], ends)[i]
        np.testing.assert_array_equal(running.cached, saved)
        np.testing.assert_array_equal(store.read(np.arange(24))[0], saved)


def test_round_takes_the_blocks_in_turn():
    blocks = Blocks.rows(5, 2)
    running, _ = begin(blocks, np.zeros(10, np.float32), policy="round", fraction=0.4)
    chosen = [running.save(np.zeros(10, np.float32), k).tolist() for k in range(1, 6)]
    assert chosen == [[0, 1], [2, 3], [0, 4], [1, 2], [3, 4]]


def test_random_chooses_by_the_iteration_alone_and_each_block_equally_often():
    blocks, x = Blocks.rows(16, 1), np.zeros(16, np.float32)
    one, _ = begin(blocks, x, policy="random", fraction=1 / 4)
    other, _ = begin(blocks, x, policy="random", fraction=1 / 4)
    times, saves = np.zeros(16), 2000
    for k in range(1, saves + 1):
        chosen = one.save(x, k)
        assert len(set(chosen.tolist())) == 4
        times[chosen] += 1
        if k % 100 == 0:
            np.testing.assert_array_equal(other.save(x, k), chosen)
    assert np.abs(times - saves / 4).max() < 5 * np.sqrt(saves * 3 / 16)


def test_saves_are_due_every_rc_iterations_and_never_at_the_start():
    blocks, x = Blocks.rows(16, 1), np.zeros(16, np.float32)

    def due(**settings):
        running, _ = begin(blocks, x, **settings)
        return [k for k in range(17) if running.due(k)]

    assert due(fraction=1 / 8) == list(range(1, 17))
    assert due(fraction=1 / 4) == list(range(2, 17, 2))
    assert due(fraction=1.0) == [8, 16]
    assert due(fraction=1 / 8, policy="full") == [8, 16]  # which is r = 1
    assert due(fraction=1 / 8, period=3) == list(range(1, 17))  # at least one iteration


def test_a_block_that_is_too_large_is_waited_for():
    blocks, x = Blocks([1, 4, 1]), np.zeros(6, np.float32)
    running, _ = begin(blocks, x, fraction=1 / 4)
    x[1:5] = 9
    x[5] = 1
    assert [running.save(x, k).tolist() for k in range(1, 5)] == [[], [], [1], [0, 2]]


@pytest.mark.parametrize("policy", ["priority", "round", "random"])
@pytest.mark.parametrize("fraction", [1 / 8, 1 / 4, 1 / 2])
def test_blocks_of_unequal_sizes_take_no_more_bytes(policy, fraction):
    rng = np.random.default_rng(5)
    blocks = Blocks(rng.integers(1, 60, 40))
    x = walk(rng, blocks, 30 * C)
    running, _ = begin(blocks, x[0], fraction=fraction, policy=policy)
    for k in range(1, 30 * C):
        if running.due(k):
            running.save(x[k], k)
        allowed = fraction * blocks.dim * (k // (fraction * C))
        written = running.bytes_written / 4 - blocks.dim
        assert allowed - blocks.sizes.max() < written <= allowed


@pytest.mark.parametrize("policy", POLICIES)
def test_with_r_of_one_every_policy_is_the_classical_scheme_bit_for_bit(policy):
    blocks = Blocks([3, 1, 4, 1, 5])
    x = walk(np.random.default_rng(2), blocks, 30)
    running, store = begin(blocks, x[0], fraction=1.0, policy=policy)
    for k in range(1, 30):
        if running.due(k):
            running.save(x[k], k)
        last = k - k % C
        packed, saved_at = store.read(np.arange(5))
        assert packed.tobytes() == x[last].tobytes()
        assert saved_at.tolist() == [last] * 5


@pytest.mark.parametrize("policy", ["priority", "round", "random"])
def test_in_c_iterations_as_many_bytes_are_written_whatever_r_is(policy):
    blocks = Blocks.rows(32, 3)
    x = walk(np.random.default_rng(3), blocks, 4 * C + 1)
    for fraction in (1 / 8, 1 / 4, 1 / 2, 1.0):
        running, _ = begin(blocks, x[0], fraction=fraction, policy=policy)
        written = [running.bytes_written]
        for k in range(1, 4 * C + 1):
            if running.due(k):
                running.save(x[k], k)
            if k % C == 0:
                written.append(running.bytes_written)
        assert np.diff(written).tolist() == [4 * blocks.dim] * 4, fraction


def mean_age(policy, fraction, n, cycles, apart):
    """Mean age of saved copies in every `apart`-th cycle of C iterations."""
    blocks, x = Blocks.rows(n, 1), np.zeros(n, np.float32)
    running, _ = begin(blocks, x, fraction=fraction, policy=policy, seed=4)
    ages = []
    for k in range(1, cycles * apart * C):
        if running.due(k):
            running.save(x, k)
        if k // C % apart == apart - 1:
            ages.append((k - running.saved_at).mean())
    return np.mean(ages)


@pytest.mark.parametrize("fraction", [1 / 8, 1 / 4, 1 / 2, 1])
def test_copies_in_turn_are_as_old_as_those_of_full_checkpoints(fraction):
    """(C-1)/2 = 3.5 iterations for every r."""
    assert mean_age("round", fraction, 16, cycles=3, apart=2) == 3.5
    assert mean_age("full", fraction, 16, cycles=3, apart=2) == 3.5


@pytest.mark.parametrize(("fraction", "exact"), [(1 / 8, 7.0), (1 / 4, 6.5), (1 / 2, 5.5)])
def test_copies_at_random_are_older(fraction, exact):
    """C - rC/2 - 1/2: a geometric number of saves with mean 1/r - 1, rC apart, and (rC-1)/2."""
    n, cycles = 1000, 40
    every = fraction * C
    variance = every**2 * (1 - fraction) / fraction**2 + (every**2 - 1) / 12
    error = np.sqrt(variance / (n * cycles))  # cycles lie so far apart that they are independent
    assert abs(mean_age("random", fraction, n, cycles, apart=8) - exact) < 4 * error


def test_of_a_part_of_the_model_only_that_part_is_saved():
    blocks = Blocks([2, 3, 1, 4])
    x = np.arange(10, dtype=np.float32)
    members = np.array([1, 3])
    running, store = begin(blocks, blocks.take(x, members), members, fraction=4 / 7)
    x[5] = x[6:] = -1
    assert running.save(blocks.take(x, members), 1).tolist() == [3]
    assert store.copies(np.arange(4))[1].tolist() == [NOWHERE, 0, NOWHERE, 1]
    assert store.read(members)[0].tolist() == [2, 3, 4, -1, -1, -1, -1]
    with pytest.raises(BadInput, match="no copy of block 0"):
        store.read(np.arange(4))


def test_what_is_saved_does_not_change_with_the_parameters():
    blocks, x = Blocks.rows(4, 2), np.zeros(8, np.float32)
    running, store = begin(blocks, x, fraction=1 / 2)
    x += 1
    running.save(x, 1)
    x += 1
    assert running.cached.tolist() == store.read(np.arange(4))[0].tolist() == [1] * 4 + [0] * 4
    assert running.saved_at.tolist() == [1, 1, 0, 0]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_server_that_holds_nothing_saves_nothing_until_it_gains_blocks(policy):
    blocks, none = Blocks([1, 2]), np.empty(0, np.int64)
    running, _ = begin(blocks, np.empty(0, np.float32), none, policy=policy)
    assert running.save(np.empty(0, np.float32), 1).tolist() == []
    assert running.bytes_written == 0
    running.gain(np.array([1]), np.array([5, 6], np.float32), np.array([0]), 2)
    for k in range(3, 11):
        chosen = running.save(np.array([7, 8], np.float32), k).tolist()
        assert chosen == ([1] if policy == "full" or k == 10 else [])
    assert running.cached.tolist() == [7, 8]


@pytest.mark.parametrize("policy", POLICIES)
def test_blocks_of_a_lost_server_are_saved_at_once_and_from_then_on(policy):
    blocks = Blocks([1, 2, 3, 1, 2])
    x = np.arange(9, dtype=np.float32)
    mine, theirs = np.array([1, 4]), np.array([0, 3])
    running, store = begin(blocks, blocks.take(x, mine), mine, fraction=1 / 2, policy=policy, k=4)
    running.gain(theirs, blocks.take(x, theirs), np.array([2, 3]), 5)
    assert running.members.tolist() == [0, 1, 3, 4]
    assert running.saved_at.tolist() == [2, 4, 3, 4]
    everything = np.array([0, 1, 3, 4])
    np.testing.assert_array_equal(running.cached, blocks.take(x, everything))
    packed, saved_at = store.read(everything)
    np.testing.assert_array_equal(packed, running.cached)
    assert saved_at.tolist() == [2, 4, 3, 4]
    saved = {i for k in (6, 7) for i in running.save(blocks.take(x + k, everything), k).tolist()}
    assert policy == "random" or saved == {0, 1, 3, 4}
    assert (store.read(everything)[1] >= 6).sum() == len(saved)


@pytest.mark.parametrize(
    ("settings", "mend"),
    [
        ({"policy": "newest"}, "priority, round, random, full"),
        ({"fraction": 0.0}, "above 0, at most 1"),
        ({"fraction": 1.5}, "above 0, at most 1"),
        ({"fraction": float("nan")}, "above 0, at most 1"),
        ({"period": 0}, "1 iteration or more"),
    ],
)
def test_settings_that_mean_nothing_are_refused_in_one_line(settings, mend):
    with pytest.raises(BadInput, match=mend) as refusal:
        begin(Blocks.rows(2, 1), np.zeros(2, np.float32), **settings)
    assert "\n" not in str(refusal.value)
