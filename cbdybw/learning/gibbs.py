"""Collapsed Gibbs sampling for LDA, compiled: counting topics, and a sweep over documents.

Source: Griffiths & Steyvers (2004). With z the topics of all other tokens,

    P(z_i = t) ∝ (n_dt + α) (n_wt + β) / (n_t + Vβ)

where n_dt counts tokens of topic t in the document of token i, n_wt those of its word, and n_t all.

Neither fused nor reordered arithmetic is allowed (no fastmath): the same numbers on every machine.
"""

from __future__ import annotations

import numpy as np
from numba import njit

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
UNIT = 2.0**-53


@njit(cache=True, inline="always")
def mix(z):
    """The finaliser of splitmix64 (Steele, Lea & Flood 2014): 64 bits to 64 well-mixed bits."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@njit(cache=True, nogil=True)
def count(rows, z, counts):
    """Add to `counts`, shape (…, topics), the tokens of each row and topic.

    Args:
        rows: int32 row of every token: its word, or its document.
        z: its topic, whole numbers in any type.
        counts: int32.

    Returns whether all topics were within 0 … topics-1; if not, the counts are worthless.
    """
    topics = counts.shape[1]
    for i in range(len(z)):
        if not 0 <= z[i] < topics:
            return False
        counts[rows[i], np.int64(z[i])] += 1
    return True


@njit(cache=True, nogil=True)
def sweep(z, words, ends, first, last, word_topic, totals, alpha, beta, key, change):
    """Draw the topic of every token of documents first … last-1 anew, one after the other.

    Random numbers are splitmix64's, from a state that belongs to (key, document): a document has
    the same ones whoever sweeps it, and whatever the others have.

    Args:
        z: topics before, float32, shape (tokens,).
        words: int32 word of every token.
        ends: int64 end of every document in z.
        word_topic: n_wt of all documents, int32 (V, topics); kept up to date.
        totals: n_t, float64 (topics,); kept up to date.
        key: uint64.
        change: float32 (tokens,); gets topics after - topics before.
    """
    vocabulary, topics = word_topic.shape
    prior = vocabulary * beta
    in_document = np.empty(topics)
    share = np.empty(topics)  # (n_dt + α) / (n_t + Vβ)
    cumulative = np.empty(topics)
    for d in range(first, last):
        state = mix(key + np.uint64(d) * GOLDEN)
        start, end = ends[d - 1] if d else 0, ends[d]
        in_document[:] = 0
        for i in range(start, end):
            in_document[np.int64(z[i])] += 1
        for t in range(topics):
            share[t] = (in_document[t] + alpha) / (totals[t] + prior)
        for i in range(start, end):
            row = word_topic[words[i]]
            old = np.int64(z[i])
            row[old] -= 1
            in_document[old] -= 1
            totals[old] -= 1
            share[old] = (in_document[old] + alpha) / (totals[old] + prior)

            total = 0.0
            for t in range(topics):
                total += share[t] * (row[t] + beta)
                cumulative[t] = total
            state += GOLDEN
            at = np.int64(mix(state) >> np.uint64(11)) * UNIT * total  # below total: see drawn
            new = 0
            for t in range(topics):  # faster than to look for it: nothing to mispredict
                new += cumulative[t] <= at

            row[new] += 1
            in_document[new] += 1
            totals[new] += 1
            share[new] = (in_document[new] + alpha) / (totals[new] + prior)
            change[i] = np.float32(new - old)
