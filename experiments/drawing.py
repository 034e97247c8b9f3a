"""From collected rows to files: a paper's figures as SVG, its verdicts as JSON and as a table, and
the report that puts them together."""

from __future__ import annotations

import importlib
import io
from pathlib import Path

import matplotlib

from cbdybw.storage import atomic
from experiments.figures import STYLE
from experiments.rows import Row


def figures(paper: str, groups: dict[str, list[Row]], out: Path) -> list[Path]:
    """Draw the figures of all groups that have rows into OUT/figures, in place of what is there."""
    folder, paths = out / "figures", []
    for old in folder.glob("*.svg"):
        old.unlink()
    for group, module in importlib.import_module(f"experiments.{paper}").FIGURES.items():
        if group not in groups:
            continue
        folder.mkdir(exist_ok=True)
        # The salt makes ids, and so the files, the same whenever they are drawn.
        with matplotlib.rc_context(STYLE | {"svg.hashsalt": group}):
            for name, figure in module.draw(groups[group]).items():
                text = io.StringIO()
                figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
                paths.append(folder / f"{name}.svg")
                atomic.write_text(paths[-1], text.getvalue())
    return paths


def page(paper: str, out: Path) -> Path:
    """Write OUT/report.html from what is in OUT; its path."""
    return importlib.import_module(f"experiments.{paper}.page").write(out)


def verdicts(paper: str, groups: dict[str, list[Row]], out: Path) -> int:
    """Write OUT/verdicts.json and OUT/verdicts.md; the number of claims."""
    judged = importlib.import_module(f"experiments.{paper}.verdicts").judge(groups)
    atomic.write_json(out / "verdicts.json", judged)
    columns = list(judged[0]) if judged else []
    lines = [columns, ["---"] * len(columns), *([str(v[c]) for c in columns] for v in judged)]
    table = "".join(f"| {' | '.join(line)} |\n" for line in lines) if judged else ""
    atomic.write_text(out / "verdicts.md", table)
    return len(judged)
