"""What ADSP costs on the virtual cluster: around the CNN's gradients, and where nothing is learnt.

    python -m experiments.benchmarks.adsp

Run time about 6 minutes. Expected: 18 workers with the CNN cost at most 1.10 times their bare
steps, 500 steps a side in all; one simulated day of 36 workers without learning takes less than 60
seconds. Both are CPU time. Leaves with exit code 1 when a limit is missed.

Machines are those of the experiments at H = 3.2; commit rates are fixed, for a search evaluates the
model and that is no part of this. The bare side takes as many steps: draw and gather a minibatch,
augment it, and the gradient at one model for each worker. The sides take turns, who is first as
well, and the ratio is the median over the rounds. `--data_dir` names prepared CIFAR-10 for 18
workers; without it images are random.
"""

from __future__ import annotations

import sys
from functools import partial

import numpy as np
from absl import app, flags
from rich.console import Console
from rich.table import Table

from cbdybw.algorithms import ALGORITHMS
from cbdybw.algorithms.plan import Pace, Plan, State
from cbdybw.clusters import delays, network
from cbdybw.clusters.trace import Trace
from cbdybw.clusters.virtual import VirtualCluster
from cbdybw.errors import BadInput
from cbdybw.learning import workloads
from cbdybw.problem import Problem, Timing
from cbdybw.recorder import Recorder
from cbdybw.storage import datasets
from cbdybw.storage.datasets import Dataset
from experiments.benchmarks import step  # defines --data_dir, --batch_size, --rounds and --steps
from experiments.benchmarks.learning import seconds

FLAGS = flags.FLAGS
FLAGS.set_default("rounds", 5)
FLAGS.set_default("steps", 100)
FLAGS.set_default("batch_size", 128)

OVERHEAD, DAY_SECONDS = 1.10, 60.0
WORKERS, MANY, DAY = 18, 36, 86_400.0
MACHINES = "machines:path=experiments/adsp/machines/eighteen.toml,heterogeneity=3.2"
LINKS = "latency=0.01,bandwidth=12.5e6"
STEPS_PER_SECOND = 18.0
"""Of the 18 machines, roughly: how long a run of --steps lasts."""


def main(_: list[str]) -> int:
    try:
        dataset = datasets.load(FLAGS.data_dir) if FLAGS.data_dir else random_images()
        problem = workloads.build("cnn", dataset, FLAGS.batch_size, seed=0)
    except BadInput as error:
        print(error, file=sys.stderr)
        return 2
    table = Table("CPU seconds", "ours", "bare steps", "ratio", "limit")
    within = learning(problem, table) & timing(table)
    Console().print(table, step.machine(), sep="\n")
    return 0 if within else 1


def random_images() -> Dataset:
    """Noise in the shape of CIFAR-10, for 18 workers."""
    rng = np.random.default_rng(0)
    x = rng.random((6_000, 3 * 32 * 32), np.float32)
    y = rng.integers(0, 10, len(x))
    parts = np.array_split(rng.permutation(len(x)), WORKERS)
    about = {"image_shape": [32, 32, 3]}
    return Dataset("random 6000×3072", x, y, x[:1_000], y[:1_000], parts, 10, about)


def learning(problem: Problem, table: Table) -> bool:
    """Whole runs of the CNN against their bare steps."""
    w = problem.initial(np.random.default_rng(0))
    models = [w.copy() for _ in range(WORKERS)]
    taken: list[int] = []

    def ours() -> None:
        taken.append(run(problem, WORKERS, FLAGS.steps / STEPS_PER_SECOND, factor=0.1))

    def bare() -> None:
        for n in range(taken[-1] if taken else FLAGS.steps):
            j, k = n % WORKERS, n // WORKERS
            problem.gradient(models[j], problem.batch(j, k))

    rows = []
    for turn in range(FLAGS.rounds + 1):
        sides = {"ours": ours, "bare": bare}
        order = list(sides) if turn % 2 == 0 else list(sides)[::-1]
        spent = {name: seconds(sides[name]) for name in order}
        rows.append([spent["ours"], spent["bare"]])
    ours_all, bare_all = np.array(rows[1:]).T  # the first warms up
    ratio = float(np.median(ours_all / bare_all))
    table.add_row(
        f"{WORKERS} workers, CNN, {taken[-1]} steps, {FLAGS.rounds} times",
        f"{np.median(ours_all):.2f}",
        f"{np.median(bare_all):.2f}",
        f"{ratio:.3f}",
        f"≤ {OVERHEAD:.2f}",
    )
    return ratio <= OVERHEAD


def timing(table: Table) -> bool:
    """A simulated day of steps that take their time only."""
    spent = seconds(partial(run, Timing(148_298), MANY, DAY))
    limit = f"≤ {DAY_SECONDS:.0f} s"
    table.add_row(f"{MANY} workers, no learning, one day", f"{spent:.1f}", "", "", limit)
    return spent <= DAY_SECONDS


def run(problem: Problem, workers: int, max_time: float, factor: float = 1.0) -> int:
    """A whole run of ADSP, its check period of a minute times `factor`; the steps taken."""
    delay = f"{MACHINES},processes={workers // WORKERS}"
    iterations = int(max_time) + 100
    plan = Plan(
        ((),) * workers, (), 0, lambda k: 0.1, iterations,
        max_time=max_time, pace=Pace(rate=4, period=60 * factor),
    )  # fmt: skip
    virtual = VirtualCluster(
        workers + 1,
        delay=delays.parse(delay, workers, 0),
        network=network.parse(LINKS, workers + 1, 0),
        seed=0,
        trace=Trace(),
        recorder=Recorder(iterations),
        servers=1,
    )
    first = problem.initial(np.random.default_rng(0))
    adsp = ALGORITHMS["adsp"].run
    done = virtual.run(lambda worker: adsp(worker, problem, plan, State(0, first)))
    return sum(int(done[rank].memory["counts"][0]) for rank in range(workers))


if __name__ == "__main__":
    app.run(main)
