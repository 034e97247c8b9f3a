"""The cells of ADSP's experiments, as one table: `python -m experiments.adsp.cells`

rewrites the flag files in experiments/adsp/cells. Groups: `split` three workers, `momentum` the
commit rate, `race` eighteen workers and all methods, `heterogeneity`, `scale`, `delay`, `variants`
and `graph` what may change, `mpi` real ranks; `rates` is the search for learning rates before them.

The machines, τ = 40, s = 40, batch 128 and the CNN are the authors' [code]; 2NN on MNIST in place
of their larger models, targets, lengths and everything else here is [choice].
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cbdybw.clusters import machines
from experiments import cell_files
from experiments.adsp import rates
from experiments.cell_files import UNKNOWN, Row
from experiments.settings import Settings

HERE = Path(__file__).parent
MACHINES = "experiments/adsp/machines"

METHODS = ("bsp", "ssp", "adacomm", "fixed_adacomm", "adsp")
"""Those of the paper's figures."""
ALL = (*METHODS, "asp")
FAST = ("adsp", "asp", "cb_adsp")
"""These need not run for as long as the others to be at the target; no time to it depends on it."""
LEVELS = (1.45, 2.0, 2.6, 3.2)  # H [code]
H = 3.2
DELAYS = (0, 2, 5, 10)  # seconds that a commit takes longer [code]
COMMIT_RATES = (1, 2, 3, 4, 5, 6, 8, 10)

MNIST = {"workload": "2nn:width=64", "dataset": "mnist", "pca": 50}
CNN = {"workload": "cnn", "dataset": "cifar10", "pca": 0}
RNN = {"workload": "rnn", "dataset": "rail", "pca": 0}
SVM = {"workload": "svm", "dataset": "chiller", "pca": 0, "batch_size": 64}
TARGET = 0.15
"""Held-out loss to which the time is taken, for 2NN on MNIST: the same for all methods."""


USUAL = {"heterogeneity": 0.0, "processes": 1, "jitter": 0.05}


def _cluster(file: str, level: float = 0.0, processes: int = 1, extra: float = 0.0, **more) -> dict:
    """Delays and links as the machines' file says; `extra` seconds on each commit."""
    described = machines.load(HERE / "machines" / f"{file}.toml")
    keys = USUAL | {"heterogeneity": level, "processes": processes} | more
    given = "".join(f",{name}={v:g}" for name, v in keys.items() if v != USUAL[name])
    latency = described.latency + extra / 2  # in each direction [code]
    return {
        "workers": len(described.names) * processes,
        "delay": f"machines:path={MACHINES}/{file}.toml{given}",
        "network": f"latency={latency:g},bandwidth={described.bandwidth:g}",
    }


def _learner(algorithm: str, searched: str, **more: Any) -> dict[str, Any]:
    """What all cells on MNIST have in common."""
    flags = {
        "algorithm": algorithm,
        **MNIST,
        "batch_size": 128,
        "eta0": rates.chosen(searched, algorithm),
        "eta_decay": 1.0,
        "iterations": 200_000,
        "max_time": 600.0 if algorithm in FAST else 1500.0,
        "eval_every": 0,
        "eval_seconds": 2.0,
        "target_loss": TARGET,
        **more,
    }
    if algorithm == "ssp":
        flags["staleness"] = 39  # the code blocks at a lead of 40
    return flags


def split() -> Iterator[Row]:
    """1: three workers; where their time goes."""
    for algorithm in METHODS:
        yield Row(
            f"ratio-{algorithm}-timing",
            {"short": 1, "paper": 1},
            {"algorithm": algorithm, "workload": "timing", "eval_every": 0}
            | {"iterations": 200_000, "max_time": 6000.0, "commit_rate": _rate(algorithm)}
            | {"staleness": 39 if algorithm == "ssp" else 4}
            | _cluster("ratio", jitter=0.0)
            | {"network": ""},
            "steps per second: Σv = 4.67 for ADSP, 3 v_min = 2 for BSP; H = 7/3",
        )
        yield Row(
            f"three-{algorithm}-mnist",
            {"short": 3, "paper": 5},
            _learner(algorithm, "three") | _cluster("three"),
            "waiting: BSP 95.3 %, SSP 90.6 %, ADACOMM 54.3 %, Fixed 56.3 %, ADSP 6.2 % [code]",
        )


def _rate(algorithm: str) -> int:
    """Where nothing is learnt there is nothing to search by."""
    return 4 if algorithm == "adsp" else 0


def momentum() -> Iterator[Row]:
    """2: the commit rate ΔC, and with it the implicit momentum."""
    for rate in COMMIT_RATES:
        yield Row(
            f"rate-{rate}",
            {"short": 3, "paper": 5},
            _learner("adsp", "race", commit_rate=rate) | _cluster("eighteen", H),
        )


def race() -> Iterator[Row]:
    """3: eighteen workers, all methods, the workloads."""
    for algorithm in ALL:
        yield Row(
            f"mnist-{algorithm}",
            {"short": 3, "paper": 5},
            _learner(algorithm, "race") | _cluster("eighteen", H),
            f"held-out loss {TARGET} is reached",
        )
        yield Row(
            f"mnist-same-{algorithm}",
            {"short": 3, "paper": 5},
            _learner(algorithm, "race", eta0=0.1, target_loss=0.25) | _cluster("eighteen", H),
            "the same η' = 0.1 for all, as in the authors' code",
        )
    for name, workload in (("cnn", CNN), ("rnn", RNN), ("svm", SVM)):
        for algorithm in ALL:
            both = name == "cnn" and algorithm in ("adsp", "fixed_adacomm")
            yield Row(
                f"{name}-{algorithm}",
                ({"short": 1} if both else {}) | {"paper": 5},
                _large(algorithm, name, workload) | _cluster("eighteen", H),
                LARGE[name][2],
            )


LARGE = {
    "cnn": (0.1, 1.9, "2,000 steps of all workers in 100 s; the authors go on to a loss of 1.1"),
    "rnn": (0.01, 2.0, UNKNOWN),
    "svm": (
        0.001,
        -2.0,
        "no loss of this dual is below -16; plotted target: -22000 [code]",
    ),
}
"""η' [code], target, expectation."""


def _large(algorithm: str, name: str, workload: dict[str, Any]) -> dict[str, Any]:
    """As on MNIST; the CNN for a short time, with all times of the algorithms a tenth of the
    paper's."""
    eta0, target, _ = LARGE[name]
    flags = _learner(algorithm, name) | workload | {"eta0": eta0, "target_loss": target}
    if name == "cnn":
        waits = algorithm != "adsp" and algorithm != "asp"
        flags |= {"max_time": 320.0 if waits else 110.0, "time_factor": 0.1, "eval_seconds": 5.0}
    return flags


def heterogeneity() -> Iterator[Row]:
    """4: how unequal the workers are."""
    for level in LEVELS:
        for algorithm in METHODS:
            yield Row(
                f"h{level:g}-{algorithm}",
                {"short": 3, "paper": 5},
                _learner(algorithm, "race") | _cluster("eighteen", level),
                "ADSP is 62.4 % faster than Fixed ADACOMM [paper]" if level == H else UNKNOWN,
            )


def scale() -> Iterator[Row]:
    """4: from 18 to 36 workers."""
    for processes in (1, 2):
        for algorithm in METHODS:
            yield Row(
                f"n{18 * processes}-{algorithm}",
                {"short": 3, "paper": 5},
                _learner(algorithm, "race") | _cluster("eighteen", H, processes),
            )


def delay() -> Iterator[Row]:
    """4: commits that take longer."""
    for extra in DELAYS:
        for algorithm in METHODS:
            longer = {"max_time": 3000.0} if extra >= 5 and algorithm not in FAST else {}
            yield Row(
                f"d{extra}-{algorithm}",
                {"short": 3, "paper": 5},
                _learner(algorithm, "race", **longer) | _cluster("eighteen", H, extra=extra),
            )


def variants() -> Iterator[Row]:
    """4: ADSP's variants, timers, batch tuning, imbalanced labels."""
    common = _cluster("eighteen", H)
    kinds = {
        "adsp": (3, {"algorithm": "adsp"}),
        "adsp-restart": (3, {"algorithm": "adsp", "commit_timer": "restart"}),
        "adsp-3points": (3, {"algorithm": "adsp", "reward_points": 3}),
        "adsp_plus": (3, {"algorithm": "adsp_plus", "max_time": 2000.0}),
        "adsp_plus_plus": (0, {"algorithm": "adsp_plus_plus", "max_time": 6000.0}),
        "bsp": (0, {"algorithm": "bsp"}),
        "bsp-tuned": (0, {"algorithm": "bsp", "batch_tune": True}),
        "fixed_adacomm": (0, {"algorithm": "fixed_adacomm"}),
        "fixed_adacomm-tuned": (0, {"algorithm": "fixed_adacomm", "batch_tune": True}),
    }
    for name, (short, flags) in kinds.items():
        scales = ({"short": short} if short else {}) | {"paper": 5}
        yield Row(name, scales, _learner(flags["algorithm"], "race") | common | flags)
    for algorithm in METHODS:
        yield Row(
            f"imbalanced-{algorithm}",
            {"short": 3, "paper": 5},
            _learner(algorithm, "race", partition=IMBALANCED) | common,
        )


IMBALANCED = "thinned:0.9"
"""The authors' code drops 90 % of chosen labels."""

GRAPH = ("cb_full", "cb_dybw", "cb_adsp")


def graph() -> Iterator[Row]:
    """ADSP's commit rate for workers on a graph, beside ADSP and cb-DyBW on the same machines."""
    for algorithm in (*GRAPH, "adsp"):
        yield Row(
            f"ring-{algorithm}",
            {"short": 3, "paper": 5},
            _learner(algorithm, "graph" if algorithm in GRAPH else "race")
            | _cluster("eighteen", H)
            | ({"commit_rate": 10} if algorithm == "cb_adsp" else {}),
        )


def mpi() -> Iterator[Row]:
    """5: a server and three workers on ranks, by the wall clock, and as the virtual cluster
    predicts them: twenty times as fast as the machines of `split`."""
    for algorithm in METHODS:
        for cluster in ("mpi", "virtual"):
            flags = _learner(algorithm, "three", max_time=20.0, time_factor=0.05, eval_seconds=0.5)
            ratio = _cluster("ratio")
            delay = {"delay": ratio["delay"] + ",scale=0.05", "workers": ratio["workers"]}
            yield Row(
                f"{algorithm}-{cluster}",
                {"short": 1, "paper": 3},
                flags | delay | {"cluster": cluster, "iterations": 5000},
                "the same steps and commits on both clusters, but for what a rank needs itself",
            )


def search() -> Iterator[Row]:
    """0: the same learning rates and the same time for every algorithm, on seeds of their own."""
    searched = (
        ("race", ALL, _cluster("eighteen", H)),
        ("three", METHODS, _cluster("three")),
        ("graph", GRAPH, _cluster("eighteen", H)),
    )
    for workload, algorithms, cluster in searched:
        for algorithm in algorithms:
            for eta0 in rates.GRID:
                flags = _learner(algorithm, workload, eta0=eta0, max_time=600.0, eval_seconds=20.0)
                more = {"commit_rate": 10} if algorithm == "cb_adsp" else {}
                yield Row(
                    f"{workload}-{algorithm}-{eta0:g}",
                    {"rates": rates.SEEDS},
                    flags | cluster | more,
                )


GROUPS = {
    "split": split,
    "momentum": momentum,
    "race": race,
    "heterogeneity": heterogeneity,
    "scale": scale,
    "delay": delay,
    "variants": variants,
    "graph": graph,
    "mpi": mpi,
    "rates": search,
}


def smoke() -> Iterator[tuple[str, Row]]:
    """A tiny run or two of each group, on the digits that scikit-learn brings along."""
    tiny = {"dataset": "digits", "batch_size": 16, "workload": "lrm", "eta0": 0.3}
    tiny |= {"time_factor": 0.2, "max_time": 60.0, "target_loss": 1.5}
    three, many = _cluster("ratio"), _cluster("eighteen", H)
    for algorithm in METHODS:
        flags = _learner(algorithm, "three") | tiny
        timing = {"workload": "timing", "max_time": 600.0, "commit_rate": _rate(algorithm)}
        yield "split", Row(f"smoke-ratio-{algorithm}-timing", {"smoke": 1}, flags | three | timing)
        yield "split", Row(f"smoke-three-{algorithm}", {"smoke": 1}, flags | _cluster("three"))
        yield "race", Row(f"smoke-{algorithm}", {"smoke": 2}, flags | many)
        fast = {"delay": three["delay"] + ",scale=0.05", "workers": 3, "iterations": 200}
        fast |= {"max_time": 5.0, "time_factor": 0.02, "eval_seconds": 0.5}
        for cluster in ("mpi", "virtual"):
            row = Row(
                f"smoke-{algorithm}-{cluster}", {"smoke": 1}, flags | fast | {"cluster": cluster}
            )
            yield "mpi", row
    for algorithm in ("fixed_adacomm", "adsp"):
        flags = _learner(algorithm, "race") | tiny
        for level in (LEVELS[0], H):
            cell = flags | _cluster("eighteen", level)
            yield "heterogeneity", Row(f"smoke-h{level:g}-{algorithm}", {"smoke": 1}, cell)
        for processes in (1, 2):
            cell = flags | _cluster("eighteen", H, processes)
            yield "scale", Row(f"smoke-n{18 * processes}-{algorithm}", {"smoke": 1}, cell)
        for extra in DELAYS[:2]:
            cell = flags | _cluster("eighteen", H, extra=extra)
            yield "delay", Row(f"smoke-d{extra}-{algorithm}", {"smoke": 1}, cell)
    for rate in (1, 4):
        cell = _learner("adsp", "race", commit_rate=rate) | tiny | many
        yield "momentum", Row(f"smoke-rate-{rate}", {"smoke": 1}, cell)
    for name, flags in (
        ("adsp_plus", {}),
        ("adsp_plus_plus", {"max_time": 600.0, "time_factor": 0.1}),
        ("bsp", {"batch_tune": True}),
        ("fixed_adacomm", {"batch_tune": True}),
    ):
        tuned = "-tuned" if "batch_tune" in flags else ""
        cell = _learner(name, "race") | tiny | many | flags
        yield "variants", Row(f"smoke-{name}{tuned}", {"smoke": 1}, cell)
    for algorithm in GRAPH:
        cell = _learner(algorithm, "graph") | tiny | many
        cell |= {"commit_rate": 10} if algorithm == "cb_adsp" else {}
        yield "graph", Row(f"smoke-{algorithm}", {"smoke": 1}, cell)


STEP = {"2nn": 4e-4, "lrm": 1e-4, "cnn": 0.25, "rnn": 0.01, "svm": 5e-4}  # seconds
SPEED = {3: 5.2, 18: 18.2, 36: 36.4}  # minibatches a second, of all workers where nobody waits


def _seconds(settings: Settings) -> float:
    """How long a run takes on one core of the machine of WORKSPACE_NOTES.md, roughly."""
    if settings.cluster == "mpi":
        return 6 + settings.max_time
    steps = settings.max_time * SPEED[settings.workers]
    if settings.algorithm in ("bsp", "ssp", "adacomm", "fixed_adacomm", "cb_full"):
        steps /= 3
    if "scale=0.05" in settings.delay:
        steps *= 20
    learns = STEP.get(settings.workload.partition(":")[0], 1e-5)
    looks = settings.max_time / settings.eval_seconds if settings.eval_seconds else 0
    look = 0.9 if settings.workload == "cnn" else 3e-3
    return 0.5 + steps * (learns + 2e-5) + looks * look


def files() -> dict[str, str]:
    """GROUP/NAME.flags → content, of all cells."""
    rows = [(group, row) for group, make in GROUPS.items() for row in make()]
    return cell_files.texts([*rows, *smoke()], _seconds)


if __name__ == "__main__":
    cell_files.rewrite(HERE / "cells", files())
