"""What the paper claims, and what our runs say about it: as `experiments.cb_dybw.verdicts`."""

from __future__ import annotations

from typing import Any

from experiments.claims import Rows
from experiments.scar import claims_bound, claims_cluster, claims_overhead, claims_recovery


def judge(rows_by_group: Rows) -> list[dict[str, Any]]:
    """A verdict on every claim."""
    modules = claims_recovery, claims_bound, claims_overhead, claims_cluster
    return [test(rows_by_group) for module in modules for test in module.CLAIMS]
