"""Runs of experiments.train for the tests: in this process, in one of its own, on MPI ranks."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

from cbdybw.algorithms import ALGORITHMS
from cbdybw.clusters.launch import mpirun
from cbdybw.storage.run_directory import RunDirectory
from experiments import train
from experiments.settings import Settings

ROOT = Path(__file__).parents[1]
COMMAND = (sys.executable, "-m", "experiments.train")
NOT_REPEATABLE = ("wall_seconds", "run_dir")


def run(**flags: Any) -> dict[str, Any]:
    """A run in this process: its result."""
    return train.run(Settings(**flags), log=lambda line: None)


def arguments(flags: dict[str, Any]) -> list[str]:
    return [f"--{name}={value}" for name, value in flags.items()]


def binary(*argv: str, cwd: Path, **flags: Any) -> subprocess.CompletedProcess:
    """A run in a process of its own, begun in the folder `cwd`."""
    return _finished([*COMMAND, *argv, *arguments(flags)], {}, cwd)


def on_ranks(ranks: int, *argv: str, cwd: Path, **flags: Any) -> subprocess.CompletedProcess:
    """A run on MPI ranks, begun in the folder `cwd`."""
    command = [*COMMAND, "--cluster=mpi", f"--workers={ranks}", *argv, *arguments(flags)]
    return _finished(*mpirun(ranks, command), cwd)


def _finished(command: list[str], environ: dict[str, str], cwd: Path):
    environ = os.environ | environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(
        command, cwd=cwd, env=environ, capture_output=True, text=True, timeout=120
    )


def result(process: subprocess.CompletedProcess) -> dict[str, Any]:
    """The JSON object in the last line on stdout."""
    assert process.stdout, process.stderr
    return json.loads(process.stdout.splitlines()[-1])


def outcome(folder: Path) -> dict[str, Any]:
    """All that a run leaves behind and that must be the same when it is done again."""
    directory = RunDirectory(folder)
    facts = {k: v for k, v in directory.manifest()["result"].items() if k not in NOT_REPEATABLE}
    arrays = {name: array.tolist() for name, array in directory.read_result().items()}
    return facts | arrays | {"metrics": directory.metrics()}


def some_flags(seed: int) -> dict[str, Any]:
    """Flags of a small random run on the virtual cluster, with checkpoints."""
    draw = random.Random(seed)
    algorithm = draw.choice(["cb_dybw", *(name for name in ALGORITHMS if name != "scar")])
    row = ALGORITHMS[algorithm]
    policy = draw.choice(row.policies)
    by_the_clock = algorithm in ("adsp", "adsp_plus", "adsp_plus_plus", "cb_adsp")
    own_steps = by_the_clock or algorithm in ("adacomm", "fixed_adacomm")
    mixes = row.family == "consensus" and algorithm != "cb_adsp"
    timer = draw.choice(["due", "restart"])
    tunes = algorithm in ("bsp", "fixed_adacomm") and draw.random() < 0.5
    return {
        "workload": "quadratic:dim=3",
        "algorithm": algorithm,
        "barrier": draw.choice(["global", "neighbours"]),
        "edge_rule": draw.choice(["one", "all"]),
        "clock": "paper" if policy == "paper" else "event",
        "straggler_policy": "carry" if policy == "paper" else policy,
        "combine": draw.choice(["atc", "cta"]) if mixes else "atc",
        "local_steps": 1 if own_steps or tunes else draw.choice([1, 1, 3]),
        "backup_workers": draw.choice([0, 1]),
        "staleness": draw.choice([0, 2]),
        "servers": 1 if row.searches else draw.choice([1, 3]),
        "tau": draw.choice([1, 4]),
        "commit_rate": draw.choice([1, 3] if algorithm == "cb_adsp" else [0, 2]),
        "commit_timer": timer,
        "check_period": draw.choice([2.0, 6.0]),
        "probe_window": 12.0 if timer == "restart" else draw.choice([2.0, 4.0]),
        "search_epoch": 20.0,
        "time_factor": draw.choice([1.0, 0.5]),
        "reward_points": draw.choice([3, 5]),
        "global_eta": draw.choice([0.0, 0.3]),
        "server_momentum": draw.choice([0.0, 0.5]),
        "batch_tune": tunes,
        "workers": draw.randint(2, 7),
        "graph": draw.choice(["ring", "path", "star", "complete", "erdos_renyi:p=0.9"]),
        "delay": draw.choice(
            [
                "constant:mean=1" if by_the_clock else "none",
                "constant:mean=1",
                "exponential:mean=1",
                "pareto:scale=1,alpha=1.5",
                "persistent:ranks=1,slowdown=5",
                "random_straggler:slowdown=4,jitter=0.1",
            ]
        ),
        "network": draw.choice(
            [
                "",
                "latency=0.1",
                "bandwidth=100",
                "jitter=0.2",
                "latency=0.01,bandwidth=1000,jitter=0.1",
            ]
        ),
        "iterations": draw.randint(8, 30),
        "max_time": draw.choice([float("inf"), float("inf"), 10.0]),
        "eval_every": draw.choice([0, 1, 4]),
        "eval_seconds": draw.choice([0.0, 0.7, 3.0]),
        "checkpoint_every": draw.randint(1, 7),
        "seed": seed,
    }
