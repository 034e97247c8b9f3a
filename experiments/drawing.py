"""From collected rows to files: a paper's figures as SVG, its verdicts as JSON and as a table, and
the report that puts them together."""

from __future__ import annotations

import importlib
import io
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import matplotlib
from matplotlib.figure import Figure

from cbdybw.storage import atomic
from experiments.figures import STYLE
from experiments.rows import Row

Draw = Callable[[list[Row]], dict[str, Figure]]


def modules(paper: str) -> dict[str, ModuleType]:
    """Group of cells → the module whose `draw(rows)` gives its figures, file name → figure, from
    the rows of the group; its TITLE and SAYS are the head of them on the page.

    A paper names its modules and does not import them: a sweep's processes need none of them.
    """
    names = importlib.import_module(f"experiments.{paper}").FIGURES
    return {group: importlib.import_module(f"experiments.{name}") for group, name in names.items()}


def figures(paper: str, groups: dict[str, list[Row]], out: Path) -> list[Path]:
    """Draw the figures of all groups that have rows into OUT/figures, in place of what is there."""
    folder, paths = out / "figures", []
    for old in folder.glob("*.svg"):
        old.unlink()
    for group, module in modules(paper).items():
        if group in groups:
            paths += of_group(group, module.draw, groups[group], folder)
    return paths


def of_group(group: str, draw: Draw, found: list[Row], folder: Path) -> list[Path]:
    """Write the figures of one group into `folder`; the same rows give the same files."""
    folder.mkdir(exist_ok=True)
    paths = []
    with matplotlib.rc_context(STYLE | {"svg.hashsalt": group}):  # the salt of ids in the files
        for name, figure in draw(found).items():
            text = io.StringIO()
            figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
            paths.append(folder / f"{name}.svg")
            atomic.write_text(paths[-1], text.getvalue())
    return paths


def page(paper: str, out: Path) -> Path:
    """Write OUT/report.html from what is in OUT; its path."""
    return importlib.import_module(f"experiments.{paper}.page").PAGE.write(out)


def verdicts(paper: str, groups: dict[str, list[Row]], out: Path) -> int:
    """Write OUT/verdicts.json and OUT/verdicts.md; the number of claims."""
    judged = importlib.import_module(f"experiments.{paper}.verdicts").judge(groups)
    atomic.write_json(out / "verdicts.json", judged)
    lines = [list(judged[0]), *(list(v.values()) for v in judged)] if judged else []
    atomic.write_text(out / "verdicts.md", markdown(lines) if lines else "")
    return len(judged)


def markdown(lines: list[list[str]]) -> str:
    """A table of Markdown; the first line holds the heads."""
    head, *rest = lines
    return "".join(f"| {' | '.join(line)} |\n" for line in [head, ["---"] * len(head), *rest])
