"""What the whole loop costs on MPI, against processes that only take the bare TensorFlow step.

    python -m experiments.benchmarks.loop

Run time about 90 s on two cores. Expected: cb_full with either barrier at most 1.15; cb_dybw is
reported without a limit. Leaves with exit code 1 when a limit is missed.

Six ranks train 2NN with minibatches of 1024 and no injected delay: gather, gradient, update,
exchange, average, with recorder and trace. The bare side is the same six processes, each taking the
same network's step in one tf.function, gathering included, and waiting for nobody. The sides take
turns, block after block; a block lasts until its last rank is done, and a ratio is the median over
the blocks.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np
from absl import app, flags
from rich.console import Console
from rich.table import Table

from cbdybw import topology
from cbdybw.algorithms import ALGORITHMS
from cbdybw.algorithms.plan import Plan, State
from cbdybw.clusters.launch import mpirun, placement
from cbdybw.clusters.trace import Trace
from cbdybw.recorder import Recorder
from experiments.benchmarks import step  # defines --batch_size, --rounds and --steps

FLAGS = flags.FLAGS
FLAGS.set_default("rounds", 12)
FLAGS.set_default("steps", 40)
LIMIT = 1.15
RANKS = 6
CELLS = {
    "cb_full, global barrier": ("cb_full", "global", LIMIT),
    "cb_full, neighbours' barrier": ("cb_full", "neighbours", LIMIT),
    "cb_dybw": ("cb_dybw", "neighbours", None),
}

Block = Callable[[], float]
"""Take FLAGS.steps steps on every rank; seconds until the last rank is done, divided by them."""


def main(argv: list[str]) -> int:
    if placement() is None:
        program = [sys.executable, "-m", "experiments.benchmarks.loop", *argv[1:]]
        flagged = [flag.serialize() for flag in FLAGS.flags_by_module_dict()[step.__name__]]
        command, environment = mpirun(RANKS, [*program, *filter(None, flagged)])
        return subprocess.run(command, env=environment, check=False).returncode
    return measure()


def measure() -> int:
    """One rank's part; the root prints the table."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    dataset = step.random_dataset()
    problem = step.workloads.build("2nn", dataset, FLAGS.batch_size, seed=0)
    bare = bare_block(comm, step.against_bare_tensorflow(dataset).theirs)
    blocks = {name: loop_block(problem, *cell[:2]) for name, cell in CELLS.items()}
    seconds = {name: [] for name in ("bare", *blocks)}
    for _ in range(FLAGS.rounds + 1):  # the first round warms up
        for name, block in {"bare": bare, **blocks}.items():
            seconds[name].append(comm.allreduce(block(), MPI.MAX))
    return report(seconds) if comm.rank == 0 else 0


def bare_block(comm, take_step: step.Step) -> Block:
    """Steps that wait for nobody."""

    def block() -> float:
        comm.Barrier()
        start = time.perf_counter()
        for k in range(FLAGS.steps):
            take_step(k)
        return (time.perf_counter() - start) / FLAGS.steps

    return block


def loop_block(problem, algorithm: str, barrier: str) -> Block:
    """The algorithm itself on the real cluster, on a ring."""
    from cbdybw.clusters.mpi import MpiCluster

    graph = topology.build("ring", RANKS, 0)
    plan = Plan(
        topology.neighbours(graph),
        topology.connecting_edges(graph).edges,
        diameter=RANKS // 2,
        eta=lambda k: step.ETA,
        iterations=FLAGS.steps,
        barrier=barrier,
    )
    w = problem.initial(np.random.default_rng(0))

    recorder = Recorder(FLAGS.steps, 0, RANKS)
    cluster = MpiCluster(
        delay=lambda rank, index: 0.0,
        dim=problem.dim,
        neighbours=plan.neighbours,
        seed=0,
        trace=Trace(),
        recorder=recorder,
    )

    def block() -> float:
        recorder.last_close.fill(-np.inf)
        cluster.run(lambda worker: ALGORITHMS[algorithm].run(worker, problem, plan, State(0, w)))
        return float(recorder.last_close[-1]) / FLAGS.steps

    return block


def report(seconds: dict[str, list[float]]) -> int:
    table = Table("six ranks", "ms an iteration", "ratio to bare", "limit")
    bare = np.array(seconds["bare"][1:])
    table.add_row("bare TensorFlow step", step.milliseconds(bare), "1.00", "")
    within = True
    for name, (_, _, limit) in CELLS.items():
        ours = np.array(seconds[name][1:])
        ratio = float(np.median(ours / bare))
        within &= limit is None or ratio <= limit
        table.add_row(
            name, step.milliseconds(ours), f"{ratio:.2f}", f"{limit:.2f}" if limit else "none"
        )
    table.caption = (
        f"median (fastest) of {FLAGS.rounds} rounds of {FLAGS.steps} iterations, 2NN, "
        f"minibatches of {FLAGS.batch_size}\n{step.machine()}"
    )
    Console().print(table)
    return 0 if within else 1


if __name__ == "__main__":
    app.run(main)
