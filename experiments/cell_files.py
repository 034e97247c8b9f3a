"""A paper's table of cells, and the flag files that `experiments.cells` reads.

A paper's cells.py makes `Row`s; `python -m experiments.PAPER.cells` calls `rewrite` on its folder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from cbdybw.storage import atomic
from experiments import kinds
from experiments.flagged import Flagged

UNKNOWN = "nothing is known beforehand"


class Row(NamedTuple):
    """A cell.

    Attributes:
        name: within its group.
        scales: scale → how many seeds, from 0, or which ones, ascending and without gaps.
        flags: those that matter; what is a default is not written.
        expected: what the paper, or theory, says of it.
        kind: what its runs do, one of `experiments.kinds`.
    """

    name: str
    scales: dict[str, int | Sequence[int]]
    flags: dict[str, Any]
    expected: str = UNKNOWN
    kind: str = "train"


def texts(rows: Iterable[tuple[str, Row]], seconds: Callable[[Flagged], float]) -> dict[str, str]:
    """GROUP/NAME.flags → content, of (group, row); `seconds` tells roughly how long a run takes on
    one core. BadInput where flags do not go together."""
    return {f"{group}/{row.name}.flags": _text(group, row, seconds) for group, row in rows}


def _text(group: str, row: Row, seconds: Callable[[Flagged], float]) -> str:
    defaults = kinds.module(row.kind).Settings()
    settings = replace(defaults, **row.flags)
    head = {
        "figure": group,
        **({"kind": row.kind} if row.kind != "train" else {}),
        "scales": ", ".join(f"{scale} {_seeds(seeds)}" for scale, seeds in row.scales.items()),
        "expected": row.expected,
        "run time": f"{seconds(settings):.2g} s",
    }
    lines = [f"# {name}: {text}" for name, text in head.items()]
    return "\n".join([*lines, *sorted(settings.differing(defaults, besides=()))]) + "\n"


def _seeds(given: int | Sequence[int]) -> str:
    seeds = range(given) if isinstance(given, int) else given
    return f"seeds {seeds[0]}-{seeds[-1]}" if len(seeds) > 1 else f"seed {seeds[0]}"


def rewrite(folder: Path, wanted: Mapping[str, str]) -> None:
    """Make the flag files below `folder` what `wanted` (see `texts`) says, and no others."""
    for path in folder.glob("*/*.flags"):
        if str(path.relative_to(folder)) not in wanted:
            path.unlink()
    for name, text in wanted.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            atomic.write_text(path, text)
    print(f"{folder}: {len(wanted)} cells")
