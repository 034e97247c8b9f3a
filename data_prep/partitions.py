"""Who learns from which samples.

No training sample is in two parts, and every worker gets at least one batch. cb-DyBW's paper gives
no scheme for its non-iid runs; shards and dirichlet are the field's usual two, thinned is what the
code of ADSP's authors does. All samples are in some part, but for those that `thinned` drops.

    iid              a random split into equal parts
    shards:K         samples sorted by label, cut into K equal shards per worker, K dealt to each
                     (McMahan et al. 2017)
    dirichlet:ALPHA  each class is divided by proportions drawn from Dirichlet(ALPHA, …, ALPHA)
                     (Hsu et al. 2019, in the form that divides classes)
    thinned:SHARE    as iid, then each worker drops that share of its samples of half of the
                     classes (ADSP; half, drawn anew for each worker, is ours)

A draw that leaves a worker with less than a batch is drawn again, up to 100 times.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from cbdybw.clusters.worker import keyed_rng
from cbdybw.errors import BadInput

FORMS = "iid, shards:K, dirichlet:ALPHA or thinned:SHARE"
DRAWS = 100

Parts = list[np.ndarray]
Scheme = Callable[[np.ndarray, int, np.random.Generator], Parts]


def partition(text: str, labels: np.ndarray, workers: int, batch_size: int, seed: int) -> Parts:
    """Divide the samples with these labels, shape (n,): ascending sample numbers per worker.

    Raises BadInput when a worker would get fewer than `batch_size` samples.
    """
    scheme = parse(text)
    if workers * batch_size > len(labels):
        raise BadInput(
            f"--workers={workers} --batch_size={batch_size}: one batch each takes "
            f"{workers * batch_size} samples and there are {len(labels)}; "
            + _cure(len(labels), workers, batch_size)
        )
    rng = keyed_rng(seed, "partition", 0, 0)
    most = 0
    for _ in range(DRAWS):
        parts = scheme(labels, workers, rng)
        fewest = min(map(len, parts))
        if fewest >= batch_size:
            return [np.sort(part) for part in parts]
        most = max(most, fewest)
    raise BadInput(
        f"--partition={text}: in {DRAWS} draws some worker always got less than a batch of "
        f"{batch_size} samples (at best {most}); use a smaller --batch_size, fewer --workers or "
        "another scheme"
    )


def parse(text: str) -> Scheme:
    """The scheme that `text` names; BadInput when it names none."""
    name, colon, argument = text.partition(":")
    if name == "iid" and not colon:
        return _iid
    if name == "shards":
        return _shards(_number(text, argument, int))
    if name == "dirichlet":
        return _dirichlet(_number(text, argument, float))
    if name == "thinned":
        share = _number(text, argument, float)
        if not share < 1:
            raise BadInput(f"--partition={text}: {argument} is no share; use a number below 1")
        return _thinned(share)
    raise BadInput(f"--partition={text}: unknown; use {FORMS}")


def _number(text: str, argument: str, kind: type) -> float:
    try:
        value = kind(argument)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise BadInput(f"--partition={text}: {argument!r} is no positive number; use {FORMS}")
    return value


def _cure(samples: int, workers: int, batch_size: int) -> str:
    cures = []
    if samples >= workers:
        cures.append(f"--batch_size={samples // workers}")
    if samples >= batch_size:
        cures.append(f"--workers={samples // batch_size}")
    return f"use at most {' or '.join(cures)}" if cures else "lower both"


def _iid(labels: np.ndarray, workers: int, rng: np.random.Generator) -> Parts:
    return np.array_split(rng.permutation(len(labels)), workers)


def _shards(per_worker: int) -> Scheme:
    def scheme(labels: np.ndarray, workers: int, rng: np.random.Generator) -> Parts:
        if workers * per_worker > len(labels):
            raise BadInput(
                f"--partition=shards:{per_worker}: {len(labels)} samples make no "
                f"{workers * per_worker} shards; use shards:{len(labels) // workers} at most"
            )
        shards = np.array_split(np.argsort(labels, kind="stable"), workers * per_worker)
        dealt = rng.permutation(len(shards)).reshape(workers, per_worker)
        return [np.concatenate([shards[shard] for shard in hand]) for hand in dealt]

    return scheme


def _dirichlet(alpha: float) -> Scheme:
    def scheme(labels: np.ndarray, workers: int, rng: np.random.Generator) -> Parts:
        shares: list[Sequence[np.ndarray]] = []
        for label in np.unique(labels):
            samples = rng.permutation(np.flatnonzero(labels == label))
            proportions = rng.dirichlet(np.full(workers, alpha))
            cuts = np.rint(np.cumsum(proportions[:-1]) * len(samples)).astype(int)
            shares.append(np.split(samples, cuts))
        return [np.concatenate(worker) for worker in zip(*shares, strict=True)]

    return scheme


def _thinned(share: float) -> Scheme:
    def scheme(labels: np.ndarray, workers: int, rng: np.random.Generator) -> Parts:
        classes = np.unique(labels)
        return [thin(part, labels, classes, rng) for part in _iid(labels, workers, rng)]

    def thin(
        part: np.ndarray, labels: np.ndarray, classes: np.ndarray, rng: np.random.Generator
    ) -> np.ndarray:
        dropped: list[np.ndarray] = []
        for label in rng.choice(classes, len(classes) // 2, replace=False):
            samples = part[labels[part] == label]  # in random order
            dropped.append(samples[: round(share * len(samples))])
        return np.setdiff1d(part, np.concatenate(dropped) if dropped else [])

    return scheme
