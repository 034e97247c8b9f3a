"""A paper's experiments: `python -m experiments.reproduce --paper=cb_dybw --scale=short`

Runs every cell of the scale that has not been run yet, collects the rows into OUT/GROUP.jsonl,
draws the figures into OUT/figures, writes the verdicts, and puts all together in OUT/report.html.
Killed, it goes on where it was when it is started again. `--figures_only` does all but the runs,
from the JSONL files in --out.

Several machines share a scale through a common --out: `--part=2/5` does the second of five parts, a
Slurm array needs no --part, and under `mpirun -n 5` with `--jobs=mpi` each rank does its part of
the virtual cluster's cells. The part that ends last collects and draws.

Exit codes: 0 all is done, 1 some run failed, 2 unusable input.
"""

from __future__ import annotations

import os
import re
from functools import partial
from pathlib import Path
from typing import NamedTuple

from absl import app, flags
from rich.console import Console

from cbdybw.clusters import launch
from cbdybw.clusters.guard import guard
from cbdybw.errors import BadInput
from cbdybw.storage import atomic
from experiments import cells, ranks, rows, sweep
from experiments.cells import Run
from experiments.countdown import WIDTH, follow
from experiments.progress import Steps, stderr
from experiments.rows import Row
from experiments.settings import parse_flags
from experiments.sweep import Place

MARK = "sweep.json"
"""What a sweep's folder is known by: its paper and scale."""


class Share(NamedTuple):
    """Part i of n of a sweep's runs, done in `jobs` processes."""

    i: int
    n: int
    jobs: int

    def of(self, runs: list[Run]) -> list[Run]:
        """The runs of this part."""
        return runs[self.i - 1 :: self.n]


def reproduce(
    paper: str,
    every: list[Run],
    clusters: tuple[str, ...],
    share: Share,
    place: Place,
    steps: Steps,
) -> list[Row]:
    """Do our share of the runs on `clusters`; when none of anybody's is missing any more, collect
    and draw. `every`: the scale's runs. Returns the rows of those of our share that failed.
    """
    wanted = [run for run in every if run.cell.cluster in clusters]
    ours = share.of(wanted)
    run_all(ours, share.jobs, place, steps)
    if all(map(place.store.read, wanted)):
        rows.collect(filter(None, map(place.store.read, every)), place.out)
        draw(paper, place.out, steps)
    return [row for row in map(place.store.read, ours) if row and row["status"] == "failed"]


def run_all(runs: list[Run], jobs: int, place: Place, steps: Steps) -> None:
    """Do those of `runs` that are not done yet: first side by side, then on MPI, then those that
    are timed, one at a time."""
    todo = sweep.unfinished(runs, place.store)
    if not todo:
        return
    with steps.step("Data") as step:
        able = sweep.prepare_data(todo, place, lambda line: step.note(line[:WIDTH]))
        step.note("prepared")
    virtual, mpi, alone = ([run for run in able if run.cell.cluster == c] for c in cells.CLUSTERS)
    follow("Virtual cluster", virtual, jobs, partial(sweep.each, virtual, place, jobs), steps)
    follow("MPI ranks", mpi, 1, partial(ranks.each, mpi, place), steps)
    follow("Wall clock", alone, 1, partial(sweep.each, alone, place, 1), steps)


def draw(paper: str, out: Path, steps: Steps) -> None:
    """Figures, verdicts and the report from the rows that are collected in `out`."""
    from experiments import drawing  # here, because matplotlib takes a second

    found = rows.collected(out)
    if not found:
        raise BadInput(f"--out={out}: no rows there; leave out --figures_only, or name a sweep's")
    with steps.step("Figures") as step:
        step.note(f"{len(drawing.figures(paper, found, out))} drawn")
    with steps.step("Verdicts") as step:
        step.note(f"{drawing.verdicts(paper, found, out)} claims: {drawing.page(paper, out)}")


def claim(out: Path, paper: str, scale: str) -> None:
    """Make `out` the folder of this sweep; BadInput when it is something else."""
    mine = {"paper": paper, "scale": scale}
    try:
        if (out / MARK).exists():
            with atomic.readable(out / MARK):
                theirs = atomic.read_json(out / MARK)
                if not (isinstance(theirs, dict) and theirs.keys() == mine.keys()):
                    raise ValueError("not the mark of a sweep")
                holds = " at scale ".join(theirs[name] for name in mine)
            if theirs != mine:
                raise BadInput(
                    f"--out={out}: holds the rows of {holds}; name another folder, or that scale"
                )
            return
        # Another part of this sweep may be about to put its mark there: it has a dot until then.
        if out.exists() and any(not path.name.startswith(".") for path in out.iterdir()):
            raise BadInput(f"--out={out}: holds other files than a sweep's; name a new folder")
        out.mkdir(parents=True, exist_ok=True)
        atomic.write_json(out / MARK, mine)
    except OSError as error:
        raise BadInput(f"--out={out}: {error.strerror}; name another folder") from None


def share_of(jobs: str, part: str, cluster: str) -> Share:
    """Our share, as the flags, the Slurm array or the launcher of MPI ranks say."""
    if jobs == "mpi":
        placed = launch.placement()
        if placed is None or cluster != "virtual" or part:
            raise BadInput(
                "--jobs=mpi: is for ranks that share the virtual cluster's cells; "
                "start with mpirun, and give --cluster=virtual and no --part"
            )
        launch.forget()  # the runs are no part of an MPI job
        return Share(placed[0] + 1, placed[1], 1)
    if not (jobs.isdecimal() and int(jobs) >= 1):
        raise BadInput(f"--jobs={jobs}: use a number of processes from 1 up, or mpi")
    return Share(*_part(part), int(jobs))


def _part(given: str) -> tuple[int, int]:
    """(i, n) of --part=i/n, or of the Slurm array that this process belongs to."""
    if not given and "SLURM_ARRAY_TASK_ID" in os.environ:
        first = int(os.environ.get("SLURM_ARRAY_TASK_MIN", "0"))
        i = int(os.environ["SLURM_ARRAY_TASK_ID"]) - first + 1
        given = f"{i}/{os.environ['SLURM_ARRAY_TASK_COUNT']}"
    match = re.fullmatch(r"(\d+)/(\d+)", given or "1/1")
    i, n = map(int, match.groups()) if match else (0, 0)
    if not 1 <= i <= n:
        raise BadInput(f"--part={given}: no part; use i/n with i from 1 to n, such as 2/5")
    return i, n


def clusters_of(cluster: str) -> tuple[str, ...]:
    """The clusters whose cells are run."""
    if cluster not in ("all", *cells.CLUSTERS):
        raise BadInput(f"--cluster={cluster}: not known; use all or {' or '.join(cells.CLUSTERS)}")
    return cells.CLUSTERS if cluster == "all" else (cluster,)


def report(failures: list[Row], console: Console) -> None:
    """A line for each run that failed."""
    for row in failures:
        line = f"failed: {row['cell']}@{row['seed']}: {row['reason']}"
        console.print(line, soft_wrap=True, markup=False)


def main(argv: list[str]) -> int:
    """The binary."""
    del argv
    given, console = flags.FLAGS, stderr()
    with guard():
        every = cells.runs_of(cells.load(given.paper), given.scale)
        out = Path(given.out or f"runs/{given.paper}-{given.scale}")
        with Steps(console) as steps:
            if given.figures_only:
                draw(given.paper, out, steps)
                return 0
            clusters = clusters_of(given.cluster)
            share = share_of(given.jobs, given.part, given.cluster)
            claim(out, given.paper, given.scale)
            place = Place(out, given.raw_dir)
            failures = reproduce(given.paper, every, clusters, share, place, steps)
        report(failures, console)
        return 1 if failures else 0


def _define_flags() -> None:
    cores = len(os.sched_getaffinity(0))
    flags.DEFINE_string("paper", "cb_dybw", f"whose: {', '.join(cells.PAPERS)}")
    flags.DEFINE_string("scale", "short", f"how much of it: {', '.join(cells.SCALES)}")
    flags.DEFINE_string(
        "cluster",
        "all",
        "whose cells: virtual, mpi, alone (timed) or all",
    )
    flags.DEFINE_string("jobs", str(cores), "processes that do runs at once; mpi: those of mpirun")
    flags.DEFINE_string("out", "", "folder of the sweep; empty: runs/PAPER-SCALE")
    flags.DEFINE_string("raw_dir", "", "folder of original files, where data has to be prepared")
    flags.DEFINE_string("part", "", "i/n: do only part i of n; empty: all, or a Slurm array's")
    flags.DEFINE_bool("figures_only", False, "draw from the rows in --out; run nothing")


def _parse(argv: list[str]) -> list[str]:
    with guard():
        return parse_flags(argv)


if __name__ == "__main__":
    _define_flags()
    app.run(main, flags_parser=_parse)
