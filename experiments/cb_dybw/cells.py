"""The cells of cb-DyBW's experiments, as one table: `python -m experiments.cb_dybw.cells`

rewrites the flag files in experiments/cb_dybw/cells. Groups: `learning`, `laws`, `speedup`,
`topology`, `mpi` are the experiments, `rates` is the search for learning rates before them.

The paper fixes the batch (1024), the form of the learning rate and the kinds of data and models;
N = 6 and 10, graphs, delays, iterations, targets and everything else here is [choice].
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cbdybw.clusters.guard import guard
from experiments import cell_files
from experiments.cb_dybw import rates
from experiments.cell_files import UNKNOWN, Row
from experiments.settings import Settings

FOLDER = Path(__file__).parent / "cells"

PAIR = ("cb_full", "cb_dybw")
SERVED = ("bsp", "asp", "ssp", "ps_backup", "dbw")
ALGORITHMS = (*PAIR, "cb_static", "dsgd_aau", "ad_psgd", "allreduce", *SERVED)
PARTITIONS = ("iid", "shards:2", "dirichlet:0.5")
COMPONENTS = {"mnist": 50, "cifar10": 100}
TARGETS = {
    ("mnist", "lrm"): (0.35, 0.4),
    ("mnist", "2nn"): (0.1, 0.3),
    ("cifar10", "lrm"): (1.85, 1.85),
    ("cifar10", "2nn"): (1.5, 1.75),
}
"""Training losses to which the time is taken, on iid and on other data: the same for all algorithms
and such that all come there, some way before their ends."""

FAR = 0.4
"""The target where minibatches of 32 make LRM on MNIST end at higher losses."""

DECAY = {"eta_decay": 0.99}  # per epoch


def learning() -> Iterator[Row]:
    """1: loss, error, iteration time and backup workers, for every algorithm and kind of data."""
    for n in (6, 10):
        for dataset, workload in TARGETS:
            for partition in PARTITIONS:
                for algorithm in ALGORITHMS:
                    yield Row(
                        f"{dataset}-{workload}-n{n}-{partition.replace(':', '')}-{algorithm}",
                        _learning_scales(n, dataset, workload, partition, algorithm),
                        _learner(algorithm, dataset, workload, n, partition)
                        | {"target_loss": TARGETS[dataset, workload][partition != "iid"]}
                        | _length(dataset, workload, n, partition),
                        LEARNT[dataset, workload] if partition == "iid" else UNKNOWN,
                    )


LEARNT = {
    ("mnist", "lrm"): "test error near 10 %",
    ("mnist", "2nn"): "test error of 2 to 3 %",
    ("cifar10", "lrm"): "test error near 60 %",
    ("cifar10", "2nn"): "test error near 50 %",
}


def _learning_scales(
    n: int, dataset: str, workload: str, partition: str, algorithm: str
) -> dict[str, int]:
    """All of it at paper; at short what the claims and the comparison of algorithms need."""
    pair, some = algorithm in PAIR, (*PAIR, "allreduce")
    short = 0
    if (n, dataset, workload) == (6, "mnist", "lrm"):
        short = 5 if pair or partition != "dirichlet:0.5" else 0
    elif n == 6 and algorithm in some:
        two_nn_on_mnist = (dataset, workload) == ("mnist", "2nn")
        short = 3 if partition == "iid" or (two_nn_on_mnist and partition == "shards:2") else 0
    elif (dataset, workload) == ("mnist", "lrm") and pair:
        short = 3 if partition != "dirichlet:0.5" else 0
    return ({"short": short} if short else {}) | {"paper": 5}


def _length(dataset: str, workload: str, n: int, partition: str) -> dict[str, Any]:
    if workload == "lrm":
        return {"iterations": 300, "eval_every": 5}
    shows_accuracy = (dataset, n, partition) == ("mnist", 6, "iid")
    return {"iterations": 1000 if shows_accuracy else 400, "eval_every": 20}


LAWS = {
    "exponential": "exponential:mean=1",
    "shifted": "shifted_exponential:base=0.5,mean=0.5",
    "straggler-end": "persistent:ranks=0,slowdown=6,jitter=0.05",
    "straggler-mid": "persistent:ranks={mid},slowdown=6,jitter=0.05",
    "straggler-random": "random_straggler:slowdown=6,jitter=0.05",
    "pareto": "pareto:scale=1,alpha=2",
}
RULES = {
    "cb_full-global": {"algorithm": "cb_full"},
    "cb_full-neighbours": {"algorithm": "cb_full", "barrier": "neighbours"},
    "cb_dybw-carry": {},
    "cb_dybw-drop": {"straggler_policy": "drop"},
    "cb_dybw-late": {"straggler_policy": "late"},
    "cb_dybw-paper": {"clock": "paper"},
}
SHORTER = {
    "exponential": (2.45, 62.3, 62.3, 31.0, 62.3),
    "shifted": (1.725, 56.4, 44.2, 21.8, 44.2),
    "straggler-end": (6.15, 80.0, 66.6, 0.0, 66.6),
    "straggler-mid": (6.15, 60.0, 50.0, 0.0, 50.0),
    "straggler-random": (6.15, 70.3, 76.3, 45.0, 76.3),
    "pareto": (4.43, 57, 59, 23, 59),
}
"""N = 6: cb-Full's mean iteration in seconds; by how many per cent it is shorter under carry, drop,
late and the paper's clock. From a simulation apart from this code; the infinite variance of
Pareto(2) makes its line rough."""


def laws() -> Iterator[Row]:
    """2: delay law × straggler policy × clock; the time of an iteration, and that to a loss."""
    for n in (6, 10):
        for law, delay in LAWS.items():
            for rule, flags in RULES.items():
                common = {
                    "workers": n,
                    "graph": "path",
                    "delay": delay.format(mid=n // 2 - 1),
                    **flags,
                }
                expected = _shorter(law, rule) if n == 6 else UNKNOWN
                yield Row(
                    f"n{n}-{law}-{rule}-timing",
                    {"short": 1, "paper": 1},
                    common | {"workload": "timing", "iterations": 20_000},
                    expected,
                )
                algorithm = flags.get("algorithm", "cb_dybw")
                yield Row(
                    f"n{n}-{law}-{rule}-lrm",
                    {"short": 3, "paper": 5},
                    _learner(algorithm, "mnist", "lrm", n, "iid")
                    | common
                    | {"iterations": 300, "eval_every": 5}
                    | {"target_loss": TARGETS["mnist", "lrm"][0]},
                )


def _shorter(law: str, rule: str) -> str:
    full, *shorter = SHORTER[law]
    if rule == "cb_full-global":
        return f"an iteration takes {full} s"
    if rule == "cb_full-neighbours":
        return "shorter iterations than with the global barrier"
    policy = rule.removeprefix("cb_dybw-")
    percent = dict(zip(("carry", "drop", "late", "paper"), shorter, strict=True))[policy]
    return f"an iteration is {percent} % shorter than cb-Full's {full} s"


GRADIENTS = {
    "cb_full": {"algorithm": "cb_full"},
    "cb_dybw": {"algorithm": "cb_dybw"},
    "cb_dybw-late": {"algorithm": "cb_dybw", "straggler_policy": "late"},
}
"""With policy carry an iteration uses fewer gradients, the more workers the smaller a share; with
late it uses all."""
SIZES = (1, 2, 4, 8, 16, 32)
LENGTHS = (250, 1000, 4000)  # K of the rate O(1/√(NK) + 1/K)


def speedup() -> Iterator[Row]:
    """3: how iterations and time fall with N, and where that ends.

    The stationary error is ησ²·dim / (Nλ(2-ηλ)) whatever the graph. To a target, η = N·η(1) keeps
    the stationary loss the same for every N, so that iterations fall as 1/N; they stop to fall
    where η has reached its ceiling 1/(2L), or where a ring mixes too slowly for the few that are
    left.
    """
    delay = {"delay": "exponential:mean=0.1"}
    for n in SIZES:
        for name, way in GRADIENTS.items():
            for graph in ("complete", "ring"):
                common = {**way, "workers": n, "graph": graph, "eta_decay": 1.0}
                common |= {"workload": "quadratic", **delay}
                loss = 0.5 * 0.1 * 10 / (n * (2 - 0.1))
                yield Row(
                    f"quadratic-{graph}-n{n}-{name}-stationary",
                    {"short": 5, "paper": 10},
                    common | {"eta0": 0.1, "iterations": 2000, "eval_every": 20},
                    f"loss ½ησ²·dim/(N(2-η)) = {loss:.4g} (exact where all gradients are used)",
                )
                yield Row(
                    f"quadratic-{graph}-n{n}-{name}-target",
                    {"short": 5, "paper": 10},
                    common
                    | {"eta0": min(0.02 * n, 0.5), "iterations": 200 if n < 8 else 60}
                    | {"eval_every": 1, "target_loss": 0.1},
                    "iterations to the target fall as 1/N up to N = 16",
                )
            yield Row(
                f"lrm-n{n}-{name}",
                {"short": 3, "paper": 5},
                _learner(way["algorithm"], "mnist", "lrm", n, "iid")
                | way
                | {"batch_size": 32, "eta0": min(0.05 * n, 1.0), "eta_decay": 1.0}
                | {"iterations": 3200 // min(n, 8), "eval_every": 32 // min(n, 8)}
                | {"target_loss": FAR},
                "iterations to the target fall as 1/N up to N = 16 or so",
            )
            for iterations in LENGTHS:
                yield Row(
                    f"rate-n{n}-k{iterations}-{name}",
                    {"short": 3, "paper": 10},
                    {**way, "workers": n, "workload": "quadratic", **delay}
                    | {"eta0": round(math.sqrt(n / iterations), 6), "eta_decay": 1.0}
                    | {"iterations": iterations, "eval_every": 1},
                    "mean of ‖∇F‖² near 10/√(NK) with η = √(N/K)",
                )


SPARSE = {
    "cb_full": {16: 5, 64: 5, 256: 5},
    "cb_dybw": {16: 25, 64: 50, 256: 200},
    "dsgd_aau": {16: 40, 64: 150, 256: 400},
}
"""Iterations between two evaluations: some twenty in 30 s."""


def topology() -> Iterator[Row]:
    """4: graphs and numbers of workers, up to 256 with learning and 10,000 by the clock alone.

    All learn for the same time, and with a constant η: where iterations are short there are many,
    and a decay that counts them would end the learning.
    """
    algorithms = (*PAIR, "dsgd_aau")
    for n in (16, 64, 256):
        p = round(2 * math.log(n) / n, 3)  # twice the threshold of being connected
        for graph in ("ring", "grid", f"erdos_renyi:p={p}", "random_regular:degree=4", "complete"):
            for algorithm in algorithms:
                all_pairs_of_256 = graph == "complete" and n == 256
                yield Row(
                    f"n{n}-{graph.partition(':')[0]}-{algorithm}",
                    ({} if all_pairs_of_256 else {"short": 2 if n == 16 else 1}) | {"paper": 3},
                    _learner(algorithm, "mnist", "lrm", n, "iid", batch_size=32)
                    | {"graph": graph, "iterations": 20_000, "max_time": 30.0, "eta_decay": 1.0}
                    | {"eval_every": SPARSE[algorithm][n], "target_loss": FAR},
                )
    for graph in ("ring", "random_regular:degree=4"):
        for algorithm in algorithms:
            yield Row(
                f"n10000-{graph.partition(':')[0]}-{algorithm}",
                ({"short": 1} if algorithm != "cb_full" else {}) | {"paper": 1},
                {"algorithm": algorithm, "workload": "timing", "workers": 10_000, "graph": graph}
                | {"delay": "exponential:mean=0.1", "iterations": 100},
                "an iteration of cb_full takes 0.1·H(10000) = 0.979 s"
                if algorithm == "cb_full"
                else UNKNOWN,
            )


def mpi() -> Iterator[Row]:
    """5: the same cells on ranks, by the wall clock, and as the virtual cluster predicts them."""
    short = (*PAIR, "cb_static", "dsgd_aau", "allreduce", "bsp", "ad_psgd")
    for algorithm in ALGORITHMS:
        for cluster in ("mpi", "virtual"):
            yield Row(
                f"{algorithm}-{cluster}",
                ({"short": 1} if algorithm in short else {}) | {"paper": 3},
                _learner(algorithm, "mnist", "lrm", 6, "iid")
                | {"cluster": cluster, "delay": "exponential:mean=0.05"}
                | {"iterations": 150, "eval_every": 30},
                "the same iteration time on both clusters, but for what a rank needs beside delays",
            )


def search() -> Iterator[Row]:
    """0: the same learning rates and the same budget for every algorithm, on seeds of their own."""
    for workload, etas in rates.GRID.items():
        dataset, model, *rest = workload.split("-")
        small = "b32" in rest
        for algorithm in (*PAIR, "dsgd_aau") if small else ALGORITHMS:
            for eta0 in etas:
                partition = "shards:2" if "shards2" in rest else "iid"
                batch = {"batch_size": 32} if small else {}
                yield Row(
                    f"{workload}-{algorithm}-{eta0:g}",
                    {"rates": rates.SEEDS},
                    _learner(algorithm, dataset, model, 16 if small else 6, partition, **batch)
                    | {"eta0": eta0, "iterations": 300 if model == "lrm" else 200}
                    | {"eval_every": 100},
                )


GROUPS = {
    "learning": learning,
    "laws": laws,
    "speedup": speedup,
    "topology": topology,
    "mpi": mpi,
    "rates": search,
}


def smoke() -> Iterator[tuple[str, Row]]:
    """A tiny run or two of each group, on the digits that scikit-learn brings along."""
    tiny = {"dataset": "digits", "batch_size": 64, "iterations": 20, "eval_every": 5, **DECAY}
    tiny |= {"delay": "exponential:mean=0.1", "eta0": 0.3, "target_loss": 2.0}
    for algorithm in PAIR:
        flags = {"algorithm": algorithm} | tiny
        timing = flags | {"workload": "timing", "iterations": 500, "graph": "path"}
        quadratic = flags | {"workload": "quadratic", "iterations": 100, "eta_decay": 1.0}
        yield "learning", Row(f"smoke-{algorithm}", {"smoke": 2}, flags)
        yield "laws", Row(f"smoke-{algorithm}-timing", {"smoke": 1}, timing)
        yield "laws", Row(f"smoke-{algorithm}-lrm", {"smoke": 1}, flags | {"graph": "path"})
        for n in (1, 4):
            sized = quadratic | {"workers": n, "target_loss": 1.0}
            yield "speedup", Row(f"smoke-n{n}-{algorithm}", {"smoke": 1}, sized)
        many = {"workers": 16, "batch_size": 32, "graph": "grid"}
        yield "topology", Row(f"smoke-{algorithm}", {"smoke": 1}, flags | many)
        for cluster in ("mpi", "virtual"):
            two = flags | {"workers": 2, "cluster": cluster}
            yield "mpi", Row(f"smoke-{algorithm}-{cluster}", {"smoke": 1}, two)


def _learner(
    algorithm: str, dataset: str, workload: str, n: int, partition: str, **more: Any
) -> dict[str, Any]:
    """What all cells that learn from data have in common."""
    flags = {
        "algorithm": algorithm,
        "workload": workload,
        "dataset": dataset,
        "pca": COMPONENTS[dataset],
        "partition": partition,
        "workers": n,
        "delay": "exponential:mean=0.1",
        "eta0": rates.chosen(algorithm, dataset, workload, partition, more.get("batch_size", 1024)),
        **DECAY,
        **more,
    }
    if algorithm in ("ps_backup", "dbw"):  # their papers have no use for late gradients
        flags |= {"straggler_policy": "drop"}
    return flags | ({"backup_workers": n // 3} if algorithm == "ps_backup" else {})


def files() -> dict[str, str]:
    """GROUP/NAME.flags → content, of all cells."""
    rows = [(group, row) for group, make in GROUPS.items() for row in make()]
    return cell_files.texts([*rows, *smoke()], _seconds)


STEP = {"lrm": 2e-7, "2nn": 2.8e-6}  # seconds a sample, in large batches
EVALUATION = {"lrm": 3e-3, "2nn": 25e-3}  # seconds a model


def _seconds(s: Settings) -> float:
    """How long a run takes on one core of the machine of WORKSPACE_NOTES.md, roughly."""
    workers, iterations = s.workers, s.iterations
    degree = workers if s.graph == "complete" else 4
    protocol = workers * iterations * (4e-6 + 2e-6 * degree)
    if s.cluster == "mpi":
        return 5 + iterations * float(s.delay.rpartition("=")[2]) * 2.5
    if s.workload not in STEP:
        return 0.1 + protocol
    if s.max_time < math.inf:  # about as many gradients, however they make iterations
        iterations = s.max_time / float(s.delay.rpartition("=")[2])
        protocol = workers * iterations * 1.5e-4
    steps = workers * iterations * (5e-5 + s.batch_size * STEP[s.workload])
    models = 1 if s.algorithm in (*SERVED, "allreduce") else workers + 1
    looks = 1 + iterations // s.eval_every if s.max_time == math.inf else 25
    return 0.3 + protocol + steps + looks * models * EVALUATION[s.workload]


if __name__ == "__main__":
    with guard():
        cell_files.rewrite(FOLDER, files())
