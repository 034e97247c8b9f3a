"""The cells in which ranks really die: groups `real` and `consensus`, part of `scar.cells`.

`real`: a parameter server's ranks are killed, on MPI and, with the same flags and the same file of
faults, on the virtual cluster. `consensus`: workers on a graph are lost. All numbers are [choice].
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from experiments.cell_files import Row
from experiments.settings import Settings

FAULTS = "experiments/scar/faults/{}.toml"
LEARNT: Mapping[str, Mapping[str, Any]] = {
    "mlr": {
        "workload": "mlr",
        "dataset": "mnist",
        "pca": 0,
        "batch_size": 1024,
        "eta0": 0.2,
        "target_loss": 0.54,
    },
    "lda": {"workload": "lda:documents=600", "dataset": "newsgroups", "target_loss": 9.2},
}
"""What is iterated, and the criterion that failure-free runs of three workers meet after about 65
iterations (mlr) and 40 (lda). LDA's workers do not see each other's samples of an iteration: the
more there are, the later it is there; and at 65 its loss falls by less in an iteration than it
differs from seed to seed."""
SERVED = {"algorithm": "scar", "workers": 3, "servers": 4, "eval_every": 1}
FULL = {"recovery": "full", "checkpoint_fraction": 1.0, "checkpoint_policy": "full"}
HALF = {"faults": FAULTS.format("half-of-servers")}
SCHEMES: Mapping[str, Mapping[str, Any]] = {
    "clean": {"recovery": "partial"},
    "scar": {"recovery": "partial"} | HALF,
    "traditional": FULL | HALF,
    "worker": {"recovery": "partial", "faults": FAULTS.format("one-worker")},
}
"""What is lost and how it is recovered, by the names of cells."""

LOSES = {6: ("ring", "one-worker"), 10: ("random_regular:degree=4", "two-workers")}
"""Workers → the graph, which holds together without those whom the file of faults kills."""
CONSENSUS = {
    "workload": "lrm",
    "delay": "exponential:mean=0.1",
    "eta0": 1.0,
    "eta_decay": 0.99,
    "eval_every": 1,
    "target_loss": 0.45,
}
RECOVERIES = ("without", "neighbour", "partial", "full")


SMOKE = {
    "mlr": {
        "workload": "mlr",
        "dataset": "digits",
        "pca": 0,
        "batch_size": 64,
        "eta0": 0.2,
        "target_loss": 1.25,
    },
    "lda": {
        "workload": "lda:topics=10,documents=300",
        "dataset": "generated",
        "target_loss": 6.25,
    },
}


def real() -> Iterator[Row]:
    """6: servers and a worker killed, measured beside simulated."""
    for name, learnt in LEARNT.items():
        flags = learnt | {"delay": "constant:mean=0.04", "iterations": 90}
        virtual, mpi = {"short": 3, "paper": 10}, {"short": 3, "paper": 5}
        yield from _on_both(name, flags, virtual, mpi)


def _on_both(
    name: str, flags: Mapping[str, Any], virtual: Mapping[str, int], mpi: Mapping[str, int]
) -> Iterator[Row]:
    """All schemes on both clusters, in so many seeds. Ranks need a folder for what they save."""
    for scheme, of_scheme in SCHEMES.items():
        for cluster, scales in {"virtual": virtual, "mpi": mpi}.items():
            if (scheme, cluster) == ("worker", "mpi"):
                scales = dict.fromkeys(scales, 1)  # nothing is compared with its time
            cell = f"{name}-{scheme}-{cluster}"
            more = {"cluster": "mpi", "run_dir": f"runs/scar-{cell}"} if cluster == "mpi" else {}
            yield Row(
                cell,
                dict(scales),
                {**SERVED, **flags, **of_scheme, **more},
                "noticed within 1 s; the same iteration cost on both clusters [choice]",
            )


def consensus() -> Iterator[Row]:
    """7: one of six workers is lost, two of ten."""
    for workers in LOSES:
        for algorithm in ("cb_full", "cb_dybw"):
            flags = CONSENSUS | {"algorithm": algorithm, "iterations": 90}
            yield from _losing(workers, algorithm, flags, {"short": 5, "paper": 20})


def _losing(
    workers: int, algorithm: str, flags: Mapping[str, Any], scales: Mapping[str, int]
) -> Iterator[Row]:
    """A run without failure, and one for each recovery."""
    graph, file = LOSES[workers]
    flags = {**flags, "workers": workers, "graph": graph}
    name = f"n{workers}-{algorithm}"
    yield Row(f"{name}-clean", dict(scales), flags, "iteration cost 0, by definition")
    for recovery in RECOVERIES:
        saving = FULL if recovery == "full" else {"recovery": recovery}
        yield Row(
            f"{name}-{recovery}",
            dict(scales),
            {**flags, **saving, "faults": FAULTS.format(file)},
            "a worker made anew from its neighbours costs no more than from a checkpoint [choice]",
        )


GROUPS = {"real": real, "consensus": consensus}


def smoke() -> Iterator[tuple[str, Row]]:
    """Something of each group, in seconds, from data that need no files."""
    for name, learnt in SMOKE.items():
        flags = learnt | {"delay": "constant:mean=0.03", "iterations": 50}
        seeds = {"smoke": 1}
        for row in _on_both(name, flags, seeds, seeds if name == "mlr" else {}):
            if row.scales:
                yield "real", row._replace(name=f"smoke-{row.name}")
    digits = {"dataset": "digits", "pca": 0, "batch_size": 32, "target_loss": 1.0}
    for algorithm in ("cb_full", "cb_dybw"):
        flags = CONSENSUS | digits | {"algorithm": algorithm, "iterations": 75, "eta0": 0.3}
        for row in _losing(6, algorithm, flags, {"smoke": 2}):
            yield "consensus", row._replace(name=f"smoke-{row.name}")


def seconds(settings: Settings) -> float:
    """How long a run takes on one core of the machine of WORKSPACE_NOTES.md, roughly."""
    if settings.cluster == "mpi":
        return 8 + 0.06 * settings.iterations
    if settings.dataset in ("digits", "generated"):
        return 1.0
    if settings.algorithm == "scar":
        return 1 + settings.iterations * 0.03
    return 1 + settings.iterations * settings.workers * 3.5e-3
