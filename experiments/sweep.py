"""A sweep: runs of cells, each of which leaves one row in OUT/raw.

    python -m experiments.sweep --out=OUT experiments/cb_dybw/cells/GROUP/NAME.flags@SEED …

does the runs that are named, one after the other in this process, or under mpirun in these ranks.
`experiments.reproduce` does those of a scale, many at once. A run that has a row is not done again
by `unfinished`, so that a killed sweep goes on where it was; one that failed is.
"""

from __future__ import annotations

import shutil
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from absl import app, flags

from cbdybw.clusters.guard import guard
from cbdybw.clusters.launch import is_root
from cbdybw.errors import BadInput
from cbdybw.learning.workloads import needs_data
from experiments import cells, kinds, pool, rows
from experiments.cells import Run
from experiments.rows import Row, Store

RAW = "raw"
"""The folder of rows in that of a sweep."""
RUNS = "runs"
"""The folder of folders that runs have while they go on."""


class Place(NamedTuple):
    """Where a sweep works: `out` is its folder, `raw_dir` that of the original data, or empty."""

    out: Path
    raw_dir: str = ""

    @property
    def store(self) -> Store:
        """The rows."""
        return Store(self.out / RAW)


def unfinished(runs: Iterable[Run], store: Store) -> list[Run]:
    """Those that have no row, or failed; of several with the same flags, which share a row, one."""
    missing: dict[str, Run] = {}
    for run in runs:
        if (store.read(run) or {"status": "failed"})["status"] == "failed":
            missing.setdefault(run.key, run)
    return list(missing.values())


def prepare_data(runs: Iterable[Run], place: Place, log: Callable[[str], None]) -> list[Run]:
    """Make the data sets that are missing, one after the other; the runs that can be done.

    The others get the row of a failed run: their data cannot be had, or their flags not be used.
    """
    able, refusals = [], {}
    for run in runs:
        try:
            settings = run.settings(place.raw_dir)
            if needs_data(settings.workload):
                source = settings.dataset, settings.raw_dir
                if source in refusals:  # do not ask the network again for every run
                    raise refusals[source]
                try:
                    kinds.module(run.cell.kind).prepare_data(settings, log)
                except BadInput as refusal:
                    refusals[source] = refusal
                    raise
            able.append(run)
        except BadInput as error:
            place.store.write(run, rows.failed(run, str(error)))
    return able


def each(
    runs: Iterable[Run], place: Place, jobs: int, begun: Callable[[Run], None]
) -> Iterator[tuple[Run, Row]]:
    """Do runs that need no ranks in `jobs` processes; each with its row, as they end."""
    for (run, _), row in pool.each(
        [(run, place) for run in runs], _work, jobs, lambda task: begun(task[0])
    ):
        if isinstance(row, pool.Died):
            row = rows.failed(run, str(row))
            place.store.write(run, row)
        yield run, row


def _work(task: tuple[Run, Place]) -> Row:
    run, place = task
    try:
        row = rows.ended(run, _outcome(run, place))
    except BadInput as error:
        row = rows.failed(run, str(error))
    except Exception as error:  # whatever it is, it stands in the row and ends no other run
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        row = rows.failed(run, reason, traceback.format_exc())
    place.store.write(run, row)
    return row


def in_this_process(runs: Iterable[Run], place: Place) -> None:
    """Do runs one after the other, on each rank if there are several.

    Whatever ends one of them is raised: among ranks a failure has to end them all.
    """
    for run in runs:
        outcome = _outcome(run, place)
        if outcome is not None:
            place.store.write(run, rows.ended(run, outcome))


def _outcome(run: Run, place: Place) -> rows.Kept | None:
    """A cell that names a folder for its run has one in the sweep's instead, until it has ended."""
    settings, outcome = run.settings(place.raw_dir), kinds.module(run.cell.kind).outcome
    if not getattr(settings, "run_dir", ""):
        return outcome(settings, log=_silent)
    folder = place.out / RUNS / run.key
    forget = partial(shutil.rmtree, folder, ignore_errors=True) if is_root() else lambda: None
    forget()  # what a killed sweep has left
    try:
        return outcome(replace(settings, run_dir=str(folder)), log=_silent)
    finally:
        forget()  # the root is the last to need it


def argument(run: Run) -> str:
    """How the binary is told of a run."""
    return f"{run.cell.path}@{run.seed}"


def _named(argument: str) -> Run:
    path, _, seed = argument.rpartition("@")
    if not seed.isdecimal():
        raise BadInput(f"{argument}: no run; write FLAGFILE@SEED, such as cells/mpi/a.flags@0")
    return Run(cells.read(Path(path)), int(seed))


def _silent(line: str) -> None:
    """What a run tells on its way is of no use among hundreds."""


def main(argv: list[str]) -> None:
    """The binary."""
    with guard():
        place = Place(Path(flags.FLAGS.out), flags.FLAGS.raw_dir)
        in_this_process(map(_named, argv[1:]), place)


def _parse(argv: list[str]) -> list[str]:
    with guard():
        try:
            return flags.FLAGS(argv)
        except flags.Error as error:
            raise BadInput(" ".join(str(error).split())) from None


if __name__ == "__main__":
    flags.DEFINE_string("out", None, "folder of the sweep", required=True)
    flags.DEFINE_string("raw_dir", "", "folder of original files, where data has to be prepared")
    app.run(main, flags_parser=_parse)
