"""What the paper claims, and what our runs say about it: as `experiments.cb_dybw.verdicts`."""

from __future__ import annotations

from typing import Any

from experiments.adsp import claims_learning, claims_pace, claims_time
from experiments.claims import Rows


def judge(rows_by_group: Rows) -> list[dict[str, Any]]:
    """A verdict on every claim."""
    modules = claims_time, claims_pace, claims_learning
    return [test(rows_by_group) for module in modules for test in module.CLAIMS]
