"""LDA: the sampler against enumeration, the criterion against loops, what an iteration keeps."""

import hashlib
import itertools
import os
import subprocess
import sys

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment
from scipy.special import gammaln
from scipy.stats import chisquare

from cbdybw.errors import BadInput
from cbdybw.learning import gibbs
from cbdybw.learning.corpus import Corpus, generate
from cbdybw.learning.topics import Topics
from cbdybw.problem import iterate

SEED = 11


def corpus(*documents):
    """Documents given as lists of word numbers."""
    words = np.array([word for document in documents for word in document], np.int32)
    sizes = np.array([len(document) for document in documents])
    return Corpus("made up", words, sizes, tuple("abcdefgh"[: words.max() + 1]))


TINY = corpus([0, 1, 1], [1, 2])


def tiny(topics, seed=SEED):
    return Topics(TINY, topics, alpha=0.7, beta=0.2, seed=seed)


def states(topics):
    """All assignments of TINY's five tokens."""
    product = itertools.product(range(topics), repeat=len(TINY.words))
    return [np.array(z, np.float32) for z in product]


def number(x, topics):
    """The place of x in `states`."""
    return int(x @ topics ** np.arange(len(x))[::-1])


def likelihood(problem, x):
    """p(words, topics) by the criterion."""
    return np.exp(-problem.dim * problem.criterion(x))


def swept(problem, x):
    """The exact law of x after a sweep: token after token from its conditional, by enumeration."""
    law = {tuple(x): 1.0}
    for i in range(len(x)):
        after = {}
        for z, p in law.items():
            ways = [(*z[:i], float(t), *z[i + 1 :]) for t in range(problem.topics)]
            weights = np.array([likelihood(problem, np.array(way, np.float32)) for way in ways])
            for way, share in zip(ways, weights / weights.sum(), strict=True):
                after[way] = after.get(way, 0.0) + p * share
        law = after
    return np.array([law[tuple(z)] for z in states(problem.topics)])


@pytest.fixture(scope="module")
def drawn():
    """A generated corpus and the topics that it was drawn from."""
    return generate(documents=500, length=60, vocabulary=300, topics=5, seed=SEED)


@pytest.fixture(scope="module")
def problem(drawn):
    return Topics(drawn[0], topics=5, seed=SEED)


@pytest.fixture(scope="module")
def x(problem):
    """An estimate on the way: after two iterations."""
    x = problem.initial(np.random.default_rng(SEED))
    for k in range(2):
        x = iterate(problem, x, k)
    return x


# The sampler


@pytest.mark.parametrize("start", [(0, 0, 0, 0, 0), (0, 1, 0, 1, 1), (1, 0, 1, 0, 0)])
def test_a_sweep_has_the_law_that_enumeration_of_the_conditionals_gives(start):
    n, problem = 10_000, tiny(2)
    x = np.array(start, np.float32)
    found = np.zeros(2**5)
    for k in range(n):
        found[number(x + problem.part(x, 0, 1, k), 2)] += 1
    assert chisquare(found, n * swept(problem, x)).pvalue > 0.01, f"seed {SEED}"


def test_in_the_long_run_assignments_have_the_posterior_that_enumeration_gives():
    topics, runs, sweeps = 3, 3_000, 10
    problem, rng = tiny(topics), np.random.default_rng(SEED)
    found = np.zeros(topics**5)
    for run in range(runs):
        x = problem.initial(rng)
        for k in range(sweeps):
            x += problem.part(x, 0, 1, run * sweeps + k)
        found[number(x, topics)] += 1
    posterior = np.array([likelihood(problem, z) for z in states(topics)])
    expected = runs * posterior / posterior.sum()
    # States that differ by the names of topics only are alike; together each is met often enough.
    shape = [tuple(np.unique(z, return_inverse=True)[1]) for z in states(topics)]
    kinds = sorted({_renamed(z) for z in shape})
    kind = np.array([kinds.index(_renamed(z)) for z in shape])
    found, expected = (np.bincount(kind, weights) for weights in (found, expected))
    assert expected.min() > 5
    assert chisquare(found, expected).pvalue > 0.01, f"seed {SEED}"


def _renamed(z):
    """Topics by the order in which they appear."""
    names = {}
    return tuple(names.setdefault(t, len(names)) for t in z)


@pytest.mark.parametrize("topics", [2, 3, 4, 5, 7, 8, 21])
def test_topics_are_drawn_uniformly_where_the_priors_outweigh_all_counts(topics):
    problem = Topics(corpus([0] * 6_000), topics, alpha=1e9, beta=1e9, seed=SEED)
    x = iterate(problem, np.zeros(problem.dim, np.float32), 0)
    counts = np.bincount(x.astype(int), minlength=topics)
    assert len(counts) == topics
    assert chisquare(counts).pvalue > 0.01, f"seed {SEED}"


def test_a_sweep_keeps_the_counts_those_of_the_topics(problem, x):
    words, ends = problem.corpus.words, problem.blocks.ends
    counts = np.zeros((300, 5), np.int32)
    assert gibbs.count(words, x, counts)
    totals, change = counts.sum(0, dtype=float), np.zeros_like(x)
    key = np.uint64(SEED)
    gibbs.sweep(x, words, ends, 0, len(ends), counts, totals, 0.1, 0.01, key, change)
    again = np.zeros_like(counts)
    np.add.at(again, (words, (x + change).astype(int)), 1)
    np.testing.assert_array_equal(counts, again)
    np.testing.assert_array_equal(totals, again.sum(0))
    assert (change != 0).mean() > 0.05


# The criterion


def test_the_criterion_is_the_likelihood_that_loops_over_gamma_functions_give(problem, x):
    words, sizes, topics = problem.corpus.words, problem.corpus.sizes, 5
    vocabulary, alpha, beta = len(problem.corpus.vocabulary), 0.1, 0.01
    z, total = x.astype(int), 0.0
    for t in range(topics):  # the words, given their topics
        counts = np.bincount(words[z == t], minlength=vocabulary)
        total += gammaln(vocabulary * beta) - vocabulary * gammaln(beta)
        total += sum(gammaln(n + beta) for n in counts) - gammaln(counts.sum() + vocabulary * beta)
    for topic in np.split(z, np.cumsum(sizes)[:-1]):  # the topics of each document
        counts = np.bincount(topic, minlength=topics)
        total += gammaln(topics * alpha) - topics * gammaln(alpha)
        total += sum(gammaln(n + alpha) for n in counts) - gammaln(len(topic) + topics * alpha)
    assert problem.criterion(x) == pytest.approx(-total / len(words), rel=1e-12)
    assert problem.evaluate(x) == (problem.criterion(x), 0.0)
    assert problem.held_out_loss(x) == problem.criterion(x)


def test_the_likelihoods_of_all_topics_of_a_lone_word_sum_to_one():
    problem = Topics(corpus([0]), 4, alpha=0.3, beta=2.0)
    assert sum(likelihood(problem, np.full(1, t, np.float32)) for t in range(4)) == pytest.approx(1)


def test_the_likelihoods_of_all_words_and_topics_of_three_tokens_sum_to_one():
    total = 0.0
    for words in itertools.product(range(2), repeat=3):
        texts = Corpus("made up", np.array(words, np.int32), np.array([2, 1]), ("a", "b"))
        problem = Topics(texts, 2, alpha=0.3, beta=0.6)
        for z in itertools.product((0.0, 1.0), repeat=3):
            total += likelihood(problem, np.array(z, np.float32))
    assert total == pytest.approx(1)


# An iteration


def test_workers_change_the_topics_of_their_own_documents_only(problem, x):
    before, ends = x.copy(), []
    for j in range(3):
        first, last = problem.documents(j, 3)
        change = problem.part(x, j, 3, 2)
        own = np.zeros(problem.dim, bool)
        own[problem.blocks.starts[first] : problem.blocks.ends[last - 1]] = True
        assert not change[~own].any()
        assert change[own].any()
        assert abs(own.sum() - problem.dim / 3) <= problem.corpus.sizes.max()
        ends.append((first, last))
    assert [first for first, _ in ends] == [0, *(last for _, last in ends[:-1])]
    assert ends[-1][1] == len(problem.blocks)
    np.testing.assert_array_equal(x, before)


def test_workers_without_documents_add_nothing(problem):
    few = Topics(corpus([0, 1], [1]), 2)
    x = few.initial(np.random.default_rng(SEED))
    ranges = [few.documents(j, 5) for j in range(5)]
    assert [d for first, last in ranges for d in range(first, last)] == [0, 1]
    assert sum(first == last for first, last in ranges) == 3
    for j, (first, last) in enumerate(ranges):
        assert first < last or not few.part(x, j, 5, 0).any()


def test_the_first_worker_draws_the_same_topics_however_many_there_are(problem, x):
    whole = problem.part(x, 0, 1, 7)
    for n in (2, 3, 5):
        part = problem.part(x, 0, n, 7)
        end = problem.blocks.ends[problem.documents(0, n)[1] - 1]
        np.testing.assert_array_equal(part[:end], whole[:end])


def test_a_document_has_the_same_random_numbers_whatever_the_others_hold():
    """With α so large that counts hardly matter, its topics are those numbers."""
    rng = np.random.default_rng(SEED)
    problem = Topics(corpus([0, 1] * 50, [1, 2] * 50), 4, alpha=1e9, beta=1e9, seed=SEED)
    one, other = problem.initial(rng), problem.initial(rng)
    one, other = (z + problem.part(z, 1, 2, 3) for z in (one, other))
    np.testing.assert_array_equal(one[100:], other[100:])
    np.testing.assert_array_equal(one[100:], (one + problem.part(one, 0, 1, 3))[100:])
    assert problem.documents(1, 2) == (1, 2)
    assert (one[:100] != other[:100]).any()
    assert (one[100:] != (one + problem.part(one, 1, 2, 4))[100:]).mean() > 0.5


def test_a_part_is_a_pure_function_and_depends_on_iteration_and_seed(problem, x):
    part = problem.part(x, 1, 3, 4)
    problem.part(x, 0, 3, 9)
    np.testing.assert_array_equal(problem.part(x, 1, 3, 4), part)
    assert (problem.part(x, 1, 3, 5) != part).any()
    other = Topics(problem.corpus, 5, seed=SEED + 1)
    assert (other.part(x, 1, 3, 4) != part).any()


PRINT_A_RUN = """
import hashlib
import numpy as np
from cbdybw.learning.corpus import generate
from cbdybw.learning.topics import Topics
from cbdybw.problem import iterate
problem = Topics(generate(200, 40, 100, 5, seed=3)[0], topics=6, seed=5)
x = problem.initial(np.random.default_rng(1))
for k in range(4):
    x = iterate(problem, x, k, n=3)
print(hashlib.sha256(x.tobytes()).hexdigest(), problem.criterion(x))
"""


def test_another_process_comes_to_the_same_bits():
    printed = {
        subprocess.run(
            [sys.executable, "-c", PRINT_A_RUN],
            env={**os.environ, "PYTHONHASHSEED": hashseed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hashseed in ("1", "2")
    }
    problem = Topics(generate(200, 40, 100, 5, seed=3)[0], topics=6, seed=5)
    x = problem.initial(np.random.default_rng(1))
    for k in range(4):
        x = iterate(problem, x, k, n=3)
    sha256 = hashlib.sha256(x.tobytes()).hexdigest()
    assert printed == {f"{sha256} {problem.criterion(x)}\n"}


def test_lost_documents_restored_from_a_stale_copy_leave_a_usable_estimate(problem, x):
    lost = np.arange(0, len(problem.blocks), 2)
    later = x
    for k in range(2, 6):
        later = iterate(problem, later, k)
    mixed = later.copy()
    problem.blocks.put(mixed, lost, problem.blocks.take(x, lost))
    distance = problem.distance(mixed, later, problem.blocks)
    assert distance[lost].sum() > 0
    assert not np.delete(distance, lost).any()
    assert problem.criterion(later) < problem.criterion(mixed)
    recovered = iterate(problem, mixed, 6, n=3)
    assert problem.criterion(recovered) < problem.criterion(mixed)
    assert set(np.unique(recovered)) <= set(range(5))


# Learning


@pytest.mark.parametrize("n", [1, 3])
def test_the_topics_that_a_corpus_was_drawn_from_are_found(drawn, problem, n):
    x = problem.initial(np.random.default_rng(SEED))
    assert x.dtype == np.float32
    criteria = [problem.criterion(x)]
    for k in range(60):
        x = iterate(problem, x, k, n)
        criteria.append(problem.criterion(x))
    assert criteria[0] > criteria[1] > criteria[5] > criteria[60]
    assert x.dtype == np.float32
    counts = np.zeros((300, 5), np.int32)
    gibbs.count(problem.corpus.words, x, counts)
    found = counts.T / np.linalg.norm(counts, axis=0)[:, None]
    true = drawn[1] / np.linalg.norm(drawn[1], axis=1)[:, None]
    cosines = true @ found.T
    assert cosines[linear_sum_assignment(-cosines)].min() > 0.98, f"seed {SEED}"


def test_top_words_are_the_most_frequent_of_each_topic():
    problem = Topics(corpus([0, 1, 1, 2], [3, 3, 2]), 2)
    x = np.array([0, 0, 0, 1, 1, 1, 0], np.float32)
    assert problem.top_words(x, 2) == [["b", "a"], ["d", "c"]]


# What is refused


@pytest.mark.parametrize("value", [-1, 5, np.nan, np.inf])
def test_an_estimate_that_holds_no_topic_is_refused(problem, x, value):
    wrong = x.copy()
    wrong[7] = value
    for use in (problem.criterion, lambda x: problem.part(x, 0, 1, 0)):
        with pytest.raises(ValueError, match=r"topics 0 … 4"):
            use(wrong)


@pytest.mark.parametrize(
    ("name", "value"), [("topics", 1), ("alpha", 0.0), ("beta", float("inf")), ("beta", -1.0)]
)
def test_settings_without_a_meaning_are_refused(name, value):
    with pytest.raises(BadInput, match=f"{name}={value}: use "):
        Topics(TINY, **{name: value})
