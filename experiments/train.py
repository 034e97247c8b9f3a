"""One run: `python -m experiments.train --algorithm=cb_dybw --delay=exponential:mean=0.1 …`

On the virtual cluster as it stands; on MPI the same line under mpirun with --cluster=mpi. The last
line on stdout is one JSON object. Exit codes: 0 finished, 2 unusable input, 3 diverged.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import networkx as nx
import numpy as np
from absl import app

from cbdybw import topology
from cbdybw.algorithms import ALGORITHMS
from cbdybw.algorithms.plan import Plan, State
from cbdybw.clusters import delays, network
from cbdybw.clusters.guard import guard
from cbdybw.clusters.launch import placement
from cbdybw.clusters.root import on_root
from cbdybw.clusters.trace import Trace
from cbdybw.clusters.worker import keyed_rng
from cbdybw.errors import BadInput
from cbdybw.learning import schedules, workloads
from cbdybw.problem import Problem, Timing
from cbdybw.recorder import Recorder
from cbdybw.storage import datasets
from cbdybw.storage.run_directory import RunDirectory
from experiments import environment, evaluation
from experiments.checkpoints import Checkpoints
from experiments.settings import Settings, define_flags, from_flagfile, from_flags, parse_flags

Log = Callable[[str], None]
FREE_TO_CHANGE = ("resume", "iterations", "max_time", "target_loss", "run_dir")
"""Settings that a resumed run may have otherwise than the run it continues."""


def run(settings: Settings, log: Log) -> dict[str, Any] | None:
    """Train as `settings` say; the result on the root, None on other ranks.

    Raises BadInput before anything is written.
    """
    wall = time.perf_counter()
    recorded = settings
    if settings.replay:
        recorded = from_flagfile(RunDirectory(settings.replay).read_flags("--replay"))
        settings = replace(
            recorded, cluster="virtual", replay=settings.replay, run_dir=settings.run_dir,
            checkpoint_every=recorded.checkpoint_every, resume=False,
        )  # fmt: skip
    _check_ranks(settings)
    notice, problem = build_problem(settings, log)
    plan = build_plan(settings, problem)
    session = _Session(settings, problem, plan, notice)
    session.open()
    session.train()
    return session.close(wall)


def build_problem(settings: Settings, log: Log) -> tuple[str | None, Problem]:
    """The learning problem, its data prepared where that is missing; a notice for every table."""
    if not workloads.needs_data(settings.workload):
        return None, workloads.build(settings.workload, None, settings.batch_size, settings.seed)
    from data_prep.prepare import Preparation, prepare

    wanted = Preparation(**{name: getattr(settings, name) for name in Preparation.__annotations__})
    folder = settings.data_dir or _data_folder(settings)
    mpi = settings.cluster == "mpi"
    on_root(lambda: _prepared(wanted, folder) or prepare(wanted, folder, log), mpi)
    data = datasets.load(folder)
    batch_size = settings.batch_size
    if data.manifest["notice"]:
        batch_size = min(batch_size, data.manifest["batch_size"])
    problem = workloads.build(settings.workload, data, batch_size, settings.seed)
    return data.manifest["notice"], problem


def _data_folder(settings: Settings) -> str:
    partition = settings.partition.replace(":", "")
    size = f"w{settings.workers}-b{settings.batch_size}-s{settings.seed}"
    return f"data/{settings.dataset}-pca{settings.pca}-{partition}-{size}"


def _prepared(wanted: Any, folder: str) -> bool:
    """Whether `folder` holds such data; BadInput when it holds other data."""
    try:
        there = datasets.read_manifest(folder)["parameters"]
    except BadInput:
        return False  # `prepare` says what is wrong with it, or makes it
    for name in ("dataset", "pca", "partition", "workers"):
        if there[name] != getattr(wanted, name):
            raise BadInput(
                f"--data_dir={folder}: prepared with --{name}={there[name]}, not "
                f"{getattr(wanted, name)}; give --{name}={there[name]} or another folder"
            )
    return True


def build_plan(settings: Settings, problem: Problem) -> Plan:
    """What the algorithm is told: graph, connecting edges, learning rate, when to stop."""
    graph = topology.build(settings.graph, settings.workers, settings.seed)
    eta = schedules.exponential_decay(
        settings.eta0,
        settings.eta_decay,
        settings.eta_decay_every,
        getattr(problem, "steps_per_epoch", 1),
    )
    return Plan(
        neighbours=topology.neighbours(graph),
        connecting=topology.connecting_edges(graph).edges,
        diameter=nx.diameter(graph) if math.isfinite(settings.max_time) else 0,
        eta=eta,
        iterations=settings.iterations,
        policy=settings.policy,
        edge_rule=settings.edge_rule,
        barrier=settings.barrier,
        max_time=settings.max_time,
        checkpoint_every=settings.checkpoint_every,
    )


def _check_ranks(settings: Settings) -> None:
    started = placement()
    if settings.cluster == "mpi" and (started or (0, 1))[1] != settings.workers:
        ranks = started[1] if started else 1
        raise BadInput(
            f"--workers={settings.workers}: {ranks} MPI rank{'s are' if ranks > 1 else ' is'} "
            f"running; start with mpirun -n {settings.workers} or give --workers={ranks}"
        )
    if settings.cluster == "virtual" and started and started[1] > 1:
        raise BadInput("--cluster=virtual: needs no mpirun; give --cluster=mpi or start it alone")


class _Session:
    """One run from its first file to its last."""

    def __init__(self, settings: Settings, problem: Problem, plan: Plan, notice: str | None):
        self.settings, self.problem, self.plan, self.notice = settings, problem, plan, notice
        self.learns = not isinstance(problem, Timing)
        self.mpi = settings.cluster == "mpi"
        self.directory = RunDirectory(settings.run_dir) if settings.run_dir else None
        self.trace = Trace()
        self.process = placement()[0] if self.mpi else 0
        self.ranks = (self.process,) if self.mpi else range(settings.workers)
        self.recorder = Recorder(
            settings.iterations,
            settings.eval_every if self.learns else 0,
            settings.workers,
            complete=None if self.mpi else self._evaluate,
            keep_edges=self.directory is not None,
        )
        self.rows: list[dict[str, Any]] = []

    def open(self) -> None:
        """Build the cluster; make the run folder, or go back to its last checkpoint."""
        settings = self.settings
        if self.directory is not None:
            on_root(self._claim, self.mpi)
            self.saver = Checkpoints(
                self.directory, self.process, self.ranks, self.recorder, self.trace
            )
        self.cluster = self._build_cluster()
        start = keyed_rng(settings.seed, "initial", 0, 0)
        w = self.problem.initial(start)  # [choice] all workers start from the same estimate
        self.states = {rank: State(0, w) for rank in self.ranks}
        self.start = 0.0
        if settings.resume:
            self._restore()
        elif self.learns and not self.mpi:
            self._evaluate(0, dict.fromkeys(self.ranks, w))
        elif self.learns:
            self.recorder.copy(0, self.process, w)

    def _claim(self) -> None:
        """On the root: a new folder, or one that can be resumed."""
        directory, settings = self.directory, self.settings
        if not settings.resume:
            about = environment.manifest() | {"status": "running", "notice": self.notice}
            directory.create(settings.flagfile(), about)
            return
        before = from_flagfile(directory.read_flags("--resume: --run_dir"))
        if others := settings.differing(before, FREE_TO_CHANGE):
            raise BadInput(
                f"--resume: {directory.path} was begun with other flags: {', '.join(others)}; "
                f"use --flagfile={directory.path}/flags.txt --resume"
            )
        if (cut := directory.last_checkpoint()) and cut["k"] >= settings.iterations:
            raise BadInput(f"--iterations={settings.iterations}: {cut['k']} are done already")
        directory.keep_metrics(cut["k"] if cut else -1)
        directory.update_manifest(status="running", resumed_from=cut["k"] if cut else 0)

    def _build_cluster(self) -> Any:
        settings, seed = self.settings, self.settings.seed
        common = {"seed": seed, "trace": self.trace, "recorder": self.recorder}
        if self.directory is not None:
            common["saver"] = self.saver
        if settings.replay:
            from cbdybw.clusters.replay import ReplayCluster

            return ReplayCluster(settings.workers, settings.replay, **common)
        if self.mpi:
            from cbdybw.clusters.mpi import MpiCluster

            return MpiCluster(
                delay=delays.parse(settings.delay, settings.workers, seed),
                dim=self.problem.dim,
                neighbours=self.plan.neighbours,
                **common,
            )
        from cbdybw.clusters.virtual import VirtualCluster

        return VirtualCluster(
            settings.workers,
            delay=delays.parse(settings.delay, settings.workers, seed),
            network=network.parse(settings.network, settings.workers, seed),
            **common,
        )

    def _restore(self) -> None:
        """Go back to the last checkpoint; without one, start again."""
        cut = self.directory.last_checkpoint()
        if cut is not None:
            self.states = self.saver.restore(cut["k"])
            self.start = cut["clock"]
        if self.process == 0:
            self.rows = self.directory.metrics()

    def train(self) -> None:
        """The loop itself, after a gradient that is thrown away (TensorFlow compiles it)."""
        algorithm = ALGORITHMS[self.settings.algorithm].run
        if self.learns:
            rank = self.ranks[0]
            self.problem.gradient(self.states[rank].w, self.problem.batch(rank, 0))
        self.results = self.cluster.run(
            lambda worker: algorithm(worker, self.problem, self.plan, self.states[worker.rank]),
            self.start,
        )

    def _evaluate(self, done: int, estimates: dict[int, np.ndarray]) -> None:
        """On a cluster of one process: as soon as all workers have done `done` iterations."""
        own = evaluation.workers(self.problem, estimates)
        self._add(evaluation.row(self.problem, self.recorder, done, estimates, own))

    def _add(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        if self.directory is not None and self.process == 0:
            self.directory.add_metrics(row)

    def close(self, wall: float) -> dict[str, Any] | None:
        """Evaluate what has not been, write what is left, and sum up."""
        final = {rank: state.w for rank, state in self.results.items()}
        parts = self.cluster.gather((self.recorder, self._own_evaluations(final), self.results))
        digests = self.cluster.gather(self.trace.sha256(final[rank] for rank in sorted(final)))
        if self.directory is not None:
            last = self.settings.iterations
            self.trace.flush(self.directory.trace, self.process, last)
        self.cluster.gather(None)  # every process has written its trace
        if self.process != 0:
            return None
        self.recorder.merge([recorder for recorder, _, _ in parts[1:]])
        states = {rank: state for _, _, results in parts for rank, state in results.items()}
        if self.learns:
            self._evaluate_rest(parts, {rank: state.w for rank, state in states.items()})
        result = self._result(states, digests, wall)
        if self.directory is not None:
            self._write(states, result)
        return result

    def _own_evaluations(self, final: dict[int, np.ndarray]) -> dict[int, dict[int, Any]]:
        """On MPI each rank evaluates its own copies, all at the same time."""
        if not (self.mpi and self.learns):
            return {}
        copies = self.recorder.copies | {-1: final}
        return {done: evaluation.workers(self.problem, kept) for done, kept in copies.items()}

    def _evaluate_rest(self, parts: list[Any], final: dict[int, np.ndarray]) -> None:
        own: dict[int, dict[int, Any]] = {}
        for _, evaluations, _ in parts:
            for done, values in evaluations.items():
                own.setdefault(done, {}).update(values)
        for done in sorted(self.recorder.copies):
            estimates = self.recorder.copies[done]
            if len(estimates) == self.settings.workers:
                row = evaluation.row(self.problem, self.recorder, done, estimates, own[done])
                self._add(row)
        done = self.recorder.iterations
        if not self.rows or self.rows[-1]["iteration"] != done:
            last = own.get(-1) or evaluation.workers(self.problem, final)
            self._add(evaluation.row(self.problem, self.recorder, done, final, last))

    def _result(self, states: dict[int, State], digests: list[str], wall: float) -> dict[str, Any]:
        settings, recorder, rows = self.settings, self.recorder, self.rows
        iterations = recorder.iterations
        last = rows[-1] if rows else {}
        mean_seconds = recorder.mean_iteration_seconds()
        degrees = sum(map(len, self.plan.neighbours))
        return {
            "algorithm": settings.algorithm,
            "cluster": settings.cluster,
            "workers": settings.workers,
            "seed": settings.seed,
            "graph": settings.graph,
            "delay": settings.delay,
            "straggler_policy": settings.policy,
            "clock": settings.clock,
            "barrier": settings.barrier,
            "iterations": iterations,
            "clock_seconds": mean_seconds * iterations,
            "wall_seconds": time.perf_counter() - wall,
            "mean_iteration_seconds": mean_seconds,
            "train_loss": last.get("train_loss"),
            "test_error": last.get("test_error"),
            "consensus_distance": last.get("consensus_distance"),
            "gradients_used": int(recorder.used.sum()),
            "mean_backup_workers": recorder.mean_backup_workers(degrees),
            "time_to_target": evaluation.time_to_target(rows, settings.target_loss),
            "trace_sha256": environment.combined(digests),
            "parameters_sha256": environment.sha256(states[rank].w for rank in sorted(states)),
            "status": "diverged" if evaluation.diverged(rows) else "finished",
            "run_dir": settings.run_dir or None,
            "notice": self.notice,
        }

    def _write(self, states: dict[int, State], result: dict[str, Any]) -> None:
        ranks = sorted(states)
        recorder, directory = self.recorder, self.directory
        n = recorder.iterations
        arrays = {
            "edges": recorder.edges[np.lexsort(recorder.edges.T[::-1])],
            "visits": states[0].visits,
            "connecting": np.array(self.plan.connecting, np.int64).reshape(-1, 2),
            "last_close": recorder.last_close[:n],
            "finishers": recorder.finishers[:n],
            "active": recorder.active[:n],
        }
        if self.learns:
            arrays["estimates"] = np.array([states[rank].w for rank in ranks])
        directory.write_result(arrays)
        directory.update_manifest(status=result["status"], result=result)


def main(argv: list[str]) -> int:
    """The binary."""
    del argv
    with guard():
        settings = from_flags()
        result = run(settings, log=lambda line: print(line, file=sys.stderr))
        if result is None:
            return 0
        print(json.dumps(result, allow_nan=False), flush=True)
        return 3 if result["status"] == "diverged" else 0


def _parse(argv: list[str]) -> list[str]:
    with guard():
        return parse_flags(argv)


if __name__ == "__main__":
    define_flags()
    app.run(main, flags_parser=_parse)
