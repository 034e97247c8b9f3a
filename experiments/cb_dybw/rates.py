"""Learning rates: the same search for every algorithm. `python -m experiments.cb_dybw.rates OUT`

chooses η0 for each algorithm and workload from the rows of `reproduce --scale=rates` in OUT, and
writes rates.json beside this file; then `python -m experiments.cb_dybw.cells` writes it into the
cells. An η0 is as good as the higher one of its final training losses on two seeds. The best wins
among those at which the next larger η0 of the grid, too, ends below the loss of guessing: at the
edge of divergence two seeds tell little of others. [choice] All of this: the rule, the grid, the
budget (300 iterations of LRM, 200 of 2NN), δ = 0.99 per epoch, seeds that no result is taken from.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

from cbdybw.clusters.guard import guard
from cbdybw.errors import BadInput
from cbdybw.storage import atomic
from experiments import rows

RATES = Path(__file__).with_name("rates.json")
SEEDS = (100, 101)
GUESSING = math.log(10)
"""The training loss of who knows nothing of ten classes."""
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
    """Workload → algorithm → the chosen η0 and the losses of all, None where a run diverged."""
    losses: dict[str, dict[str, dict[float, float]]] = {}
    for row in found:
        workload, algorithm, eta0 = row["cell"].partition("/")[2].rsplit("-", 2)
        loss = row["result"]["train_loss"] if row["status"] == "finished" else math.inf
        tried = losses.setdefault(workload, {}).setdefault(algorithm, {})
        tried[float(eta0)] = max(loss, tried.get(float(eta0), 0.0))
    return {
        workload: {
            algorithm: {"eta0": _best(tried), "train_loss": _finite(tried)}
            for algorithm, tried in sorted(by_algorithm.items())
        }
        for workload, by_algorithm in sorted(losses.items())
    }


def _best(tried: dict[float, float]) -> float:
    """Of those that are safe; the smallest where none is. The largest of the grid is not."""
    etas = sorted(tried)
    safe = [eta0 for eta0, larger in pairwise(etas) if tried[larger] < GUESSING]
    return min(safe or etas[:1], key=tried.__getitem__)


def _finite(tried: dict[float, float]) -> dict[float, float | None]:
    return {eta0: loss if loss < math.inf else None for eta0, loss in sorted(tried.items())}


def main(argv: list[str], path: Path = RATES, choose: Callable[..., Any] = choose) -> None:
    """Read OUT/rates.jsonl, write the file of chosen rates."""
    with guard():
        found = rows.collected(Path(argv[1])) if len(argv) == 2 else {}
        if "rates" not in found:
            raise BadInput(
                f"{' '.join(argv[1:]) or 'no folder'}: holds no rates.jsonl; "
                "name the folder of python -m experiments.reproduce --scale=rates"
            )
        atomic.write_json(path, choose(found["rates"]))


if __name__ == "__main__":
    main(sys.argv)
