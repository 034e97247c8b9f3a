"""A Keras model seen as one flat float32 vector.

This is the one door to TensorFlow: it loads quietly, sees no GPU, and computes on one thread, so
that the same vector and batch give the same gradient bit for bit in every process of a host.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import numpy as np

_NOTICES = (b"absl::InitializeLog()", b"oneDNN custom operations are on")


@contextmanager
def _without_notices() -> Iterator[None]:
    """Drop what TensorFlow always writes to stderr while it loads; let everything else through.

    These lines come from C++ before any logging is configured: no setting silences them, except
    doing without oneDNN, which makes a step a fifth slower.
    """
    sys.stderr.flush()
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as written:
        os.dup2(written.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(stderr, 2)
            os.close(stderr)
            written.seek(0)
            for line in written:
                if not any(notice in line for notice in _NOTICES):
                    os.write(2, line)


os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["KERAS_BACKEND"] = "tensorflow"
with _without_notices():
    import keras
    import tensorflow as tf

tf.config.set_visible_devices([], "GPU")
tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(1)


class FlatModel:
    """Loss, error and gradient of a classifier as functions of one vector w of shape (dim,).

    The vector holds the model's trainable variables, each in row-major order, one after the
    other. The model is called statelessly: its own variables are read by `get` only. The loss is
    the softmax cross-entropy of the model's outputs taken as logits, plus ½·`decay`·‖weights‖²,
    where biases are no weights. Samples x are float32 arrays of shape (n, *features); labels y are
    int32 arrays of shape (n,).
    """

    def __init__(self, model: keras.Model, decay: float = 0.0):
        self._model, self._decay = model, decay
        self._shapes = [tuple(v.shape) for v in model.trainable_variables]
        self._sizes = [int(np.prod(shape)) for shape in self._shapes]
        self.dim = sum(self._sizes)
        # Concrete functions: traced here, once, and called without a search for the right trace.
        signature = (
            tf.TensorSpec([self.dim], tf.float32),
            tf.TensorSpec([None, *model.input_shape[1:]], tf.float32),
            tf.TensorSpec([None], tf.int32),
        )
        self._gradient = _compiled(self._gradient_graph).get_concrete_function(*signature)
        self._quality = _compiled(self._quality_graph).get_concrete_function(*signature)

    def get(self) -> np.ndarray:
        """The model's own parameters, shape (dim,)."""
        return np.concatenate([np.ravel(v.numpy()) for v in self._model.trainable_variables])

    def gradient(self, w: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Gradient at `w` of the mean loss over (x, y), shape (dim,); the caller owns the array."""
        g = self._gradient(*map(tf.convert_to_tensor, (w, x, y)))
        return g.numpy()  # a copy: TensorFlow reuses the memory of a tensor that it has freed

    def gradients(self, w: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Gradients of n models at once, shape (n, dim): row i at w[i] over (x[i], y[i]).

        Shapes: w (n, dim), x (n, samples, *features), y (n, samples).
        """
        return self._gradients(*map(tf.convert_to_tensor, (w, x, y))).numpy()

    def evaluate(self, w: np.ndarray, x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
        """Mean loss over (x, y) at `w`, and the share of its samples that are misclassified."""
        loss, wrong = self._quality(*map(tf.convert_to_tensor, (w, x, y)))
        return float(loss), int(wrong) / len(y)

    def _parts(self, w: tf.Tensor) -> list[tf.Tensor]:
        # tf.split rather than slices: its gradient is one concatenation.
        return list(map(tf.reshape, tf.split(w, self._sizes), self._shapes))

    def _loss(self, parts: list[tf.Tensor], logits: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)
        loss = tf.reduce_mean(losses)
        if self._decay:
            weights = [part for part in parts if part.shape.rank > 1]
            loss += self._decay * tf.add_n(list(map(tf.nn.l2_loss, weights)))
        return loss

    def _call(self, parts: list[tf.Tensor], x: tf.Tensor, training: bool) -> tf.Tensor:
        logits, _ = self._model.stateless_call(
            parts, self._model.non_trainable_variables, x, training=training
        )
        return logits

    def _gradient_graph(self, w: tf.Tensor, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(w)
            parts = self._parts(w)
            loss = self._loss(parts, self._call(parts, x, training=True), y)
        return tape.gradient(loss, w)

    @cached_property
    def _gradients(self) -> tf.types.experimental.ConcreteFunction:
        """Traced when it is first needed: MPI ranks and large models never do."""
        signature = (
            tf.TensorSpec([None, self.dim], tf.float32),
            tf.TensorSpec([None, None, *self._model.input_shape[1:]], tf.float32),
            tf.TensorSpec([None, None], tf.int32),
        )
        return _compiled(self._gradients_graph).get_concrete_function(*signature)

    def _gradients_graph(self, w: tf.Tensor, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        # w is cut before the map, not in it, where the gradient of a split would be sparse.
        parts = [
            tf.reshape(part, (-1, *shape))
            for part, shape in zip(tf.split(w, self._sizes, axis=1), self._shapes, strict=True)
        ]
        slopes = tf.vectorized_map(lambda one: self._slopes(*one), (parts, x, y))
        flat = [tf.reshape(g, (-1, n)) for g, n in zip(slopes, self._sizes, strict=True)]
        return tf.concat(flat, axis=1)

    def _slopes(self, parts: list[tf.Tensor], x: tf.Tensor, y: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(parts)
            loss = self._loss(parts, self._call(parts, x, training=True), y)
        return tape.gradient(loss, parts)

    def _quality_graph(
        self, w: tf.Tensor, x: tf.Tensor, y: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        parts = self._parts(w)
        logits = self._call(parts, x, training=False)
        wrong = tf.argmax(logits, axis=1, output_type=tf.int32) != y
        return self._loss(parts, logits, y), tf.math.count_nonzero(wrong)


def _compiled(graph: Callable[..., Any]) -> Any:
    # Our graphs have no loops or branches of Python to translate; translating them would leave
    # files behind in the folder for temporary files.
    return tf.function(graph, autograph=False)
