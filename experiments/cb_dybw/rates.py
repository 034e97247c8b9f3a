"""Learning rates: the same search for every algorithm. `python -m experiments.cb_dybw.rates OUT`

chooses from the rows of `reproduce --scale=rates` in OUT, for each algorithm and workload, the η0
with the lowest training loss at the end, and writes rates.json beside this file; then
`python -m experiments.cb_dybw.cells` writes it into the cells. [choice] All of this: the grid, the
budget (300 iterations of LRM, 200 of 2NN), δ = 0.99 per epoch, a seed that no result is taken from.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from cbdybw.clusters.guard import guard
from cbdybw.errors import BadInput
from cbdybw.storage import atomic
from experiments import rows

RATES = Path(__file__).with_name("rates.json")
SEED = 100
GRID = {
    "mnist-lrm": (0.3, 1, 3, 10, 30),
    "mnist-lrm-shards2": (0.3, 1, 3, 10, 30),
    "mnist-lrm-b32": (0.1, 0.3, 1, 3, 10),
    "mnist-2nn": (0.3, 1, 3, 10, 30),
    "mnist-2nn-shards2": (0.1, 0.3, 1, 3, 10),
    "cifar10-lrm": (0.03, 0.1, 0.3, 1, 3),
    "cifar10-lrm-shards2": (0.03, 0.1, 0.3, 1, 3),
    "cifar10-2nn": (0.1, 0.3, 1, 3, 10),
    "cifar10-2nn-shards2": (0.03, 0.1, 0.3, 1, 3),
}
"""Workload → η0; b32 is a batch of 32 on a ring of 16, all others are six workers on a ring."""

BEFORE = 1.0
"""η0 as long as nothing has been chosen."""


def chosen(algorithm: str, dataset: str, workload: str, partition: str, batch_size: int) -> float:
    """η0 of an algorithm for a workload; every partition that is not iid has that of shards:2."""
    name = f"{dataset}-{workload}"
    if batch_size == 32:
        name += "-b32"
    elif partition != "iid":
        name += "-shards2"
    found = atomic.read_json(RATES) if RATES.exists() else {}
    return found.get(name, {}).get(algorithm, {}).get("eta0", BEFORE)


def choose(found: list[dict[str, Any]]) -> dict[str, dict[str, dict[str, Any]]]:
    """Workload → algorithm → the chosen η0 and the losses of all, None where it diverged."""
    losses: dict[str, dict[str, dict[float, float | None]]] = {}
    for row in found:
        workload, algorithm, eta0 = row["cell"].partition("/")[2].rsplit("-", 2)
        loss = row["result"]["train_loss"] if row["status"] == "finished" else None
        losses.setdefault(workload, {}).setdefault(algorithm, {})[float(eta0)] = loss
    return {
        workload: {
            algorithm: {"eta0": _best(tried), "train_loss": dict(sorted(tried.items()))}
            for algorithm, tried in sorted(by_algorithm.items())
        }
        for workload, by_algorithm in sorted(losses.items())
    }


def _best(tried: dict[float, float | None]) -> float:
    learnt = {eta0: loss for eta0, loss in tried.items() if loss is not None}
    return min(learnt, key=learnt.__getitem__)


def main(argv: list[str]) -> None:
    """Read OUT/rates.jsonl, write rates.json."""
    with guard():
        found = rows.collected(Path(argv[1])) if len(argv) == 2 else {}
        if "rates" not in found:
            raise BadInput(
                f"{' '.join(argv[1:]) or 'no folder'}: holds no rates.jsonl; "
                "name the folder of python -m experiments.reproduce --scale=rates"
            )
        atomic.write_json(RATES, choose(found["rates"]))


if __name__ == "__main__":
    main(sys.argv)
