"""The models of the papers' experiments, and where their training starts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from cbdybw.learning.flat import keras, tf

DROPPABLE = 384
"""Hidden units of the RNN that dropout silences."""


def lrm(features: int, classes: int) -> keras.Model:
    """Multinomial logistic regression: one affine map from features to logits."""
    return keras.Sequential([keras.Input((features,)), keras.layers.Dense(classes)])


def mlp(features: int, classes: int, width: int = 256, depth: int = 2) -> keras.Model:
    """`depth` hidden layers of `width` rectified units, then logits; the defaults are "2NN"."""
    hidden = [keras.layers.Dense(width, activation="relu") for _ in range(depth)]
    return keras.Sequential([keras.Input((features,)), *hidden, keras.layers.Dense(classes)])


def cnn(classes: int) -> keras.Model:
    """ADSP's CNN for 32×32×3 images: conv, pool, LRN, conv, LRN, pool, one affine map to logits."""
    conv = partial(keras.layers.Conv2D, 64, 5, padding="same", activation="relu")
    pool = partial(keras.layers.MaxPool2D, 3, 2, padding="same")
    hidden = [conv(), pool(), LocalResponse(), conv(), LocalResponse(), pool()]
    flat = [keras.layers.Flatten(), keras.layers.Dense(classes)]
    return keras.Sequential([keras.Input((32, 32, 3)), *hidden, *flat])


def le_net(height: int, width: int, classes: int) -> keras.Model:
    """SCAR's two convolutions and three dense layers, for images of one channel.

    [choice] LeNet-5's dense layers (LeCun et al., 1998) after 8 and 16 filters of 3×3, with
    rectified units, and strides of 2 in the place of pooling: a seventh of the time of its own.
    """
    conv = partial(keras.layers.Conv2D, kernel_size=3, strides=2, padding="same", activation="relu")
    dense = partial(keras.layers.Dense, activation="relu")
    image = [keras.Input((height * width,)), keras.layers.Reshape((height, width, 1))]
    hidden = [conv(8), conv(16), keras.layers.Flatten(), dense(120), dense(84)]
    return keras.Sequential([*image, *hidden, keras.layers.Dense(classes)])


def rnn(window: int, classes: int) -> keras.Model:
    """ADSP's RNN: LSTM of 128 units over a window, DROPPABLE rectified units, dropout, logits.

    The factors of dropout are inputs too, (window + DROPPABLE) in all: who calls the model decides
    by which key they are drawn.
    """
    inputs = keras.Input((window + DROPPABLE,))
    series, factors = inputs[:, :window], inputs[:, window:]
    last = keras.layers.LSTM(128)(keras.layers.Reshape((window, 1))(series))
    units = keras.layers.Dense(DROPPABLE, activation="relu")(last) * factors
    return keras.Model(inputs, keras.layers.Dense(classes)(units))


class LocalResponse(keras.layers.Layer):
    """Local response normalisation: each channel divided by (1 + α Σ x²)^¾ of its neighbours.

    [choice] Of four channels on either side, with α = 0.001/9: TensorFlow's CIFAR-10 tutorial. As
    a product with a band matrix it takes a third of the time of tf.nn.lrn.
    """

    reach, alpha = 4, 0.001 / 9

    def call(self, x: tf.Tensor) -> tf.Tensor:
        number = np.arange(x.shape[-1])
        near = np.abs(np.subtract.outer(number, number)) <= self.reach
        band = tf.constant(near, x.dtype)

        def around(v: tf.Tensor) -> tf.Tensor:
            return tf.reshape(tf.matmul(tf.reshape(v, (-1, len(number))), band), tf.shape(v))

        @tf.custom_gradient
        def normalise(x: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
            inverse = tf.math.rsqrt(1 + self.alpha * around(tf.square(x)))
            factor = inverse * tf.sqrt(inverse)

            def slope(dy: tf.Tensor) -> tf.Tensor:
                pull = around(dy * x * factor * tf.square(inverse))
                return dy * factor - 2 * 0.75 * self.alpha * x * pull

            return x * factor, slope

        return normalise(x)


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
            field = np.prod(variable.shape[:-2])  # of a convolution; 1 for a matrix
            limit = np.sqrt(6 / (field * sum(variable.shape[-2:])))
            parts.append(rng.uniform(-limit, limit, variable.shape).ravel())
    return np.concatenate(parts).astype(np.float32)
