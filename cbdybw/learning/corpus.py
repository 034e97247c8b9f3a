"""A corpus as topic models see it: which words each document has, in no order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cbdybw.clusters.worker import keyed_rng
from cbdybw.errors import BadInput


@dataclass(frozen=True)
class Corpus:
    """Documents as bags of words.

    Attributes:
        name: newsgroups, reuters or generated.
        words: int32 word number of every token, document after document, shape (tokens,).
        sizes: int64 tokens of each document, none below 1, shape (documents,).
        vocabulary: the words by number.
        notice: None, or a line that belongs under every result.
    """

    name: str
    words: np.ndarray
    sizes: np.ndarray
    vocabulary: tuple[str, ...]
    notice: str | None = None

    def drawn(self, documents: int, seed: int) -> Corpus:
        """So many of the documents, drawn by the seed [choice], and the words that they have."""
        if not 1 <= documents <= len(self.sizes):
            raise BadInput(
                f"documents={documents}: {self.name} has {len(self.sizes)} documents with words "
                f"in them; use 1 … {len(self.sizes)}"
            )
        drawn = keyed_rng(seed, "documents", 0, 0).permutation(len(self.sizes))[:documents]
        bags = np.split(self.words, np.cumsum(self.sizes)[:-1])
        used, words = np.unique(np.concatenate([bags[d] for d in drawn]), return_inverse=True)
        return Corpus(
            self.name,
            words.astype(np.int32),
            self.sizes[drawn],
            tuple(self.vocabulary[word] for word in used),
            self.notice,
        )


def generate(
    documents: int = 2_000,
    length: float = 100.0,
    vocabulary: int = 2_000,
    topics: int = 20,
    alpha: float = 0.1,
    beta: float = 0.05,
    seed: int = 0,
) -> tuple[Corpus, np.ndarray]:
    """A corpus drawn from the LDA model itself, and its topics, shape (topics, vocabulary).

    Each document has 1 + Poisson(length - 1) tokens. [choice] The topics are drawn around Zipf's
    law, Dirichlet(vocabulary · beta · p) with p_w ∝ 1/w, so that some words are frequent as they
    are in real texts; word 0 is the most frequent one.
    """
    rng = keyed_rng(seed, "corpus", 0, 0)
    zipf = 1 / np.arange(1, vocabulary + 1)
    phi = rng.dirichlet(vocabulary * beta * zipf / zipf.sum(), topics)
    theta = rng.dirichlet(np.full(topics, alpha), documents)
    sizes = 1 + rng.poisson(length - 1, documents)
    shares = rng.multinomial(sizes, theta)  # tokens of each topic in each document
    bounds = np.cumsum(phi, axis=1)
    words = np.empty(shares.sum(), np.int32)
    topic = np.repeat(np.tile(np.arange(topics), documents), shares.ravel())
    for t in range(topics):
        chosen = np.flatnonzero(topic == t)
        at = np.searchsorted(bounds[t], rng.random(len(chosen)) * bounds[t, -1], side="right")
        words[chosen] = np.minimum(at, vocabulary - 1)
    names = tuple(f"word{w}" for w in range(vocabulary))
    notice = f"generated from the LDA model (seed {seed}); no real texts"
    return Corpus("generated", words, sizes, names, notice), phi
