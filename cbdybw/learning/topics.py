"""LDA by collapsed Gibbs sampling, as an iterative-convergent problem (SCAR, section 5).

[choice] The parameters are the topics of all tokens, and the counts of the model are a function of
them: whatever is lost, and however stale what is restored, the counts fit the assignments. A block
is a document.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import gammaln

from cbdybw.errors import BadInput
from cbdybw.learning import gibbs
from cbdybw.learning.corpus import Corpus
from cbdybw.problem import Evaluation
from cbdybw.scar.blocks import Blocks, total_variation

TOPICS, ALPHA, BETA = 20, 0.1, 0.01
"""[choice] 20 topics as SCAR is remembered to have; α = β = 1, which is remembered too but badly,
smooths away most of what short documents say. None of them is known to be the paper's."""


class Topics:
    """The problem of finding the topics of a corpus; x has the topic of every token.

    x is float32 with whole numbers 0 … topics-1, document after document. In an iteration each of n
    workers sweeps its documents once, from the counts at the beginning of the iteration: with one
    worker that is collapsed Gibbs sampling, with more it is AD-LDA (Newman et al. 2009).

    Args:
        corpus: the documents.
        topics: number of topics, 2 or more.
        alpha, beta: symmetric Dirichlet priors of a document's topics and of a topic's words.
        seed: with k and the document, the key of what is drawn.
    """

    def __init__(
        self,
        corpus: Corpus,
        topics: int = TOPICS,
        alpha: float = ALPHA,
        beta: float = BETA,
        seed: int = 0,
    ):
        if topics < 2:
            raise BadInput(f"topics={topics}: use 2 or more")
        for name, value in {"alpha": alpha, "beta": beta}.items():
            if not 0 < value < math.inf:
                raise BadInput(f"{name}={value}: use a finite number above 0")
        self.corpus, self.topics, self.alpha, self.beta, self.seed = (
            corpus, topics, float(alpha), float(beta), seed,
        )  # fmt: skip
        self.blocks = Blocks(corpus.sizes)
        self.dim = self.blocks.dim
        self.distance = total_variation(topics)
        self._documents = np.repeat(np.arange(len(self.blocks), dtype=np.int32), corpus.sizes)
        # A word, or a topic in a document, may be as frequent as there are tokens of it.
        most = np.bincount(corpus.words).max()
        self._of_words = gammaln(np.arange(most + 1) + self.beta) - gammaln(self.beta)
        self._of_documents = gammaln(np.arange(corpus.sizes.max() + 1) + self.alpha) - gammaln(
            self.alpha
        )
        priors = topics * gammaln(len(corpus.vocabulary) * self.beta)
        self._constant = priors + np.sum(
            gammaln(topics * self.alpha) - gammaln(corpus.sizes + topics * self.alpha)
        )

    def initial(self, rng: np.random.Generator) -> np.ndarray:
        """Topics drawn uniformly."""
        return rng.integers(self.topics, size=self.dim).astype(np.float32)

    def part(self, x: np.ndarray, j: int, n: int, k: int) -> np.ndarray:
        """The topics after a sweep minus those before it, 0 outside of worker j's documents."""
        counts = self._word_topic(x)
        change = np.zeros(self.dim, np.float32)
        gibbs.sweep(
            x, self.corpus.words, self.blocks.ends, *self.documents(j, n), counts,
            counts.sum(0, dtype=np.float64), self.alpha, self.beta, self._key(k), change,
        )  # fmt: skip
        return change

    def documents(self, j: int, n: int) -> tuple[int, int]:
        """Worker j of n has the documents from the first number up to below the second one: a
        range with about an n-th of all tokens, which may be empty."""
        bounds = [self.dim * j / n, self.dim * (j + 1) / n]
        first, last = np.searchsorted(self.blocks.ends, bounds, side="right")
        return int(first), int(last)

    def criterion(self, x: np.ndarray) -> float:
        """-log p(words, topics | α, β) per token, in nats (Griffiths & Steyvers 2004)."""
        words = self._word_topic(x)
        documents = self._counts(self._documents, x, len(self.blocks))
        totals = words.sum(0, dtype=np.int64)
        likelihood = (
            self._constant
            + self._of_words[words].sum()
            - gammaln(totals + len(self.corpus.vocabulary) * self.beta).sum()
            + self._of_documents[documents].sum()
        )
        return -float(likelihood) / self.dim

    def evaluate(self, w: np.ndarray) -> Evaluation:
        """The criterion; nothing is classified."""
        return Evaluation(self.criterion(w), 0.0)

    def held_out_loss(self, w: np.ndarray) -> float:
        """The criterion: all documents are learnt from."""
        return self.criterion(w)

    def top_words(self, x: np.ndarray, n: int = 10) -> list[list[str]]:
        """The n words that each topic has most often, the most frequent first; for people."""
        order = np.argsort(-self._word_topic(x), axis=0, kind="stable")[:n]
        return [[self.corpus.vocabulary[word] for word in column] for column in order.T]

    def _word_topic(self, x: np.ndarray) -> np.ndarray:
        return self._counts(self.corpus.words, x, len(self.corpus.vocabulary))

    def _counts(self, rows: np.ndarray, x: np.ndarray, n: int) -> np.ndarray:
        """Tokens of each row and topic, int32 (n, topics)."""
        counts = np.zeros((n, self.topics), np.int32)
        if not gibbs.count(rows, x, counts):
            raise ValueError(f"x holds something else than topics 0 … {self.topics - 1}")
        return counts

    def _key(self, k: int) -> np.uint64:
        """The key of iteration k."""
        return np.random.SeedSequence((self.seed, k)).generate_state(1, np.uint64)[0]
