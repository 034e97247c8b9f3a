"""The report of a paper's sweep: one HTML file that loads nothing.

It puts together what `experiments.reproduce` has left in a folder: verdicts.json first, then for
each group of cells the figures, and what to see in them. It runs nothing. What is a paper's own
is its `Page`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path
from types import ModuleType
from typing import Any

from cbdybw.clusters.guard import guard
from cbdybw.errors import BadInput
from cbdybw.storage import atomic
from experiments import drawing, look, report, rows
from experiments.claims import Rows
from experiments.reading import read
from experiments.rows import Row

STYLE = (
    report.STYLE
    + """
table.verdicts { max-width: none; }
.verdicts th, .verdicts td { white-space: normal; text-align: left; vertical-align: top;
                             padding: .6rem .7rem .6rem 0; }
.verdicts tr { border-bottom: 1px solid var(--line); }
.verdicts td.claim { width: 34%; } .verdicts td.verdict { width: 20%; font-weight: 600; }
.verdicts td { overflow-wrap: anywhere; }
.partly { color: #a35400; } .open { color: var(--soft); }
summary { cursor: pointer; font: 15px/1.5 system-ui, sans-serif; padding: .3rem 0; }
.verdicts summary { font-size: 13px; color: var(--soft); padding: .2rem 0 0; }
.verdicts details p { margin: .3rem 0; font-size: 13px; color: var(--soft); }
.numbers { max-width: none; } .numbers th { white-space: normal; }
.numbers th, .numbers td { padding: .28rem .4rem; font-size: 12.5px; }
th.word, td.word { text-align: left; }
@media (max-width: 34rem) {
  .verdicts thead { display: none; } .verdicts tr, .verdicts td { display: block; }
  .verdicts td.claim, .verdicts td.verdict { width: auto; }
  .verdicts td { padding: .15rem 0; } .verdicts tr { padding: .7rem 0; }
  .verdicts td[data-head]::before { content: attr(data-head) ": "; color: var(--soft); } }
"""
)


def group_figures(group: str, found: list[Row], folder: Path) -> str:
    """The figures whose files' names begin with the group's."""
    del found
    return figures(folder.glob(f"{group}*.svg"))


@dataclass(frozen=True)
class Page:
    """A paper's page.

    Attributes:
        paper: its folder's name.
        name: of its algorithm, as the paper writes it.
        example: one of the modules that draw a figure.
        body: HTML of (group, its rows, folder of figures), below the group's TITLE and SAYS.
        says: a paragraph each, above the verdicts.
        binary: what does the runs of a cell, a module of `experiments`.
        units: of seconds and of intervals.
    """

    paper: str
    name: str
    example: str
    body: Callable[[str, list[Row], Path], str] = group_figures
    says: tuple[str, ...] = ()
    binary: str = "train"
    units: str = (
        "Seconds are those of the virtual clock wherever it does not say MPI. Intervals are 95 % "
        "(Student's t over seeds)"
    )

    def write(self, out: Path) -> Path:
        """Write OUT/report.html from the rows, figures and verdicts in OUT; its path."""
        groups = rows.collected(out)
        try:
            verdicts = atomic.read_json(out / "verdicts.json")
        except FileNotFoundError:
            raise BadInput(
                f"{out}: holds no verdicts.json; name the folder of "
                f"python -m experiments.reproduce --paper={self.paper}"
            ) from None
        atomic.write_text(out / "report.html", self.html(groups, verdicts, out / "figures"))
        return out / "report.html"

    def html(self, groups: Rows, verdicts: list[dict[str, Any]], folder: Path) -> str:
        """The page; `folder` holds the figures."""
        sections = "\n".join(self._sections(groups, folder))
        return (
            '<!doctype html>\n<html lang="en"><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{self.name}: claims and results</title><style>{STYLE}</style>\n<body>"
            f"<h1>{self.name}: what the paper claims, and what came out</h1>"
            + "".join(f"<p>{escape(text)}</p>" for text in self.says)
            + "".join(f'<p class="notice">{escape(text)}</p>' for text in _notices(groups))
            + f'<p class="soft">{escape(_origin(groups))} {escape(self.units)}.</p>'
            f"<h2>Verdicts</h2>{verdict_table(verdicts)}{sections}"
            f"<h2>Again</h2>{self._again()}</body></html>\n"
        )

    def _sections(self, groups: Rows, folder: Path) -> Iterator[str]:
        """One for each module that has rows to draw, with all of its groups."""
        by_module: dict[ModuleType, list[str]] = {}
        for group, module in drawing.modules(self.paper).items():
            if group in groups:
                by_module.setdefault(module, []).append(group)
        for module, of_module in by_module.items():
            bodies = "".join(self.body(group, groups[group], folder) for group in of_module)
            yield f'<h2>{module.TITLE}</h2><p class="soft">{escape(module.SAYS)}</p>{bodies}'

    def _again(self) -> str:
        lines = {
            "all of it": f"python -m experiments.reproduce --paper={self.paper} --scale=short",
            "the figures, verdicts and this page alone": "python -m experiments.reproduce "
            f"--paper={self.paper} --figures_only --out=OUT",
            "one figure": f"python -m experiments.{self.paper}.{self.example} OUT",
            "one cell": f"python -m experiments.{self.binary} "
            f"--flagfile=experiments/{self.paper}/cells/GROUP/NAME.flags --seed=0",
        }
        items = "".join(f"<dt>{k}</dt><dd><code>{line}</code></dd>" for k, line in lines.items())
        return f"<dl>{items}</dl>"

    def main(self) -> None:
        """The binary: the folder of a sweep's results is the only argument."""
        with guard():
            if len(sys.argv) != 2:
                raise BadInput(
                    f"{len(sys.argv) - 1} arguments: give the folder of a sweep's results"
                )
            print(self.write(Path(sys.argv[1])))


def verdict_table(verdicts: list[dict[str, Any]]) -> str:
    """A line a claim; the setting and the reason unfold."""
    heads = "".join(f"<th>{name}</th>" for name in ("claim", "published", "ours", "verdict"))
    return (
        f'<table class="verdicts"><thead><tr>{heads}</tr></thead>'
        f"<tbody>{''.join(map(_verdict, verdicts))}</tbody></table>"
    )


def _verdict(v: dict[str, Any]) -> str:
    text = {name: escape(value) for name, value in v.items()}
    return (
        f'<tr><td class="claim">{text["claim"]} <span class="soft">{text["tag"]}</span>'
        f"<details><summary>why, and where</summary><p>{text['why']}</p>"
        f"<p>{text['setting']}</p></details></td>"
        f'<td data-head="published">{text["published"]}</td>'
        f'<td data-head="ours">{text["ours"]}</td>'
        f'<td class="verdict {_colour(v["verdict"])}">{text["verdict"]}</td></tr>'
    )


def _colour(verdict: str) -> str:
    if verdict == "cannot be tested":
        return "open"
    if verdict == "not reproduced":
        return "fail"
    return "pass" if verdict == "reproduced" else "partly"


def figures(paths: Iterable[Path]) -> str:
    """Wide ones alone, and scrolled on a phone; the others two abreast."""
    wide, narrow = [], []
    for path in sorted(paths):
        svg, inches = inline(path)
        if inches == look.FULL:
            wide.append(f'<figure><div class="wide">{svg}</div></figure>')
        else:
            narrow.append(f"<figure>{svg}</figure>")
    pair = f'<div class="pair">{"".join(narrow)}</div>' if narrow else ""
    return "".join(wide) + pair


def inline(path: Path) -> tuple[str, float]:
    """An SVG file as an element of a page, and its width in inches."""
    text = path.read_text(encoding="utf-8")
    element = text[text.index("<svg") :]
    points = float(re.search(r'<svg[^>]* width="([\d.]+)pt"', element)[1])
    return re.sub(r' id="[a-z0-9.]+_\d+"', "", element), round(points / 72, 2)


def table(lines: list[list[str]], left: int) -> str:
    """A table with its head; the first `left` columns are words."""

    def cells(line: list[str], tag: str) -> str:
        kind = ['class="word"'] * left + [""] * (len(line) - left)
        return "".join(f"<{tag} {k}>{escape(x)}</{tag}>" for k, x in zip(kind, line, strict=True))

    body = "".join(f"<tr>{cells(line, 'td')}</tr>" for line in lines[1:])
    return (
        f'<div class="wide"><table class="numbers"><thead><tr>{cells(lines[0], "th")}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _notices(groups: Rows) -> list[str]:
    """What has to be said of the data of some of the runs."""
    return sorted({r.notice for found in groups.values() for r in read(found)} - {""})


def _origin(groups: Rows) -> str:
    every = [row for found in groups.values() for row in found]
    commits = sorted({str(row["commit"])[:12] for row in every})
    versions = every[0]["versions"] if every else {}
    return (
        f"{len(every)} runs, commit {', '.join(commits)}; "
        + ", ".join(f"{name} {number}" for name, number in versions.items())
        + "."
    )
