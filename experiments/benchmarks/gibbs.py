"""How fast LDA samples topics: sweeps over a corpus of the size of 20 Newsgroups.

    python -m experiments.benchmarks.gibbs

Run time about 15 s. Expected: at least 15 million tokens a second on one core, with 20 topics, for
what a worker does in an iteration: count the topics, sweep all documents, give the changes back.
The criterion stands beside it without a limit. Leaves with exit code 1 when the limit is missed.

The corpus is generated: 18,846 documents, 2.98 million tokens, 20,000 words. `--raw_dir` names a
folder with the originals of 20 Newsgroups, which are then swept too; tokenised they are kept in
`--cache`. The first sweeps of a run are left out of it: until topics form, all weights are alike.
A figure is the fastest of --rounds sweeps, in CPU seconds: the machine's, not its other programs'.
"""

from __future__ import annotations

import sys

import numpy as np
from absl import app, flags
from rich.console import Console
from rich.table import Table

from cbdybw.errors import BadInput
from cbdybw.learning.corpus import Corpus, generate
from cbdybw.learning.topics import Topics
from cbdybw.problem import iterate
from data_prep import texts
from experiments.benchmarks import step  # defines --rounds
from experiments.benchmarks.learning import seconds

FLAGS = flags.FLAGS
FLAGS.set_default("rounds", 20)
flags.DEFINE_string("raw_dir", "", "folder with 20 Newsgroups (default: the generated corpus only)")
flags.DEFINE_string("cache", "data/texts", "folder for tokenised texts")

LIMIT = 15e6
"""Tokens a second."""

DOCUMENTS, LENGTH, VOCABULARY = 18_846, 158.0, 20_000
FIRST = 10
"""Iterations before anything is measured."""


def main(_: list[str]) -> int:
    try:
        corpora = [generate(DOCUMENTS, LENGTH, VOCABULARY)[0]]
        if FLAGS.raw_dir:
            corpora.append(texts.corpus("newsgroups", FLAGS.raw_dir, FLAGS.cache))
    except BadInput as error:
        print(error, file=sys.stderr)
        return 2
    table = Table("corpus", "tokens", "sweep, ms", "tokens/s", "limit", "criterion, ms")
    within = [measure(corpus, table) for corpus in corpora]
    Console().print(table, step.machine(), sep="\n")
    return 0 if all(within) else 1


def measure(corpus: Corpus, table: Table) -> bool:
    """A row of the table; whether it is within the limit."""
    problem = Topics(corpus)
    x = problem.initial(np.random.default_rng(0))
    for k in range(FIRST):
        x = iterate(problem, x, k)
    rounds = range(FIRST, FIRST + FLAGS.rounds)
    sweep = min(seconds(problem.part, x, 0, 1, k) for k in rounds)
    criterion = min(seconds(problem.criterion, x) for _ in rounds)
    speed = problem.dim / sweep
    table.add_row(
        corpus.name,
        f"{problem.dim:,}",
        f"{1e3 * sweep:.1f}",
        f"{speed / 1e6:.1f} million",
        f"≥ {LIMIT / 1e6:.0f} million",
        f"{1e3 * criterion:.1f}",
    )
    return speed >= LIMIT


if __name__ == "__main__":
    app.run(main)
