"""What a model seen as one flat vector costs in a step of training.

    python -m experiments.benchmarks.step

Run time about 15 s. Expected: both ratios at most 1.1 (about 1.0 for 2NN, 0.6 for LRM). Every step
gathers its own minibatch. The contenders take turns, a few steps in each round, and a ratio is the
median over the rounds, so that a noisy machine disturbs both sides alike. Leaves with exit code 1
when a limit is missed.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from absl import app, flags
from rich.console import Console
from rich.table import Table

from cbdybw.errors import BadInput
from cbdybw.learning import workloads
from cbdybw.learning.flat import keras, tf
from cbdybw.learning.models import lrm
from cbdybw.problem import Problem
from cbdybw.storage import datasets
from cbdybw.storage.datasets import Dataset

FLAGS = flags.FLAGS
flags.DEFINE_string("data_dir", None, "a prepared data set (default: random, as MNIST with PCA 50)")
flags.DEFINE_integer("batch_size", 1024, "samples in a minibatch", lower_bound=1)
flags.DEFINE_integer("rounds", 100, "rounds in which the contenders take turns", lower_bound=1)
flags.DEFINE_integer("steps", 20, "steps of a contender in one round", lower_bound=1)

ETA = np.float32(0.1)
LIMIT = 1.1

Step = Callable[[int], None]


class Comparison(NamedTuple):
    """A step of ours and the step that it is measured against."""

    workload: str
    baseline: str
    ours: Step
    theirs: Step


def main(_: list[str]) -> int:
    try:
        dataset = datasets.load(FLAGS.data_dir) if FLAGS.data_dir else random_dataset()
        comparisons = [against_bare_tensorflow(dataset), against_keras(dataset)]
    except BadInput as error:
        print(error, file=sys.stderr)
        return 2
    table = Table("workload", "against", "ours, ms", "baseline, ms", "ratio", "limit")
    within = True
    for comparison in comparisons:
        ours, theirs = measure(comparison)
        ratio = np.median(ours / theirs)
        within &= bool(ratio <= LIMIT)
        table.add_row(
            comparison.workload,
            comparison.baseline,
            milliseconds(ours),
            milliseconds(theirs),
            f"{ratio:.2f}",
            f"{LIMIT:.2f}",
        )
    table.caption = (
        f"median (fastest) of {FLAGS.rounds} rounds of {FLAGS.steps} steps, "
        f"{dataset.name}, minibatches of {FLAGS.batch_size}\n{machine()}"
    )
    Console().print(table)
    return 0 if within else 1


def random_dataset() -> Dataset:
    """Noise in the shape of MNIST with PCA to 50 features, for six workers."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((60_000, 50), dtype=np.float32)
    y = rng.integers(0, 10, len(x))
    parts = np.split(rng.permutation(len(x)), 6)
    return Dataset("random 60000×50", x, y, x[:10_000], y[:10_000], parts, 10, {})


def against_bare_tensorflow(dataset: Dataset) -> Comparison:
    """2NN against the same network written down with variables in one tf.function."""
    problem = workloads.build("2nn", dataset, FLAGS.batch_size, seed=0)
    w = problem.initial(np.random.default_rng(0))
    features, width, classes = dataset.train_x.shape[1], 256, dataset.classes
    shapes = [(features, width), (width,), (width, width), (width,), (width, classes), (classes,)]
    ends = np.cumsum([np.prod(shape) for shape in shapes])
    parts = np.split(w, ends[:-1])
    variables = [tf.Variable(p.reshape(shape)) for p, shape in zip(parts, shapes, strict=True)]
    a, a0, b, b0, c, c0 = variables

    @tf.function(input_signature=[tf.TensorSpec([None, features]), tf.TensorSpec([None], tf.int32)])
    def step(x, y):
        with tf.GradientTape() as tape:
            hidden = tf.nn.relu(tf.nn.relu(x @ a + a0) @ b + b0)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, hidden @ c + c0)
            loss = tf.reduce_mean(losses)
        for variable, g in zip(variables, tape.gradient(loss, variables), strict=True):
            variable.assign_sub(ETA * g)

    gather = plain_gathering(dataset)
    return Comparison(
        "2nn",
        "bare tf.function",
        sgd(problem),
        lambda k: step(*map(tf.convert_to_tensor, gather(k))),
    )


def against_keras(dataset: Dataset) -> Comparison:
    """LRM against `train_on_batch` of the same Keras model."""
    model = lrm(dataset.train_x.shape[1], dataset.classes)
    model.compile(
        optimizer=keras.optimizers.SGD(float(ETA)),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    gather = plain_gathering(dataset)
    problem = workloads.build("lrm", dataset, FLAGS.batch_size, seed=0)
    return Comparison(
        "lrm", "Keras train_on_batch", sgd(problem), lambda k: model.train_on_batch(*gather(k))
    )


def sgd(problem: Problem) -> Step:
    """Our step, as an algorithm takes it: gather, gradient, numpy update."""
    w = problem.initial(np.random.default_rng(0))

    def step(k: int) -> None:
        nonlocal w
        w = w - ETA * problem.gradient(w, problem.batch(0, k))

    return step


def plain_gathering(dataset: Dataset) -> Callable[[int], tuple[np.ndarray, np.ndarray]]:
    """The cheapest way to minibatches of worker 0: one shuffle, then rows by number."""
    x, y = np.asarray(dataset.train_x), np.asarray(dataset.train_y, np.int32)
    order = np.random.default_rng(0).permutation(dataset.parts[0])
    steps = len(order) // FLAGS.batch_size

    def gather(k: int) -> tuple[np.ndarray, np.ndarray]:
        start = k % steps * FLAGS.batch_size
        rows = order[start : start + FLAGS.batch_size]
        return x.take(rows, axis=0), y.take(rows)

    return gather


def measure(comparison: Comparison) -> tuple[np.ndarray, np.ndarray]:
    """Seconds per step of both sides in each round, after one round to warm up."""
    sides = (comparison.ours, comparison.theirs)
    seconds = np.empty((2, FLAGS.rounds + 1))
    for r in range(FLAGS.rounds + 1):
        for side in (0, 1) if r % 2 else (1, 0):
            start = time.perf_counter()
            for k in range(r * FLAGS.steps, (r + 1) * FLAGS.steps):
                sides[side](k)
            seconds[side, r] = (time.perf_counter() - start) / FLAGS.steps
    return seconds[0, 1:], seconds[1, 1:]


def milliseconds(seconds: np.ndarray) -> str:
    return f"{1e3 * np.median(seconds):.3f} ({1e3 * seconds.min():.3f})"


def machine() -> str:
    """Cores, processor and versions: what a measured time depends on."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    models = [line.partition(": ")[2] for line in lines if line.startswith("model name")]
    return (
        f"{os.cpu_count()} cores, {models[0] if models else platform.machine()}; "
        f"Python {platform.python_version()}, TensorFlow {tf.__version__}, "
        f"Keras {keras.__version__}, NumPy {np.__version__}"
    )


if __name__ == "__main__":
    app.run(main)
