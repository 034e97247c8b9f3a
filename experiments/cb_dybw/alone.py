"""One figure's script: draws from the rows in a results folder, into its folder `figures`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from cbdybw.clusters.guard import guard
from cbdybw.errors import BadInput
from cbdybw.storage import atomic
from experiments import figures, rows


def main(group: str, draw: Callable[[list[dict[str, Any]]], dict[str, Figure]]) -> None:
    """Draw the group's figures and print their paths; the folder is the only argument."""
    with guard():
        if len(sys.argv) != 2:
            raise BadInput(
                f"{len(sys.argv) - 1} arguments: give the folder that holds {group}.jsonl"
            )
        folder = Path(sys.argv[1])
        path = folder / f"{group}.jsonl"
        if not path.is_file():
            raise BadInput(f"{path}: not there; give the folder of a sweep's rows")
        (folder / "figures").mkdir(exist_ok=True)
        for name, figure in draw(rows.collected(folder)[group]).items():
            target = folder / "figures" / f"{name}.svg"
            atomic.write_text(target, figures.svg(name, lambda figure=figure: figure))
            print(target)
