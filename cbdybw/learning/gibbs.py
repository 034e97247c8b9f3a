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
ONE, TWO, THREE, FOUR = (np.uintp(n) for n in (1, 2, 3, 4))  # unsigned: no index from the end


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
    weights = np.zeros((topics + 3) // 4 * 4)  # in fours; what is too much stays 0
    for d in range(first, last):
        state = mix(key + np.uint64(d) * GOLDEN)
        start, end = ends[d - 1] if d else 0, ends[d]
        in_document[:] = 0
        for i in range(start, end):
            in_document[np.uintp(np.int64(z[i]))] += 1
        for t in range(topics):
            share[t] = (in_document[t] + alpha) / (totals[t] + prior)

        # The token before joins its new topic only after the loop over all topics, and then two
        # weights are set right: the processor can run that loop while it still draws that topic.
        before = word_topic[np.uintp(np.uint32(words[start]))]
        new = np.uintp(np.int64(z[start]))
        add(-1, new, before, in_document, totals, share, alpha, prior)
        for i in range(start, end):
            row = word_topic[np.uintp(np.uint32(words[i]))]
            old = np.uintp(np.int64(z[i]))
            for t in range(topics):
                weights[t] = share[t] * (row[t] + beta)
            add(1, new, before, in_document, totals, share, alpha, prior)
            weights[new] = share[new] * (row[new] + beta)
            add(-1, old, row, in_document, totals, share, alpha, prior)
            weights[old] = share[old] * (row[old] + beta)

            state += GOLDEN
            uniform = np.int64(mix(state) >> np.uint64(11)) * UNIT
            new = min(below(weights, uniform * total(weights)), np.uintp(topics - 1))
            change[i] = np.float32(np.int64(new) - np.int64(old))
            before = row
        add(1, new, before, in_document, totals, share, alpha, prior)


@njit(cache=True)
def add(tokens, topic, row, in_document, totals, share, alpha, prior):
    """So many tokens of the word that has this row join the topic."""
    row[topic] += tokens
    in_document[topic] += tokens
    totals[topic] += tokens
    share[topic] = (in_document[topic] + alpha) / (totals[topic] + prior)


@njit(cache=True)
def total(weights):
    """The sum of the weights, a multiple of four of them, along two short chains of additions."""
    one, other = 0.0, 0.0
    t = np.uintp(0)
    while t < len(weights):
        one += weights[t] + weights[t + ONE]
        other += weights[t + TWO] + weights[t + THREE]
        t += FOUR
    return one + other


@njit(cache=True)
def below(weights, at):
    """How many of the sums w_0, w_0 + w_1, … are not above `at`: the topic that is drawn.

    All are looked at, four at a time, and so no branch can be mispredicted.
    """
    found, so_far = np.uintp(0), 0.0
    t = np.uintp(0)
    while t < len(weights):
        a, b, c = weights[t], weights[t + ONE], weights[t + TWO]
        ab, cd = a + b, c + weights[t + THREE]
        found += np.uintp(so_far + a <= at) + np.uintp(so_far + ab <= at)
        found += np.uintp(so_far + (ab + c) <= at)
        so_far += ab + cd
        found += np.uintp(so_far <= at)
        t += FOUR
    return found
