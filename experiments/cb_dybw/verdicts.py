"""What the paper claims, and what our runs say about it."""

from __future__ import annotations

from typing import Any

from experiments.cb_dybw import claims_learning, claims_time
from experiments.claims import Rows


def judge(rows_by_group: Rows) -> list[dict[str, Any]]:
    """A verdict on every claim, each with the texts claim, tag, setting, published, ours, verdict
    and why.

    verdict is one of "reproduced", "reproduced under …", "not reproduced", "cannot be tested".
    """
    return [test(rows_by_group) for test in (*claims_time.CLAIMS, *claims_learning.CLAIMS)]
