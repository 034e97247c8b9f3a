"""A server and three workers, each in a network namespace of its own, one behind a slow link.

    python -m experiments.adsp.namespaces --out=OUT

Run time about 3 minutes. Needs root and the programs ip, tc and nsenter; elsewhere it says so and
leaves with exit code 0. Each namespace is a host to mpirun, whose messages go over TCP through
token buckets at both ends of each cable, at the rates of `machines/slow_link.txt`. The virtual
cluster predicts the same runs from the same file. OUT/links.jsonl has the rows of both; printed
are steps and commits per second.

Workers are five times as fast as `ratio.toml` says, models are as large as the CNN, and ADSP has a
fixed commit rate, for nothing is looked at. [choice] All of it. Expect predictions within some 7
per cent. (The rows in `results` are older: they were predicted by links alone, with a server whose
card sends one answer after the other, and say 15 % for BSP.)
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from absl import app, flags
from rich import box
from rich.console import Console
from rich.table import Table

from cbdybw.clusters.guard import guard
from experiments import cell_files, cells, prediction, rows, sweep
from experiments.adsp.split import commits_per_second, steps_per_second
from experiments.cell_files import Row
from experiments.cells import Run
from experiments.hosts import Unavailable, hosts
from experiments.sweep import Place

LINKS = "experiments/adsp/machines/slow_link.txt"
ALGORITHMS = {"bsp": {}, "fixed_adacomm": {"tau": 10}, "adsp": {"commit_rate": 4}}
SECONDS = 30.0
SERVER = 3


def flag_files() -> dict[str, str]:
    """links/NAME.flags → content: every algorithm on both clusters."""
    found = []
    for algorithm, own in ALGORITHMS.items():
        for cluster in ("mpi", "virtual"):
            common = {
                "algorithm": algorithm,
                "cluster": cluster,
                "workers": SERVER,
                "workload": "quadratic:dim=148298",
                "delay": "machines:path=experiments/adsp/machines/ratio.toml,scale=0.2",
                "network": f"links={LINKS}" if cluster == "virtual" else "",
                "eta_decay": 1.0,
                "iterations": 5000,
                "max_time": SECONDS,
                "time_factor": 0.1,
                "eval_every": 0,
            }
            found.append(("links", Row(f"{algorithm}-{cluster}", {"short": 1}, common | own)))
    return cell_files.texts(found, lambda settings: settings.max_time)


def rates() -> dict[int, float]:
    """Bytes per second of each rank's card, as the file says."""
    lines = (line.split("#")[0].split() for line in Path(LINKS).read_text().splitlines())
    return {int(words[0]): float(words[1]) for words in lines if words}


def measure(runs: Sequence[Run], place: Place) -> None:
    """Do runs on ranks, one on each host."""
    arguments = map(sweep.argument, runs)
    command = [sys.executable, "-m", "experiments.sweep", f"--out={place.out}", *arguments]
    with hosts(list(rates().values())) as four:
        argv, environment = four.mpirun(command, ulfm=False)
        with subprocess.Popen(argv, env=environment) as process:
            code = process.wait(timeout=60 + 2 * SECONDS * len(runs))
    if code:
        sys.exit(f"mpirun: ended with exit code {code}; what it said stands above")


def table(found: list[rows.Row]) -> Table:
    """Predicted and measured, in 80 columns."""
    view = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for head in ("", "per second"):
        view.add_column(head)
    for head in ("predicted", "measured", "off"):
        view.add_column(head, justify="right")
    numbers = {"steps of all": steps_per_second, "commits of a worker": commits_per_second}
    for name, number in numbers.items():
        for p in prediction.points(found, number):
            view.add_row(
                p.title,
                name,
                f"{p.predicted.mean:.3g}",
                f"{p.measured.mean:.3g}",
                f"{p.error.mean:+.1%}",
            )
    return view


def main(_: list[str]) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # namespaces go then, too
    with guard():
        place = Place(Path(flags.FLAGS.out))
        folder = place.out / "cells"
        cell_files.rewrite(folder, flag_files())
        every = [Run(cells.read(path), 0) for path in sorted(folder.glob("links/*.flags"))]
        mpi, virtual = ([r for r in every if r.cell.cluster == c] for c in ("mpi", "virtual"))
        try:
            measure(mpi, place)
        except Unavailable as missing:
            print(f"skipped: no network namespaces here ({missing})")
            return
        sweep.in_this_process(virtual, place)
        rows.collect(filter(None, map(place.store.read, every)), place.out)
        Console(highlight=False).print(table(rows.collected(place.out)["links"]))


if __name__ == "__main__":
    flags.DEFINE_string("out", None, "folder to write, links.jsonl among others", required=True)
    app.run(main)
