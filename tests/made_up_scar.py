"""Rows of SCAR's groups with numbers of our choice: trials, perturbations and timings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.scar.trial import MODES, SCAR, TRADITIONAL, Mode

Row = dict[str, Any]

PERIOD = 8
MLR = {"workload": "mlr", "pca": 0, "dataset": "digits"}
QP = {"workload": "qp:dim=64"}


def row(kind: str, cell: str, seed: int = 0, **flags: Any) -> Row:
    """The head of a row, and a result that says nothing yet."""
    return {
        "key": f"{abs(hash((cell, seed))):012x}"[:12],
        "cell": cell,
        "seed": seed,
        "kind": kind,
        "flags": flags,
        "status": "finished",
        "versions": {},
        "commit": "0" * 40,
        "result": {"status": "finished", "notice": ""},
    }


def trials(
    costs: Mapping[Mode, Sequence[float]],
    cell: str = "recovery/qp",
    seed: int = 0,
    failures: Sequence[int] = (),
    blocks: int = 64,
    alike: bool = True,
    ages: Mapping[Mode, float] | None = None,
    values: Mapping[Mode, float] | None = None,
    changes: Mapping[Mode, float] | None = None,
    reached: Mapping[Mode, bool] | None = None,
    **flags: Any,
) -> Row:
    """Trials with these costs; a scheme that is not named costs as much as TRADITIONAL.

    Failure-free runs take 70 iterations, a perturbation has the norm √p, copies are 3.5 iterations
    old, and as many values are saved in C iterations as there are.
    """
    n = len(costs[TRADITIONAL])
    made = row("trials", cell, seed, target=0.001, trials=n, **(QP | flags))
    made["result"] |= {"dim": blocks, "blocks": blocks, "alike": alike}
    at = list(failures) or [40] * n
    made["trials"] = {"seed": list(range(n)), "clean": [70] * n, "failure": at}
    made["modes"] = []
    for mode in MODES:
        share = 1.0 if mode.recovery == "full" else mode.lost
        columns = {
            "cost": list(costs.get(mode, costs[TRADITIONAL])),
            "reached": [(reached or {}).get(mode, True)] * n,
            "change": [(changes or {}).get(mode, float(np.sqrt(share)))] * n,
            "age": [(ages or {}).get(mode, 3.5)] * n,
            "values": [(values or {}).get(mode, 1.0)] * n,
        }
        lost = {"lost_blocks": round(mode.lost * blocks)}
        made["modes"].append(mode._asdict() | lost | columns)
    return made


def points(
    found: Sequence[tuple[str, float, float]],
    cell: str = "bound/qp",
    cautious: float = 1e3,
    reached: bool = True,
    **flags: Any,
) -> Row:
    """Perturbations (kind, bound, cost) in iteration 20 of 70, of norm 0.5."""
    made = row("perturbed", cell, 0, target=0.001, **({"workload": "qp"} | flags))
    kinds, bounds, costs = zip(*found, strict=True)
    n = len(found)
    made["points"] = {
        "seed": [0] * n,
        "kind": list(kinds),
        "clean": [70] * n,
        "at": [20] * n,
        "norm": [0.5] * n,
        "cost": list(costs),
        "reached": [reached] * n,
        "bound": list(bounds),
        "cautious": [cautious] * n,
    }
    return made


def timed(shares: Mapping[str, Sequence[float]], cell: str = "overhead/lda", **flags: Any) -> Row:
    """Iterations of 0.1 s, and longer by `shares` of it, one for each block of iterations."""
    made = row("overhead", cell, 0, **(MLR | flags))
    machine = {"cores": 2, "processor": "a processor"}
    made["result"] |= {"dim": 650, "blocks": 65, "bytes": 2600, "machine": machine}
    n = len(next(iter(shares.values())))
    made["seconds"] = {"none": [0.1] * n} | {
        name: [0.1 * (1 + s) for s in given] for name, given in shares.items()
    }
    return made


HEADLINE = {TRADITIONAL: [4.0, 2.0, 6.0, 4.0], SCAR: [0.5, 0.5, 0.5, 0.5]}
"""87.5 % saved."""
