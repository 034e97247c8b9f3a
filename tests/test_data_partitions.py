"""Partitions: every sample in exactly one part, and nobody without a batch."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cbdybw.errors import BadInput
from data_prep.partitions import partition

LABELS = np.repeat(np.arange(10), 60)[np.random.default_rng(0).permutation(600)]


@given(
    st.sampled_from(["iid", "shards:1", "shards:2", "shards:5", "dirichlet:0.5", "dirichlet:1e3"]),
    st.lists(st.integers(0, 9), min_size=60, max_size=300),
    st.integers(1, 7),
    st.integers(0, 2**40),
)
def test_every_sample_is_in_exactly_one_part(scheme, labels, workers, seed):
    batch_size = 1
    parts = partition(scheme, np.array(labels, dtype=np.uint8), workers, batch_size, seed)
    assert len(parts) == workers
    assert min(map(len, parts)) >= batch_size
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(labels)))
    assert all((np.diff(part) > 0).all() for part in parts)


def test_iid_parts_are_equal_and_alike():
    parts = partition("iid", LABELS, 7, 85, 0)
    assert sorted(map(len, parts)) == [85, 85, 86, 86, 86, 86, 86]
    assert all(len(np.unique(LABELS[part])) == 10 for part in parts)


@pytest.mark.parametrize(("shards", "classes"), [(1, 3), (2, 4)])
def test_shards_give_a_worker_few_classes(shards, classes):
    parts = partition(f"shards:{shards}", LABELS, 6, 100, 0)
    assert [len(part) for part in parts] == [100] * 6
    # One shard of 100 samples meets at most three classes of 60; two of 50 meet two each.
    assert max(len(np.unique(LABELS[part])) for part in parts) <= classes


def test_a_smaller_alpha_gives_more_unlike_parts():
    def unlikeness(alpha):
        parts = partition(f"dirichlet:{alpha}", LABELS, 6, 1, 3)
        counts = np.array([np.bincount(LABELS[part], minlength=10) for part in parts])
        return np.abs(counts / counts.sum(1, keepdims=True) - 0.1).sum(1).mean()

    assert unlikeness(0.1) > unlikeness(1) > unlikeness(10) > unlikeness(1e6)
    assert unlikeness(1e6) == pytest.approx(0)


def test_thinned_parts_lack_nine_tenths_of_half_of_the_classes():
    labels = np.repeat(np.arange(10), 700)
    parts = partition("thinned:0.9", labels, 7, 10, 3)
    assert len(np.unique(np.concatenate(parts))) == sum(map(len, parts))
    for part in parts:
        counts = np.sort(np.bincount(labels[part], minlength=10))
        assert counts[:5].max() <= 15  # a tenth of about 100
        assert counts[5:].min() >= 70
    rare = [frozenset(np.argsort(np.bincount(labels[p], minlength=10))[:5]) for p in parts]
    assert len(set(rare)) > 1


@pytest.mark.parametrize("scheme", ["thinned:1", "thinned:0", "thinned:x", "thinned:-0.5"])
def test_a_share_lies_between_0_and_1(scheme):
    with pytest.raises(BadInput, match=f"^--partition={scheme}: "):
        partition(scheme, LABELS, 6, 10, 0)


@pytest.mark.parametrize("scheme", ["iid", "shards:2", "dirichlet:0.5", "thinned:0.5"])
def test_the_seed_decides(scheme):
    def flat(seed):
        return np.concatenate(partition(scheme, LABELS, 6, 10, seed)).tolist()

    assert flat(1) == flat(1)
    assert flat(1) != flat(2)


@pytest.mark.parametrize(
    "scheme",
    [
        *("", "random", "iid:2", "IID", "shards", "shards:", "shards:0", "shards:-1", "shards:1.5"),
        *("dirichlet", "dirichlet:0", "dirichlet:-1", "dirichlet:nan", "dirichlet:inf"),
    ],
)
def test_an_unknown_partition_is_refused_with_those_that_there_are(scheme):
    with pytest.raises(BadInput, match=f"^--partition={scheme}: .*iid, shards:K, dirichlet"):
        partition(scheme, LABELS, 6, 10, 0)


@pytest.mark.parametrize("scheme", ["iid", "shards:2", "dirichlet:0.5"])
def test_too_many_workers_for_the_batch_are_refused_with_what_would_do(scheme):
    with pytest.raises(BadInput) as error:
        partition(scheme, LABELS, 7, 100, 0)
    assert str(error.value) == (
        "--workers=7 --batch_size=100: one batch each takes 700 samples and there are 600; "
        "use at most --batch_size=85 or --workers=6"
    )


def test_the_advice_works():
    assert min(map(len, partition("iid", LABELS, 7, 85, 0))) >= 85
    assert min(map(len, partition("iid", LABELS, 6, 100, 0))) >= 100


def test_a_scheme_that_cannot_give_everyone_a_batch_is_refused():
    with pytest.raises(BadInput, match=r"dirichlet:0\.1: in 100 draws .*less than a batch of 100"):
        partition("dirichlet:0.1", LABELS, 6, 100, 0)
    with pytest.raises(BadInput, match="600 samples make no 700 shards; use shards:6 at most"):
        partition("shards:7", LABELS, 100, 1, 0)


def test_dirichlet_draws_again_until_everyone_has_a_batch():
    for seed in range(20):
        parts = partition("dirichlet:0.5", LABELS, 6, 60, seed)
        assert min(map(len, parts)) >= 60
