"""How many worker-steps a second the virtual cluster simulates, against SimPy and a bare loop.

    python -m experiments.benchmarks.events

Run time about 60 s. Expected: cb_full at least as fast as the same loop in SimPy 4, at N = 100 and
N = 10,000; 100 iterations of cb_dybw with 10,000 workers in under 300 s and 4 GB. Leaves with exit
code 1 when a limit is missed.

The loop: workers on a ring compute for Exp(1) seconds, tell their neighbours, and go on when both
have told them. Ours is the coroutine `cb_full`, neighbour barrier, without learning, with its
trace and recorder. In SimPy a worker is a process, computing a timeout and a link a Store. The bare
loop counts on a heap and knows neither workers nor messages: the ceiling. All three use the same
delay law and must end at the same virtual time. They take turns; the ratio is the median over the
turns, in CPU seconds, which other programs on the machine disturb least.
"""

from __future__ import annotations

import gc
import heapq
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import networkx as nx
import numpy as np
import simpy
from absl import app, flags
from rich.console import Console
from rich.table import Table

from cbdybw import topology
from cbdybw.algorithms.consensus import cb_full
from cbdybw.algorithms.dybw import cb_dybw
from cbdybw.algorithms.plan import Plan, State
from cbdybw.clusters import delays
from cbdybw.clusters.network import Network
from cbdybw.clusters.trace import Trace
from cbdybw.clusters.virtual import VirtualCluster
from cbdybw.problem import Timing
from cbdybw.recorder import Recorder
from experiments import environment

FLAGS = flags.FLAGS
flags.DEFINE_integer("turns", 7, "how often each of the loops runs", lower_bound=1)
flags.DEFINE_bool("dybw", False, "only the run of cb_dybw, as JSON (how its process is called)")

SIZES = {100: 300, 10_000: 10}  # workers → iterations
LARGE, ITERATIONS = 10_000, 100
SECONDS, GIGABYTES = 300.0, 4.0


class Loop(NamedTuple):
    """What a ring of workers is simulated with."""

    neighbours: Sequence[tuple[int, ...]]
    law: delays.DelayLaw
    iterations: int


def ring(workers: int, iterations: int) -> Loop:
    """A ring, times Exp(1)."""
    graph = topology.build("ring", workers, 0)
    law = delays.parse("exponential:mean=1", workers, 0)
    return Loop(topology.neighbours(graph), law, iterations)


def ours(loop: Loop, algorithm=cb_full, connecting: Sequence[tuple[int, int]] = ()) -> float:
    """The virtual time at which the last worker ends."""
    recorder = Recorder(loop.iterations, holders=len(loop.neighbours))
    plan = Plan(
        loop.neighbours, connecting, 0, lambda k: 0.1, loop.iterations, barrier="neighbours"
    )
    cluster = VirtualCluster(
        len(loop.neighbours),
        delay=loop.law,
        network=Network(),
        seed=0,
        trace=Trace(),
        recorder=recorder,
    )
    problem = Timing()
    first = problem.initial(np.random.default_rng(0))
    cluster.run(lambda worker: algorithm(worker, problem, plan, State(0, first)))
    return float(recorder.last_close[-1])


def in_simpy(loop: Loop) -> float:
    """The same, as SimPy's documentation would write it."""
    env = simpy.Environment()
    links = {(i, j): simpy.Store(env) for i, near in enumerate(loop.neighbours) for j in near}

    def worker(j: int):
        for k in range(loop.iterations):
            yield env.timeout(loop.law(j, k))
            for i in loop.neighbours[j]:
                links[j, i].put(k)
            for i in loop.neighbours[j]:
                yield links[i, j].get()

    for j in range(len(loop.neighbours)):
        env.process(worker(j))
    env.run()
    return env.now


def bare(loop: Loop) -> float:
    """The same with nothing but a heap and counters."""
    neighbours, law, iterations = loop
    begun, done = [1] * len(neighbours), [0] * len(neighbours)
    heap = [(law(j, 0), j) for j in range(len(neighbours))]
    heapq.heapify(heap)
    now = 0.0
    while heap:
        now, j = heapq.heappop(heap)
        done[j] += 1
        for i in (j, *neighbours[j]):
            k = done[i]
            if begun[i] == k < iterations and all(done[m] >= k for m in neighbours[i]):
                begun[i] += 1
                heapq.heappush(heap, (now + law(i, k), i))
    return now


LOOPS: dict[str, Callable[[Loop], float]] = {"ours": ours, "SimPy": in_simpy, "bare heap": bare}


def rates(workers: int, iterations: int) -> dict[str, np.ndarray]:
    """Worker-steps per CPU second of each loop, (turns,)."""
    found: dict[str, list[float]] = {name: [] for name in LOOPS}
    for _ in range(FLAGS.turns):
        ends = {}
        for name, simulate in LOOPS.items():
            loop = ring(workers, iterations)
            gc.collect()
            start = time.process_time()
            ends[name] = simulate(loop)
            found[name].append(workers * iterations / (time.process_time() - start))
        if len(set(ends.values())) > 1:
            raise AssertionError(f"the loops do not simulate the same: {ends}")
    return {name: np.array(values) for name, values in found.items()}


def run_dybw() -> None:
    """cb_dybw at full size in a process of its own; prints seconds and the most memory it had."""
    loop = ring(LARGE, ITERATIONS)
    connecting = topology.connecting_edges(nx.cycle_graph(LARGE)).edges
    start = time.perf_counter()
    end = ours(loop, cb_dybw, connecting)
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"seconds": seconds, "gigabytes": peak / 1e9, "mean": end / ITERATIONS}))


def main(_: list[str]) -> int:
    if FLAGS.dybw:
        run_dybw()
        return 0
    console = Console()
    steps = Table(title="worker-steps per CPU second, cb_full on a ring, neighbour barrier")
    for column in ("workers", "iterations", *LOOPS, "ours / SimPy", "limit"):
        steps.add_column(column, justify="right")
    missed = False
    for workers, iterations in SIZES.items():
        found = rates(workers, iterations)
        ratio = float(np.median(found["ours"] / found["SimPy"]))
        missed |= ratio < 1
        medians = [f"{np.median(values):,.0f}" for values in found.values()]
        steps.add_row(f"{workers:,}", f"{iterations}", *medians, f"{ratio:.2f}", "≥ 1")
    console.print(steps)

    command = [sys.executable, "-m", "experiments.benchmarks.events", "--dybw"]
    large = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    missed |= large["seconds"] > SECONDS or large["gigabytes"] > GIGABYTES
    dybw = Table(title=f"cb_dybw on a ring of {LARGE:,} workers, {ITERATIONS} iterations")
    for column in ("", "measured", "limit"):
        dybw.add_column(column, justify="right")
    dybw.add_row("wall seconds", f"{large['seconds']:.1f}", f"≤ {SECONDS:.0f}")
    dybw.add_row("peak memory, GB", f"{large['gigabytes']:.2f}", f"≤ {GIGABYTES:.0f}")
    dybw.add_row("mean iteration, virtual s", f"{large['mean']:.6f}", "")
    console.print(dybw)
    machine = environment.machine()
    console.print(
        f"{machine['processor']}, {machine['cores']} cores; Python {sys.version.split()[0]}, "
        f"SimPy {simpy.__version__}"
    )
    return int(missed)


if __name__ == "__main__":
    app.run(main)
