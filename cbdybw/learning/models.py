"""The models of cb-DyBW's experiments, and where their training starts."""

from __future__ import annotations

import numpy as np

from cbdybw.learning.flat import keras


def lrm(features: int, classes: int) -> keras.Model:
    """Multinomial logistic regression: one affine map from features to logits."""
    return keras.Sequential([keras.Input((features,)), keras.layers.Dense(classes)])


def mlp(features: int, classes: int, width: int = 256, depth: int = 2) -> keras.Model:
    """`depth` hidden layers of `width` rectified units, then logits; the defaults are "2NN"."""
    hidden = [keras.layers.Dense(width, activation="relu") for _ in range(depth)]
    return keras.Sequential([keras.Input((features,)), *hidden, keras.layers.Dense(classes)])


def zeros(model: keras.Model, rng: np.random.Generator) -> np.ndarray:
    """The start of LRM: its loss is convex, with no symmetry to break, and is log(classes) here."""
    return np.zeros(model.count_params(), np.float32)


def glorot_uniform(model: keras.Model, rng: np.random.Generator) -> np.ndarray:
    """Weights uniform in ±√(6/(fan in + fan out)) (Glorot and Bengio, 2010), biases zero.

    Drawn by numpy, so that a seed means the same start whatever the version of Keras.
    """
    parts = []
    for variable in model.trainable_variables:
        if len(variable.shape) == 1:
            parts.append(np.zeros(variable.shape))
        else:
            limit = np.sqrt(6 / sum(variable.shape))
            parts.append(rng.uniform(-limit, limit, variable.shape).ravel())
    return np.concatenate(parts).astype(np.float32)
