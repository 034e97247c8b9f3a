"""One figure's script: draws from the rows in a results folder, into its folder `figures`."""

from __future__ import annotations

import sys
from pathlib import Path

from cbdybw.clusters.guard import guard
from cbdybw.errors import BadInput
from experiments import drawing, rows
from experiments.drawing import Draw


def main(group: str, draw: Draw) -> None:
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
        for drawn in drawing.of_group(
            group, draw, rows.collected(folder)[group], folder / "figures"
        ):
            print(drawn)
