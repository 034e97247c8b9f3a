"""Measure a cluster, so that the virtual one can predict runs on it: links, cards, processors.

    mpirun … -n 4 python -m experiments.calibrate --out=OUT --dim=148298
    mpirun … -n 4 python -m experiments.calibrate --out=OUT --workload=2nn --workers=4 …

on the hosts, and with the ranks, that training is to have. `--dim` is the number of values in a
vector; without it the flags are those of `experiments.train`, the workload says how large its
vectors are, and the time of a minibatch is measured on all workers at once as well. Run time about
25 s. OUT/links.txt has what `--network=links=…` reads, OUT/machines.toml what
`--delay=machines:path=…` does; the line to use is printed under the table. The last line on stdout
is one JSON object. Rates are megabytes per second.

Measure while nothing else runs. Where ranks share a host, the first of a host to talk to all has
the card by itself: put one rank on each host to learn what the hosts can do.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from absl import app, flags
from rich import box
from rich.console import Console
from rich.table import Table

from cbdybw.clusters.guard import guard
from cbdybw.clusters.launch import placement
from cbdybw.clusters.root import on_root
from cbdybw.clusters.worker import keyed_rng
from cbdybw.errors import BadInput
from cbdybw.storage import atomic
from experiments import building
from experiments.calibration import Card, Link
from experiments.settings import define_flags, from_flags, parse_flags

LINKS, MACHINES = "links.txt", "machines.toml"
_PAIRS, _CARDS, _STEPS = 8.0, 8.0, 3.0
"""Seconds that links, cards and minibatches are measured for."""


class Calibration(NamedTuple):
    """What was measured; lists have an entry for each rank, times are seconds.

    `links` are those of ranks i < j; `overheads` what sending a small message takes the sender;
    `steps` one minibatch, 0 where none was computed.
    """

    hosts: list[str]
    links: dict[tuple[int, int], Link]
    cards: list[Card]
    overheads: list[float]
    steps: list[float]


def measure(nbytes: int, step: Callable[[int], object] | None) -> Calibration:
    """All ranks together, for vectors of `nbytes` and minibatches that `step(n)` computes."""
    from mpi4py import MPI

    from experiments import calibration

    comm = MPI.COMM_WORLD.Dup()
    return Calibration(
        comm.allgather(MPI.Get_processor_name()),
        calibration.links(comm, nbytes, _PAIRS),
        calibration.cards(comm, _CARDS),
        calibration.overheads(comm),
        calibration.steps(comm, step, _STEPS),
    )


def work() -> tuple[int, Callable[[int], object] | None]:
    """Bytes of a vector, and what computes a minibatch on this rank, as the flags say."""
    if flags.FLAGS.dim is not None:
        return 4 * flags.FLAGS.dim, None
    settings = replace(from_flags(), cluster="mpi")
    building.check_ranks(settings)
    problem, _ = building.build_problem(settings, log=_say)
    rank = placement()[0]
    nbytes = 4 * max(1, problem.dim)
    if rank >= settings.workers:
        return nbytes, None
    w = problem.initial(keyed_rng(settings.seed, "initial", 0, 0))
    if hasattr(problem, "part"):
        return nbytes, partial(problem.part, w, rank, settings.workers)
    return nbytes, lambda n: problem.gradient(w, problem.batch(rank, n))


def links_file(found: Calibration) -> str:
    """The lines of a file for `--network=links=…`. [choice] A card's rate is the mean of both
    directions."""
    lines = ["# measured by experiments.calibrate: `i rate` of cards, `i j latency bandwidth` of"]
    lines += ["# links; seconds and bytes per second"]
    lines += [f"{rank} {(out + into) / 2:.5g}" for rank, (out, into) in enumerate(found.cards)]
    for (i, j), link in sorted(found.links.items()):
        lines.append(f"{i} {j} {link.latency:.4g} {link.bandwidth:.5g}")
    return "\n".join(lines) + "\n"


def machines_file(found: Calibration) -> str:
    """The text of a file for `--delay=machines:path=…`: each worker a machine."""
    latency, bandwidth = zip(*found.links.values(), strict=True)
    lines = ['description = "measured by experiments.calibrate"', "", "[network]"]
    lines += [f"bandwidth = {min(bandwidth)!r}", f"latency = {max(latency)!r}"]
    for rank, seconds in enumerate(found.steps):
        if seconds:
            name = json.dumps(f"rank {rank} on {found.hosts[rank]}")
            lines += ["", "[[machines]]", f"name = {name}", "count = 1"]
            lines += [f"seconds = {seconds!r}", "slowed = false"]
    return "\n".join(lines) + "\n"


def table(found: Calibration) -> Table:
    """A line for each rank, in 80 columns: its card, its slowest link, its processor."""
    view = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    view.add_column("rank on host", max_width=19, no_wrap=True)
    for head in ("out", "in", "slowest", "MB/s", "ms", "send µs", "step ms"):
        view.add_column(head, justify="right", no_wrap=True)
    for rank, (out, into) in enumerate(found.cards):
        own = {sum(pair) - rank: link for pair, link in found.links.items() if rank in pair}
        peer, link = min(own.items(), key=lambda item: item[1].bandwidth)
        view.add_row(
            f"{rank} {found.hosts[rank]}",
            f"{out / 1e6:.4g}",
            f"{into / 1e6:.4g}",
            f"to {peer}",
            f"{link.bandwidth / 1e6:.4g}",
            f"{1e3 * link.latency:.3g}",
            f"{1e6 * found.overheads[rank]:.3g}",
            f"{1e3 * found.steps[rank]:.3g}" if found.steps[rank] else "",
        )
    return view


def result(found: Calibration, nbytes: int, line: str) -> dict[str, Any]:
    """The JSON object."""
    return found._asdict() | {
        "links": [[i, j, *link] for (i, j), link in sorted(found.links.items())],
        "nbytes": nbytes,
        "flags": line,
    }


def written(found: Calibration, out: Path) -> str:
    """Write the files; the flags that name them."""
    atomic.write_text(out / LINKS, links_file(found))
    line = f"--network=links={out / LINKS}"
    if any(found.steps):
        atomic.write_text(out / MACHINES, machines_file(found))
        line += f" --delay=machines:path={out / MACHINES}"
    return line


def _folder() -> Path:
    """Where the files go; made."""
    out = Path(flags.FLAGS.out)
    if "," in str(out):
        raise BadInput(f"--out={out}: a comma ends the path in --network=links=…; use another name")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"--out={out}: {error.strerror}; name a folder that can be made") from None
    return out


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main(_: list[str]) -> None:
    """The binary."""
    with guard():
        rank, size = placement() or (0, 1)
        if size < 2:
            raise BadInput("calibrate: 1 MPI rank is running; start it with mpirun -n 2 or more")
        out = on_root(_folder, mpi=True)
        nbytes, step = work()
        found = measure(nbytes, step)
        if rank == 0:
            line = written(found, out)
            Console(highlight=False, width=80, color_system=None).print(table(found))
            print(line)
            print(json.dumps(result(found, nbytes, line), allow_nan=False), flush=True)


def _parse(argv: list[str]) -> list[str]:
    with guard():
        rest = parse_flags(argv)
        if not flags.FLAGS.out:
            raise BadInput("--out is missing; name a folder for the files")
        return rest


if __name__ == "__main__":
    define_flags()
    flags.DEFINE_string("out", "", "folder to write links.txt to, and machines.toml")
    flags.DEFINE_integer("dim", None, "values in a vector; no workload is built", lower_bound=1)
    app.run(main, flags_parser=_parse)
