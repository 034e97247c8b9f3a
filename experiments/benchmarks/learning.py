"""What learning costs on the virtual cluster: around its gradients, and with gradients in one call.

    python -m experiments.benchmarks.learning

Run time about 90 s. Expected: a run of six workers with 2NN costs at most 1.10 times its bare
steps; 64 workers with LRM and minibatches of 32 go at least 5 times as fast with their gradients
evaluated together (cb_full with a global barrier; the rest is reported without a limit). Leaves
with exit code 1 when a limit is missed.

The bare side takes as many steps as the run evaluated gradients: gather a minibatch, then the same
compiled function from a vector to its gradient. Gathering belongs to a step, here as in the other
benchmarks: the limit is for what cluster and algorithm add. The ratio to the compiled function
alone, its minibatches gathered beforehand, stands beside it without a limit.

Runs have their trace and recorder and evaluate nothing but gradients. The sides take turns, and a
ratio is the median over the rounds, in CPU seconds, which other programs on the machine disturb
least. They do disturb: what a run adds is mostly vectors of 340 KB that are no longer in cache.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import cycle, islice
from typing import NamedTuple

import numpy as np
from absl import app, flags
from rich.console import Console
from rich.table import Table

from cbdybw import topology
from cbdybw.algorithms import ALGORITHMS
from cbdybw.algorithms.plan import Plan, State
from cbdybw.clusters import delays
from cbdybw.clusters.network import Network
from cbdybw.clusters.trace import Trace
from cbdybw.clusters.virtual import VirtualCluster
from cbdybw.errors import BadInput
from cbdybw.learning import workloads
from cbdybw.learning.flat import FlatModel
from cbdybw.learning.models import glorot_uniform, mlp
from cbdybw.learning.workloads import Classification
from cbdybw.problem import Problem
from cbdybw.recorder import Recorder
from cbdybw.storage import datasets
from cbdybw.storage.datasets import Dataset
from experiments.benchmarks import step  # defines --data_dir, --batch_size, --rounds and --steps

FLAGS = flags.FLAGS
FLAGS.set_default("rounds", 11)
FLAGS.set_default("steps", 40)

OVERHEAD, SPEEDUP = 1.10, 5.0
FEW, MANY, SMALL_BATCH = 6, 64, 32


class Cell(NamedTuple):
    """An algorithm, what its plan says beside the defaults, and the iterations of one step."""

    algorithm: str
    plan: dict[str, str]
    stretch: int  # some algorithms take fewer gradients in an iteration
    limited: bool = True

    def __str__(self) -> str:
        return ", ".join([self.algorithm, *self.plan.values()])


LARGE = (
    Cell("cb_full", {"barrier": "global"}, 1),
    Cell("cb_dybw", {"policy": "carry"}, 2),
)
SMALL = (
    Cell("cb_full", {"barrier": "global"}, 1),
    Cell("cb_full", {"barrier": "neighbours"}, 1, limited=False),
    Cell("cb_dybw", {"policy": "carry"}, 3, limited=False),
    Cell("cb_dybw", {"policy": "drop"}, 3, limited=False),
)


class Counted(Classification):
    """It counts its gradients."""

    gradients = 0

    def gradient(self, w: np.ndarray, batch: np.ndarray) -> np.ndarray:
        self.gradients += 1
        return super().gradient(w, batch)


def main(_: list[str]) -> int:
    try:
        dataset = datasets.load(FLAGS.data_dir) if FLAGS.data_dir else step.random_dataset()
        few = around_gradients(shared_among(FEW, dataset))
        many = together(shared_among(MANY, dataset))
    except BadInput as error:
        print(error, file=sys.stderr)
        return 2
    console = Console()
    console.print(few.table, many.table, step.machine(), sep="\n")
    return 0 if few.within and many.within else 1


class Report(NamedTuple):
    table: Table
    within: bool


def around_gradients(dataset: Dataset) -> Report:
    """Whole runs of 2NN against their bare gradients."""
    model = mlp(dataset.train_x.shape[1], dataset.classes)
    flat, size = FlatModel(model), FLAGS.batch_size
    problem = Counted(flat, partial(glorot_uniform, model), dataset, size, seed=0)
    estimates = [problem.initial(np.random.default_rng(j)) for j in range(FEW)]
    batches = [(j, problem.batch(j, k)) for k in range(8) for j in range(FEW)]
    gathered = [(j, problem.samples(batch)) for j, batch in batches]

    def steps(n: int) -> None:
        for j, batch in islice(cycle(batches), n):
            flat.gradient(estimates[j], *problem.samples(batch))

    def functions(n: int) -> None:
        for j, samples in islice(cycle(gathered), n):
            flat.gradient(estimates[j], *samples)

    table = Table(title=f"2NN, {FEW} workers, minibatches of {size}: CPU ms for each gradient")
    for column in ("", "whole run", "bare step", "ratio", "limit", "function alone", "its ratio"):
        table.add_column(column, justify="right")
    within = True
    for cell in LARGE:
        rows = []
        for _ in range(FLAGS.rounds + 1):
            problem.gradients = 0
            whole = seconds(run, cell, problem, FEW, True)
            n = problem.gradients
            rows.append([whole / n, seconds(steps, n) / n, seconds(functions, n) / n])
        ours, bare, alone = np.array(rows[1:]).T  # the first warms up
        ratio = float(np.median(ours / bare))
        within &= ratio <= OVERHEAD
        table.add_row(
            str(cell),
            f"{1e3 * np.median(ours):.3f}",
            f"{1e3 * np.median(bare):.3f}",
            f"{ratio:.3f}",
            f"≤ {OVERHEAD:.2f}",
            f"{1e3 * np.median(alone):.3f}",
            f"{np.median(ours / alone):.3f}",
        )
    return Report(table, within)


def together(dataset: Dataset) -> Report:
    """Whole runs of LRM, gradients evaluated one by one and together."""
    problem = workloads.build("lrm", dataset, SMALL_BATCH, seed=0)
    table = Table(
        title=f"LRM, {MANY} workers, minibatches of {SMALL_BATCH}: CPU µs for each gradient used"
    )
    for column in ("", "one by one", "together", "ratio", "limit"):
        table.add_column(column, justify="right")
    within = True
    for cell in SMALL:
        rows = []
        for _ in range(FLAGS.rounds + 1):
            rows.append([seconds(run, cell, problem, MANY, batch) for batch in (False, True)])
        used = int(run(cell, problem, MANY, batch=True).used.sum())
        alone, batched = np.array(rows[1:]).T / used
        ratio = float(np.median(alone / batched))
        within &= ratio >= SPEEDUP or not cell.limited
        table.add_row(
            str(cell),
            f"{1e6 * np.median(alone):.1f}",
            f"{1e6 * np.median(batched):.1f}",
            f"{ratio:.2f}",
            f"≥ {SPEEDUP:.0f}" if cell.limited else "",
        )
    return Report(table, within)


def shared_among(workers: int, dataset: Dataset) -> Dataset:
    """The same samples, dealt to so many workers."""
    order = np.random.default_rng(0).permutation(len(dataset.train_x))
    return dataclasses.replace(dataset, parts=np.array_split(order, workers))


def run(cell: Cell, problem: Problem, workers: int, batch: bool) -> Recorder:
    """A whole run on a ring, Exp(1) seconds for a gradient."""
    graph = topology.build("ring", workers, 0)
    iterations = FLAGS.steps * cell.stretch
    plan = Plan(
        topology.neighbours(graph),
        topology.connecting_edges(graph).edges,
        0,
        lambda k: 0.1,
        iterations,
        **cell.plan,
    )
    recorder = Recorder(iterations)
    cluster = VirtualCluster(
        workers,
        delay=delays.parse("exponential:mean=1", workers, 0),
        network=Network(),
        seed=0,
        trace=Trace(),
        recorder=recorder,
        batch=batch,
    )
    first = problem.initial(np.random.default_rng(0))
    algorithm = ALGORITHMS[cell.algorithm].run
    cluster.run(lambda worker: algorithm(worker, problem, plan, State(0, first)))
    return recorder


def seconds(side: Callable[..., object], *args: object) -> float:
    """CPU seconds that `side(*args)` takes, all threads together."""
    start = time.process_time()
    side(*args)
    return time.process_time() - start


if __name__ == "__main__":
    app.run(main)
