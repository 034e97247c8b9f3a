"""The table of SCAR's workloads: x(k+1) = f(x(k)), with x in blocks (see `problem.Iterated`).

Only the CNN loads TensorFlow, when it is built.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cbdybw.errors import BadInput
from cbdybw.learning.corpus import Corpus
from cbdybw.learning.factorization import Factorization
from cbdybw.learning.minibatches import check_batch_size
from cbdybw.learning.qp import QuadraticProgram
from cbdybw.learning.softmax import SoftmaxRegression
from cbdybw.problem import Iterated
from cbdybw.specs import Choice, Value, integer, number

if TYPE_CHECKING:
    from cbdybw.storage.datasets import Dataset
    from data_prep.ratings import Ratings

    Data = Dataset | Ratings | Corpus | None
    """What workloads learn from."""


CUT = 0
"""[choice] The seed of which users or documents are taken where it is not all. It is not the run's,
so that one target is for all runs."""


def _qp(data: None, batch_size: int, seed: int, eta0: float, dim: int, alpha: float) -> Iterated:
    return QuadraticProgram(dim, alpha, seed)


def _mlr(dataset: Dataset, batch_size: int, seed: int, eta0: float) -> Iterated:
    check_batch_size([dataset.train_y], batch_size)
    return SoftmaxRegression(dataset, batch_size, eta0, seed)


def _mf(
    ratings: Ratings, batch_size: int, seed: int, eta0: float, rank: int, ridge: float, users: int
) -> Iterated:
    return Factorization(ratings.values, rank, ridge, users, CUT)


def _lda(
    corpus: Corpus, batch_size: int, seed: int, eta0: float, documents: int, **keys: float
) -> Iterated:
    from cbdybw.learning.topics import Topics  # numba takes a second

    return Topics(corpus.drawn(documents, CUT) if documents else corpus, **keys, seed=seed)


def _adam_cnn(dataset: Dataset, batch_size: int, seed: int, eta0: float, blocks: str) -> Iterated:
    if dataset.manifest.get("pca") or len(dataset.manifest.get("image_shape", ())) != 2:
        raise BadInput(
            f"--workload=cnn --dataset={dataset.name}: needs pixels of one channel; "
            "use --dataset=mnist --pca=0, or cifar10 for ADSP's"
        )
    if eta0 > MOST_OF_ADAM:
        raise BadInput(
            f"--eta0={eta0:g}: Adam moves every weight by so much in a step; use about 0.001, "
            f"at most {MOST_OF_ADAM:g}"
        )
    check_batch_size([dataset.train_y], batch_size)
    from cbdybw.learning.adam_cnn import AdamNetwork

    return AdamNetwork(dataset, batch_size, eta0, blocks, seed)


MOST_OF_ADAM = 0.1
"""[choice] So that the default of --eta0, which is for SGD, is no surprise with Adam."""


def _read_blocks(text: str) -> str:
    if text not in ("layer", "shard"):
        raise ValueError
    return text


ITERATED = {
    "qp": Choice(
        _qp,
        "gradient descent on a quadratic whose eigenvalues lie evenly from 1 to 4 (SCAR)",
        {"dim": integer(1, default="4"), "alpha": number(0, above=True, default="0.1")},
    ),
    "mlr": Choice(_mlr, "multinomial logistic regression by SGD, a block a feature (SCAR)"),
    "mf": Choice(
        _mf,
        "matrix factorisation by ALS, --dataset=jester or movielens; users=0: all (SCAR)",
        {
            "rank": integer(1, default="5"),
            "ridge": number(0, above=True, default="10"),
            "users": integer(0, default="0"),
        },
    ),
    "lda": Choice(
        _lda,
        "topics of texts by collapsed Gibbs sampling, --dataset=newsgroups, reuters or generated; "
        "documents=0: all (SCAR)",
        {
            "topics": integer(2, default="20"),
            "alpha": number(0, above=True, default="0.1"),
            "beta": number(0, above=True, default="0.01"),
            "documents": integer(0, default="0"),
        },
    ),
    "cnn": Choice(
        _adam_cnn,
        "two convolutions: on the pixels of MNIST by Adam (SCAR), of CIFAR-10, augmented (ADSP)",
        {"blocks": Value(_read_blocks, "layer or shard", "shard")},
    ),
}
"""Iterative-convergent workloads, in blocks; built from (data, batch_size, seed, eta0, **keys),
where data is what each learns from (see COLLECTIONS): `qp` takes None."""

COLLECTIONS = {
    "mf": ("jester", "movielens"),
    "lda": ("newsgroups", "reuters", "generated"),
}
"""The data sets of those workloads that learn from something else than labelled samples."""
