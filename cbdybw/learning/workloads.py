"""The table of workloads, and how a data set and a model make a problem for an algorithm.

Importing this module does not load TensorFlow; building a workload that learns from data does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from cbdybw.errors import BadInput
from cbdybw.learning.classification import Classification
from cbdybw.learning.iterated import COLLECTIONS, ITERATED
from cbdybw.learning.kernel_machine import KernelMachine
from cbdybw.learning.minibatches import check_batch_size
from cbdybw.learning.quadratic import Quadratic
from cbdybw.problem import Iterated, Problem, Timing
from cbdybw.specs import Choice, integer, number, select

if TYPE_CHECKING:
    from cbdybw.learning.flat import keras
    from cbdybw.learning.iterated import Data
    from cbdybw.storage.datasets import Dataset


def _lrm(dataset: Dataset, batch_size: int, seed: int) -> Problem:
    from cbdybw.learning import models

    return _classification(models.lrm, models.zeros, dataset, batch_size, seed)


def _two_nn(dataset: Dataset, batch_size: int, seed: int, width: int, depth: int) -> Problem:
    from cbdybw.learning import models

    mlp = partial(models.mlp, width=width, depth=depth)
    return _classification(mlp, models.glorot_uniform, dataset, batch_size, seed)


def _classification(
    architecture: Callable[[int, int], keras.Model],
    start: Callable[[keras.Model, np.random.Generator], np.ndarray],
    dataset: Dataset,
    batch_size: int,
    seed: int,
) -> Problem:
    from cbdybw.learning.flat import FlatModel

    model = architecture(dataset.train_x.shape[1], dataset.classes)
    return Classification(FlatModel(model), partial(start, model), dataset, batch_size, seed)


L2 = 0.004
"""[choice] Of the CNN, on all of its weights: half of it times their square norm."""


def _cnn(dataset: Dataset, batch_size: int, seed: int) -> Problem:
    """[choice] In any data set the last fifth of the training samples is what CIFAR-10's fifth
    batch is: the loss is taken there, and nobody trains on it."""
    from cbdybw.learning import altered, models
    from cbdybw.learning.flat import FlatModel

    manifest = dataset.manifest
    if manifest.get("pca") or manifest.get("image_shape") != [32, 32, 3]:
        raise BadInput(
            "--workload=cnn: needs images of 32×32×3 pixels; use --dataset=cifar10 --pca=0"
        )
    trained, evaluated = np.split(np.arange(len(dataset.train_y)), [len(dataset.train_y) * 4 // 5])
    parts = [part[part < len(trained)] for part in dataset.parts]
    check_batch_size(parts, batch_size)
    model = models.cnn(dataset.classes)
    return altered.Altered(
        altered.Augmentation(),
        FlatModel(model, L2),
        partial(models.glorot_uniform, model),
        replace(dataset, parts=parts),
        batch_size,
        seed,
        evaluated,
    )


def _rnn(dataset: Dataset, batch_size: int, seed: int) -> Problem:
    from cbdybw.learning import altered, models
    from cbdybw.learning.flat import FlatModel

    if dataset.name.partition(":")[0] != "rail":
        raise BadInput(
            f"--workload=rnn: --dataset={dataset.name} is no series; use --dataset=rail --pca=0"
        )
    model = models.rnn(dataset.train_x.shape[1], dataset.classes)
    return altered.Altered(
        altered.Dropout(models.DROPPABLE, 0.4),
        FlatModel(model),
        partial(models.glorot_uniform, model),
        dataset,
        batch_size,
        seed,
    )


def _quadratic(seed: int, dim: int, lam: float, sigma: float) -> Problem:
    return Quadratic(np.zeros((1, dim)), lam, sigma, seed)


FROM_DATA = {
    "lrm": Choice(_lrm, "multinomial logistic regression, from zero (cb-DyBW, section 5)"),
    "2nn": Choice(
        _two_nn,
        "hidden layers of rectified units, from Glorot's start (cb-DyBW, section 5)",
        {"width": integer(1, default="256"), "depth": integer(1, default="2")},
    ),
    "cnn": Choice(_cnn, "two convolutions on the pixels of CIFAR-10, augmented (ADSP)"),
    "rnn": Choice(_rnn, "an LSTM on windows of a series, --dataset=rail (ADSP)"),
    "svm": Choice(KernelMachine, "Gaussian-kernel dual, such as of --dataset=chiller (ADSP)"),
}
"""Workloads that learn from a data set; built from (dataset, batch_size, seed, **keys)."""


def _timing(seed: int, parameters: int) -> Problem:
    return Timing(parameters)


SYNTHETIC = {
    "timing": Choice(
        _timing,
        "nothing is learnt; estimates have a size on the wire only",
        {"parameters": integer(0, default="0")},
    ),
    "quadratic": Choice(
        _quadratic,
        "½·lam·‖w‖² with normal gradient noise; the stationary error is known",
        {
            "dim": integer(1, default="10"),
            "lam": number(0, above=True, default="1"),
            "sigma": number(0, default="1"),
        },
    ),
}
"""Workloads that need no data set and no TensorFlow; built from (seed, **keys)."""

WORKLOADS = FROM_DATA | SYNTHETIC | ITERATED
"""Name → workload: what --help and the README print. `cnn` is two (see `is_iterated`)."""


def is_iterated(workload: str, dataset: str) -> bool:
    """Whether `workload` on `dataset` is iterative-convergent: an Iterated, for --algorithm=scar.

    `cnn` is SCAR's on all data sets but CIFAR-10, where it is ADSP's.
    """
    name = _name(workload)
    return name in ITERATED and (name != "cnn" or dataset != "cifar10")


def needs_data(workload: str) -> bool:
    """Whether `workload` learns from a data set."""
    return _name(workload) in FROM_DATA | ITERATED and _name(workload) != "qp"


def collection(workload: str) -> tuple[str, ...]:
    """The data sets of a workload that does not learn from labelled samples; else none."""
    return COLLECTIONS.get(_name(workload), ())


def check(workload: str, dataset: str) -> None:
    """BadInput where `workload` is unknown, has no such key, or cannot learn from `dataset`."""
    select(workload, "--workload", _table(workload, dataset))
    mine = collection(workload)
    if mine and dataset not in mine:
        raise BadInput(
            f"--dataset={dataset}: --workload={workload} learns from other data; "
            f"use {' or '.join(mine)}"
        )
    of = [name for name, theirs in COLLECTIONS.items() if dataset in theirs]
    if of and not mine and needs_data(workload):
        raise BadInput(
            f"--dataset={dataset}: --workload={workload} needs labelled samples; use another, "
            f"or --workload={of[0]}"
        )


def build(
    workload: str, data: Data, batch_size: int, seed: int, eta0: float = 0.0
) -> Problem | Iterated:
    """The problem that `workload`, such as "lrm" or "2nn:width=128", names.

    `data` is a Dataset, what `collection` names, or None where `needs_data` says so; `eta0` is the
    learning rate of those iterated ones that have one. Raises BadInput for an unknown workload or
    key, and for a minibatch that some worker's part cannot fill.
    """
    dataset = "" if data is None else data.name
    choice, keys = select(workload, "--workload", _table(workload, dataset))
    if is_iterated(workload, dataset):
        return choice.build(data, batch_size, seed, eta0, **keys)
    if not needs_data(workload):
        return choice.build(seed, **keys)
    check_batch_size(data.parts, batch_size)
    return choice.build(data, batch_size, seed, **keys)


def _name(workload: str) -> str:
    return workload.partition(":")[0].strip()


def _table(workload: str, dataset: str) -> dict[str, Choice]:
    """WORKLOADS, with that one of two that `dataset` chooses."""
    return WORKLOADS if is_iterated(workload, dataset) else WORKLOADS | FROM_DATA
