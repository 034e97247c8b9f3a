"""What the paper claims, and what our runs say about it."""

from __future__ import annotations

from typing import Any


def judge(rows_by_group: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """A verdict for every claim that `rows_by_group` (see `experiments.rows`) can tell of."""
    del rows_by_group
    return []
