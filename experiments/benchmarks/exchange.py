"""What one neighbour-averaging step costs on MPI, against the same step written by hand.

    python -m experiments.benchmarks.exchange

Run time about 40 s on two idle cores. Expected: with 2 ranks a ratio of at most 1.25 for cb_full at
85,002 parameters (about a 2NN on 64 features) and at 1,000,000; the other rows are reported without
a limit. Leaves with exit code 1 when the limit is missed.

The step: w̃_j = w_j - η g_j is sent to the neighbours, theirs are received, the mixing weights are
applied. By hand it is mpi4py's Isend and Irecv on preallocated buffers, Waitall and in-place numpy.
On our side it is the coroutine of the algorithm itself on `MpiCluster`, with a gradient that is
there already: the time from the end of one computation to the beginning of the next, as the trace
has it. `loop` is the same with the computation, that is a round trip through the compute thread.
The two take turns, block after block, and a ratio is the median over the pairs of blocks.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from absl import app, flags
from rich.console import Console
from rich.table import Table

from cbdybw.algorithms.consensus import cb_full
from cbdybw.algorithms.dybw import cb_dybw
from cbdybw.algorithms.plan import Plan, State
from cbdybw.clusters.launch import mpirun, placement
from cbdybw.clusters.trace import Span, Trace, decode

FLAGS = flags.FLAGS
flags.DEFINE_integer("blocks", 30, "pairs of blocks that take turns", lower_bound=1)
flags.DEFINE_integer("steps", 50, "steps in a block", lower_bound=2)
flags.DEFINE_string("cell", None, "one row: ALGORITHM,RANKS,PARAMETERS (how the ranks are called)")

LIMIT = 1.25
ALGORITHMS = {"cb_full": cb_full, "cb_dybw": cb_dybw}
CELLS = [
    *((algorithm, ranks, dim) for ranks in (2, 4) for algorithm in ALGORITHMS
      for dim in (85_002, 1_000_000))
]  # fmt: skip
ETA = np.float32(0.1)


class Free:
    """A problem whose gradient costs nothing."""

    def __init__(self, dim: int):
        self.dim = dim
        self._gradient = np.full(dim, 1e-3, np.float32)

    def initial(self, rng: np.random.Generator) -> np.ndarray:
        return np.zeros(self.dim, np.float32)

    def batch(self, rank: int, index: int) -> None:
        return None

    def gradient(self, w: np.ndarray, batch: None) -> np.ndarray:
        return self._gradient


class Deaf:
    def record(self, rank: int, time: float, event: str, fields: dict[str, Any]) -> None:
        pass


def ring(ranks: int) -> list[tuple[int, ...]]:
    return [tuple(sorted({(j - 1) % ranks, (j + 1) % ranks})) for j in range(ranks)]


def by_hand(dim: int) -> Callable[[int], float]:
    """`block(steps)`: seconds a step takes without this package."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD.Dup()
    neighbours = ring(comm.size)[comm.rank]
    weight = np.float32(1 / (len(neighbours) + 1))
    g, w, local = np.full(dim, 1e-3, np.float32), *np.zeros((2, dim), np.float32)
    others = [np.empty(dim, np.float32) for _ in neighbours]

    def step() -> None:
        requests = [comm.Irecv(other, i, 0) for i, other in zip(neighbours, others, strict=True)]
        np.multiply(g, -ETA, out=local)
        np.add(local, w, out=local)
        requests += [comm.Isend(local, i, 0) for i in neighbours]
        MPI.Request.Waitall(requests)
        np.multiply(local, weight, out=w)
        for other in others:
            np.multiply(other, weight, out=other)
            np.add(w, other, out=w)

    def block(steps: int) -> float:
        comm.Barrier()
        start = time.perf_counter()
        for _ in range(steps):
            step()
        return (time.perf_counter() - start) / steps

    return block


def by_algorithm(algorithm: str, ranks: int, dim: int) -> Callable[[int], tuple[float, float]]:
    """`block(steps)`: seconds a step takes, without and with its computation."""
    from cbdybw.clusters.mpi import MpiCluster

    neighbours = ring(ranks)
    cluster = MpiCluster(
        delay=lambda rank, index: 0.0, dim=dim, neighbours=neighbours, seed=0, trace=Trace(),
        recorder=Deaf(),
    )  # fmt: skip
    problem = Free(dim)
    connecting = [(j, j + 1) for j in range(ranks - 1)]

    def block(steps: int) -> tuple[float, float]:
        plan = Plan(
            neighbours, connecting, ranks // 2, lambda k: ETA, steps + 1, barrier="neighbours"
        )
        before = len(cluster.trace.spans)

        async def main(worker) -> State:
            state = State(0, problem.initial(worker.rng("init", 0)))
            return await ALGORITHMS[algorithm](worker, problem, plan, state)

        cluster.run(main)
        spans = cluster.trace.spans[before:]
        computing = spans[decode(spans["code"])[1] == Span.COMPUTE]
        step = (computing["start"][1:] - computing["end"][:-1]).mean()
        return float(step), float(np.diff(computing["start"]).mean())

    return block


def measure(algorithm: str, ranks: int, dim: int) -> None:
    """One row, by one rank of it: the root prints it as JSON."""
    theirs, ours = by_hand(dim), by_algorithm(algorithm, ranks, dim)
    rows = []
    for _ in range(FLAGS.blocks + 1):  # the first pair warms up
        bare = theirs(FLAGS.steps)
        rows.append((bare, *ours(FLAGS.steps)))
    rows = np.array(rows[1:])
    bare, step, loop = np.median(rows, axis=0).tolist()
    ratio = float(np.median(rows[:, 1] / rows[:, 0]))
    loop_ratio = float(np.median(rows[:, 2] / rows[:, 0]))
    if placement()[0] == 0:
        print(json.dumps({"by_hand": bare, "step": step, "ratio": ratio, "loop": loop,
                          "loop_ratio": loop_ratio}))  # fmt: skip


def start(algorithm: str, ranks: int, dim: int) -> dict[str, float]:
    """One row, measured by ranks of its own."""
    command = [sys.executable, "-m", "experiments.benchmarks.exchange",
               f"--cell={algorithm},{ranks},{dim}", f"--blocks={FLAGS.blocks}",
               f"--steps={FLAGS.steps}"]  # fmt: skip
    argv, env = mpirun(ranks, command)
    run = subprocess.run(argv, env=env, stdout=subprocess.PIPE, text=True, check=True, timeout=300)
    return json.loads(run.stdout)


def main(_: list[str]) -> int:
    if FLAGS.cell:
        algorithm, ranks, dim = FLAGS.cell.split(",")
        measure(algorithm, int(ranks), int(dim))
        return 0
    table = Table(title=f"one neighbour-averaging step on a ring, {ETA=:g}, microseconds")
    for column in ("algorithm", "ranks", "parameters", "by hand", "step", "ratio", "limit", "loop",
                   "ratio"):  # fmt: skip
        table.add_column(column, justify="right")
    missed = False
    for algorithm, ranks, dim in CELLS:
        row = start(algorithm, ranks, dim)
        limited = algorithm == "cb_full" and ranks == 2
        missed |= limited and row["ratio"] > LIMIT
        table.add_row(
            algorithm, str(ranks), f"{dim:,}", f"{1e6 * row['by_hand']:.0f}",
            f"{1e6 * row['step']:.0f}", f"{row['ratio']:.2f}", f"{LIMIT}" if limited else "",
            f"{1e6 * row['loop']:.0f}", f"{row['loop_ratio']:.2f}",
        )  # fmt: skip
    Console(width=100).print(table)
    return int(missed)


if __name__ == "__main__":
    app.run(main)
