"""The report of a sweep: one HTML file that loads nothing. `python -m experiments.cb_dybw.page OUT`

puts together what `experiments.reproduce` has left in OUT: verdicts.json first, then the figures
with what to see in them, the table of laws and the chosen learning rates. It runs nothing.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import Any

import experiments.cb_dybw as paper
from cbdybw.clusters.guard import guard
from cbdybw.errors import BadInput
from cbdybw.storage import atomic
from experiments import report, rows
from experiments.cb_dybw import law_table, learning_table, rates
from experiments.cb_dybw.learning import workloads
from experiments.claims import Rows
from experiments.look import FULL
from experiments.reading import TITLES, model

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


def write(out: Path) -> Path:
    """Write OUT/report.html from the rows, figures and verdicts in OUT; its path."""
    groups = rows.collected(out)
    try:
        verdicts = atomic.read_json(out / "verdicts.json")
    except FileNotFoundError:
        raise BadInput(
            f"{out}: holds no verdicts.json; name the folder of "
            "python -m experiments.reproduce --paper=cb_dybw"
        ) from None
    atomic.write_text(out / "report.html", html(groups, verdicts, out / "figures"))
    return out / "report.html"


def html(groups: Rows, verdicts: list[dict[str, Any]], folder: Path) -> str:
    """The page; `folder` holds the figures."""
    sections = "\n".join(_section(group, groups, folder) for group in paper.FIGURES)
    return (
        '<!doctype html>\n<html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>cb-DyBW: claims and results</title><style>{STYLE}</style>\n<body>"
        "<h1>cb-DyBW: what the paper claims, and what came out</h1>"
        f'<p class="soft">{escape(_origin(groups))}</p>'
        f"<h2>Verdicts</h2>{verdict_table(verdicts)}{sections}"
        f"<h2>Again</h2>{_again()}</body></html>\n"
    )


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


def _section(group: str, groups: Rows, folder: Path) -> str:
    """A group's figures, after what is to be seen in them; empty where it has no rows."""
    if group not in groups:
        return ""
    module = paper.FIGURES[group]
    head = f'<h2>{module.TITLE}</h2><p class="soft">{escape(module.SAYS)}</p>'
    if group == "learning":
        return head + _learning(groups[group], folder)
    if group == "rates":
        return head + _figures(folder.glob("rates*.svg")) + _chosen(groups[group])
    name = {"mpi": "prediction"}.get(group, group)
    body = _figures(folder.glob(f"{name}*.svg"))
    if group == "laws":
        body += _table(law_table.table(groups[group]), left=3)
    return head + body


def _learning(found: list[dict[str, Any]], folder: Path) -> str:
    """A workload at a time, all but the one with the most runs folded."""
    parts, all_runs = [], workloads(found)
    most = max(all_runs, key=lambda name: len(all_runs[name]))
    tables = learning_table.tables(found).values()
    for (name, runs), table in zip(all_runs.items(), tables, strict=True):
        s = runs[0].settings
        opened = " open" if name == most else ""
        body = _table(table, left=1) + _figures(folder.glob(f"{name}-*.svg"))
        label = escape(f"{model(s)}, N={s.workers}, target {s.target_loss:g}")
        parts.append(f"<details{opened}><summary>{label}</summary>{body}</details>")
    return "".join(parts)


def _figures(paths: Iterable[Path]) -> str:
    """Wide ones alone, and scrolled on a phone; the others two abreast."""
    wide, narrow = [], []
    for path in sorted(paths):
        svg, inches = inline(path)
        if inches == FULL:
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


def _table(lines: list[list[str]], left: int) -> str:
    """A table with its head; the first `left` columns are words."""

    def cells(line: list[str], tag: str) -> str:
        kind = ['class="word"'] * left + [""] * (len(line) - left)
        return "".join(f"<{tag} {k}>{escape(x)}</{tag}>" for k, x in zip(kind, line, strict=True))

    body = "".join(f"<tr>{cells(line, 'td')}</tr>" for line in lines[1:])
    return (
        f'<div class="wide"><table class="numbers"><thead><tr>{cells(lines[0], "th")}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _chosen(found: list[dict[str, Any]]) -> str:
    """η0 by workload and algorithm."""
    chosen = rates.choose(found)
    names = [a for a in TITLES if any(a in by_algorithm for by_algorithm in chosen.values())]
    lines = [["η0", *(TITLES[a] for a in names)]]
    for workload, by_algorithm in chosen.items():
        eta0 = [f"{by_algorithm[a]['eta0']:g}" if a in by_algorithm else "–" for a in names]
        lines.append([workload, *eta0])
    return _table(lines, left=1)


def _origin(groups: Rows) -> str:
    every = [row for found in groups.values() for row in found]
    commits = sorted({str(row["commit"])[:12] for row in every})
    versions = every[0]["versions"] if every else {}
    return (
        f"{len(every)} runs, commit {', '.join(commits)}; "
        + ", ".join(f"{name} {number}" for name, number in versions.items())
        + ". Seconds are those of the virtual clock wherever it does not say MPI. Intervals are "
        "95 % (Student's t over seeds)."
    )


def _again() -> str:
    lines = {
        "all of it": "python -m experiments.reproduce --paper=cb_dybw --scale=short",
        "the figures, verdicts and this page alone": "python -m experiments.reproduce "
        "--paper=cb_dybw --figures_only --out=OUT",
        "one figure": "python -m experiments.cb_dybw.laws OUT",
        "one cell": "python -m experiments.train "
        "--flagfile=experiments/cb_dybw/cells/GROUP/NAME.flags --seed=0",
    }
    items = "".join(f"<dt>{what}</dt><dd><code>{line}</code></dd>" for what, line in lines.items())
    return f"<dl>{items}</dl>"


def main(argv: list[str]) -> None:
    """The binary."""
    with guard():
        if len(argv) != 2:
            raise BadInput(f"{len(argv) - 1} arguments: give the folder of a sweep's results")
        print(write(Path(argv[1])))


if __name__ == "__main__":
    main(sys.argv)
