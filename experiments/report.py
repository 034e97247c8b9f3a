"""The demo's report: one self-contained HTML file, and its main picture as a file of its own."""

from __future__ import annotations

from html import escape
from pathlib import Path

from cbdybw import theory
from cbdybw.storage import atomic
from experiments import figures
from experiments.checks import Check
from experiments.comparison import COLUMNS, Cell, Run, machine, notes, reduction, setting, table

STYLE = """
:root { color-scheme: light; --ink: #1d1d1f; --soft: #5c5c62; --line: #dcdce0; --blue: #0072b2; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 62rem; padding: 2rem 1.2rem 4rem; color: var(--ink);
       background: #fff; font: 17px/1.55 Charter, "Bitstream Charter", Georgia, serif; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .4rem; }
h2 { font-size: 1.25rem; margin: 2.6rem 0 .6rem; }
p { max-width: 44rem; }
.soft, figcaption, dd, dt, .notice { font: 14px/1.5 system-ui, sans-serif; color: var(--soft); }
.headline { font-size: 1.15rem; }
.headline b { color: var(--blue); }
.notice { border-left: 4px solid #d55e00; padding: .4rem .8rem; color: var(--ink); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font: 14px/1.45 system-ui, sans-serif;
        font-variant-numeric: tabular-nums; width: 100%; max-width: 46rem; }
th, td { padding: .28rem .7rem; text-align: right; white-space: nowrap; }
th { color: var(--soft); font-weight: 500; vertical-align: bottom; }
th[scope=row], td.what { text-align: left; }
th[scope=rowgroup] { text-align: left; color: var(--ink); font-weight: 600; padding-top: .8rem; }
tbody { border-top: 1px solid var(--line); }
ul.checks { list-style: none; padding: 0; }
ul.checks b { display: inline-block; width: 1.4em; }
.pass { color: #007a5a; } .fail { color: #c1121f; }
.pair { display: grid; gap: 0 2rem;
        grid-template-columns: repeat(auto-fit, minmax(min(22rem, 100%), 1fr)); }
figure { margin: 1rem 0; } figure svg { width: 100%; height: auto; }
.wide svg { min-width: 44rem; }
svg text { font-family: system-ui, sans-serif; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .25rem 1rem; margin: 0; }
dd { margin: 0; overflow-wrap: anywhere; }
code { font-size: .86em; overflow-wrap: anywhere; }
@media (max-width: 34rem) { body { font-size: 16px; padding: 1.2rem .9rem 3rem; }
  table { font-size: 12.5px; } th, td { padding: .25rem .3rem; }
  dl { grid-template-columns: 1fr; gap: 0; } dd { margin-bottom: .5rem; } }
"""


def write(cells: list[Cell], checks: list[Check], folder: Path) -> Path:
    """Write report.html and ranks.svg into `folder`; the path of the page."""
    picture = figures.svg("ranks", figures.ranks, cells[0], cells[-1])
    atomic.write_text(folder / "ranks.svg", picture)
    page = folder / "report.html"
    atomic.write_text(page, html(cells, checks, picture))
    return page


def html(cells: list[Cell], checks: list[Check], picture: str) -> str:
    """The page; it loads nothing from anywhere."""
    body = "\n".join(
        [
            headline(cells),
            notice(cells[0]),
            "<h2>Measured, predicted, exact</h2>",
            table_html(cells),
            *(f'<p class="soft">{escape(line)}</p>' for line in notes(cells)),
            checks_html(checks),
            "<h2>What the ranks do</h2>",
            figure(
                f'<div class="wide">{picture}</div>',
                "Under cb-Full every rank waits for the slowest one in every iteration. Under "
                "cb-DyBW an iteration ends as soon as one new edge of the connecting path has both "
                "ends finished; who is late goes on computing and joins a later iteration. Shown "
                "are the ten iterations in a row whose length is nearest to the mean.",
                cells[-1].measured,
            ),
            "<h2>Learning by the clock</h2>",
            seconds(cells),
            "<h2>Learning by the iteration</h2>",
            iterations(cells),
            "<h2>What was run</h2>",
            provenance(cells),
        ]
    )
    return (
        '<!doctype html>\n<html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>cb-DyBW against cb-Full</title><style>{STYLE}</style>\n"
        f"<body>{body}</body></html>\n"
    )


def headline(cells: list[Cell]) -> str:
    """The claim, and what it comes to in the end, with the setting."""
    full, dybw = cells[0], cells[-1]
    times = [c.measured.result["mean_iteration_seconds"] for c in (dybw, full)]
    measured, exact = reduction(*times), reduction(dybw.exact, full.exact)
    return (
        "<h1>cb-DyBW against cb-Full on six MPI workers</h1>"
        f'<p class="headline">An iteration of cb-DyBW is <b>{100 * measured:.1f} % shorter</b> '
        f"than one of cb-Full with the global barrier; exact theory says {100 * exact:.1f} %. "
        f"{_sooner(full.measured, dybw.measured)}</p>"
        f'<p class="soft">{escape(setting(dybw.measured, short=True))}, measured on '
        f"{escape(machine(dybw.measured))}</p>"
    )


def _sooner(full: Run, dybw: Run) -> str:
    """What is left of the gain when the same loss is asked for."""
    target = full.settings.target_loss
    times = [run.result["time_to_target"] for run in (dybw, full)]
    if None in times:
        return f"Not both of them reach a training loss of {target:.2f}."
    return (
        f"It also uses fewer gradients in each iteration, so a training loss of {target:.2f} comes "
        f"after {times[0]:.1f} s instead of {times[1]:.1f} s: <b>{100 * reduction(*times):.0f} % "
        "sooner</b>."
    )


def notice(cell: Cell) -> str:
    """The loud line about stand-in data, where there is one."""
    text = cell.measured.manifest.get("notice")
    return f'<p class="notice">{escape(text)}</p>' if text else ""


def table_html(cells: list[Cell]) -> str:
    """The terminal's table; a column has one clock only."""
    heads = "".join(f'<th scope="col">{"<br>".join(lines)}</th>' for lines in COLUMNS)
    groups = []
    for section in table(cells):
        rows = "".join(
            f'<tr><th scope="row">{escape(row.title)}</th>'
            + "".join(f"<td>{escape(value)}</td>" for value in row[1:])
            + "</tr>"
            for row in section.rows
        )
        name = f'<tr><th scope="rowgroup" colspan="4">{escape(section.quantity)}</th></tr>'
        groups.append(f"<tbody>{name}{rows}</tbody>")
    return (
        f'<div class="wide"><table><thead><tr><th></th>{heads}</tr></thead>'
        f"{''.join(groups)}</table></div>"
    )


def checks_html(checks: list[Check]) -> str:
    """A line for each verdict."""
    lines = (
        f'<li><b class="{"pass" if check.passed else "fail"}">{check.mark}</b>'
        f"{escape(check.says)}</li>"
        for check in checks
    )
    return f'<ul class="checks">{"".join(lines)}</ul>'


def figure(svg: str, caption: str, run: Run) -> str:
    """A picture, what to see in it, and the setting without which it means nothing."""
    return (
        f"<figure>{svg}<figcaption>{escape(caption)} "
        f"({escape(setting(run, short=True))})</figcaption></figure>"
    )


def seconds(cells: list[Cell]) -> str:
    """Learning by either clock, side by side and never in one plot."""
    draw, last = figures.svg, cells[-1]
    return _grid(
        figure(
            draw("wall", figures.learning_by_wall_clock, cells),
            "Measured: by the wall clock of the MPI ranks.",
            last.measured,
        ),
        figure(
            draw("virtual", figures.learning_by_virtual_clock, cells),
            "Predicted: by the virtual clock, with the same draws.",
            last.predicted,
        ),
    )


def iterations(cells: list[Cell]) -> str:
    """What an iteration brings, how long it lasts and whom it leaves out."""
    draw, last = figures.svg, cells[-1]
    return _grid(
        figure(
            draw("iteration", figures.learning_by_iteration, cells),
            "cb-Full uses all gradients, cb-DyBW those that were finished, so each of its "
            "iterations brings less. The two barriers of cb-Full learn alike.",
            last.measured,
        ),
        figure(
            draw("durations", figures.durations, cells),
            "How long iterations last.",
            last.measured,
        ),
        figure(
            draw("backup", figures.backup_workers, cells),
            "How many neighbours cb-DyBW leaves out: nobody sets it, the threshold decides.",
            last.measured,
        ),
        figure(
            draw("network", figures.network, last),
            "The graph; solid edges are DTUR's connecting path. Numbers: share of cb-DyBW's "
            "iterations in which the edge was averaged.",
            last.measured,
        ),
    )


def _grid(*pictures: str) -> str:
    return f'<div class="pair">{"".join(pictures)}</div>'


def provenance(cells: list[Cell]) -> str:
    """All that it takes to do it again."""
    run = cells[-1].measured
    about, data = run.manifest, run.data
    dtur = theory.dtur_exponential(run.settings.workers, run.settings.edge_rule)
    facts = {
        "setting": setting(run),
        "commit": f"{about['commit']}{' (with changes)' if about['dirty'] else ''}",
        "started": about["started"],
        "machine": machine(run),
        "versions": ", ".join(f"{name} {number}" for name, number in about["versions"].items()),
        "data": f"{data['dataset']} from {data['source']['name']}, {data['source']['place']}"
        if data
        else "none",
        "theory": f"θ̄ = {dtur.mean:.5f} and H_N = {dtur.full:.5f} in units of the mean delay",
        "runs": ", ".join(str(r.folder) for c in cells for r in (c.measured, c.predicted)),
        "again": "python -m experiments.train --flagfile=RUN/flags.txt --run_dir=NEW, those on MPI "
        f"under mpirun -n {run.settings.workers}",
    }
    rows = "".join(f"<dt>{k}</dt><dd>{escape(str(v))}</dd>" for k, v in facts.items())
    return f"<dl>{rows}</dl>"
