"""Classifiers whose training samples are altered by chance: augmented images, dropped units.

What chance decides is drawn with a minibatch, by a key, so that the minibatch stays a pure function
of rank, index and seed on every cluster.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np

from cbdybw.clusters.worker import keyed_rng
from cbdybw.learning.classification import Classification

MOST = 2000
"""Samples for each of loss and error [choice]: the CNN takes 0.6 ms for one, 12 s for all."""

PIECE = 128
"""Samples in a call of an evaluation: what a convolution makes of more outgrows the cache."""


class Alteration(Protocol):
    """What happens to samples, rows of x, before a model sees them."""

    def draw(self, samples: int, rng: np.random.Generator) -> Any:
        """What chance decides for so many training samples."""

    def alter(self, x: np.ndarray, drawn: Any) -> np.ndarray:
        """Training samples as the model takes them."""

    def leave(self, x: np.ndarray) -> np.ndarray:
        """Samples of an evaluation as the model takes them: nothing by chance."""


class Batch(NamedTuple):
    """The numbers of a minibatch's samples, and what was drawn for them."""

    numbers: np.ndarray
    drawn: Any


class Altered(Classification):
    """A classifier learnt from altered samples; `arguments` are those of Classification.

    There is no `gradient_many`: for several models at once TensorFlow has no convolution of its
    own, which takes 0.35 s for each instead of 0.24, and an LSTM gains nothing.
    """

    def __init__(self, alteration: Alteration, *arguments: Any, **keywords: Any):
        super().__init__(*arguments, **keywords, most=MOST)
        self._alteration = alteration
        self.gradient_many = None

    def batch(self, rank: int, index: int, size: int | None = None) -> Batch:
        """Minibatch `index` of worker `rank`, of `size` samples."""
        numbers = super().batch(rank, index, size)
        rng = keyed_rng(self._seed, "alteration", rank, index)
        return Batch(numbers, self._alteration.draw(len(numbers), rng))

    def samples(self, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
        """Altered samples and their labels."""
        x, y = super().samples(batch.numbers)
        return self._alteration.alter(x, batch.drawn), y

    def _quality(self, w: np.ndarray, x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
        starts = range(0, len(y), PIECE)
        pieces = [(x[start : start + PIECE], y[start : start + PIECE]) for start in starts]
        each = [self._model.evaluate(w, self._alteration.leave(x), y) for x, y in pieces]
        loss, error = np.average(each, axis=0, weights=[len(y) for _, y in pieces])
        return float(loss), float(error)


class Augmentation:
    """Images of 32×32×3, stored as rows of pixels in [0, 1], flipped, lit anew and standardised.

    As the CIFAR-10 tutorial of TensorFlow does it, on a scale of 0 to 255 and without clipping:
    mirrored or not, brightness changed by up to ±63, contrast (the distance of pixels from their
    channel's mean) scaled by 0.2 to 1.8; then each image has its mean subtracted and is divided by
    its standard deviation, which undoes the change of brightness.
    """

    def draw(self, samples: int, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        """Of each image: whether it is mirrored, its brightness, its contrast."""
        mirrored = rng.random(samples) < 0.5
        brightness = rng.uniform(-63, 63, samples).astype(np.float32)
        contrast = rng.uniform(0.2, 1.8, samples).astype(np.float32)
        return mirrored, brightness, contrast

    def alter(self, x: np.ndarray, drawn: tuple[np.ndarray, ...]) -> np.ndarray:
        """Shape (n, 32, 32, 3)."""
        mirrored, brightness, contrast = drawn
        x = _pixels(x)
        x[mirrored] = x[mirrored, :, ::-1]
        x += brightness[:, None, None, None]
        # (x - mean)·contrast + mean, a line of 32 pixels at a time: numpy is slow along 3 channels.
        mean = np.full(32 * 32, 1 / (32 * 32), x.dtype) @ x.reshape(-1, 32 * 32, 3)
        x *= contrast[:, None, None, None]
        lines = x.reshape(-1, 32, 32 * 3)
        lines += np.tile((1 - contrast[:, None]) * mean, 32)[:, None]
        return _standardised(x)

    def leave(self, x: np.ndarray) -> np.ndarray:
        """Shape (n, 32, 32, 3): standardised only."""
        return _standardised(_pixels(x))


def _pixels(x: np.ndarray) -> np.ndarray:
    return (x * np.float32(255)).reshape(-1, 32, 32, 3)


def _standardised(x: np.ndarray) -> np.ndarray:
    """In the place of x."""
    x -= x.mean(axis=(1, 2, 3), keepdims=True)
    spread = np.sqrt(np.mean(np.square(x), axis=(1, 2, 3), keepdims=True))
    x /= np.maximum(spread, np.float32(1 / np.sqrt(x[0].size)))  # the latter: of a plain image
    return x


class Dropout:
    """`units` factors beside each sample's features: 0 with probability `rate`, else 1/(1 - rate).

    The model multiplies its units by them. In an evaluation all are 1.
    """

    def __init__(self, units: int, rate: float):
        self.units, self.rate = units, rate

    def draw(self, samples: int, rng: np.random.Generator) -> np.ndarray:
        """The factors, shape (samples, units)."""
        kept = rng.random((samples, self.units), np.float32) >= self.rate
        return kept * np.float32(1 / (1 - self.rate))

    def alter(self, x: np.ndarray, drawn: np.ndarray) -> np.ndarray:
        """Shape (n, features + units)."""
        return np.concatenate([x, drawn], axis=1)

    def leave(self, x: np.ndarray) -> np.ndarray:
        """Shape (n, features + units)."""
        return np.concatenate([x, np.ones((len(x), self.units), np.float32)], axis=1)
