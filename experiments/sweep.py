"""A sweep: runs of cells, each of which leaves one row in OUT/raw.

    python -m experiments.sweep --paper=cb_dybw --out=OUT GROUP/NAME@SEED …

does the runs that are named, one after the other in this process, or under mpirun in these ranks.
`experiments.reproduce` does those of a scale, many at once. A run that has a row is not done again
by `unfinished`, so that a killed sweep goes on where it was; one that failed is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from absl import app, flags

from cbdybw.clusters.guard import guard
from cbdybw.errors import BadInput
from cbdybw.learning.workloads import needs_data
from experiments import building, cells, pool, rows, train
from experiments.cells import Run
from experiments.rows import Row, Store

RAW = "raw"
"""The folder of rows in that of a sweep."""


class Place(NamedTuple):
    """Where a sweep works: `out` is its folder, `raw_dir` that of the original data, or empty."""

    out: Path
    raw_dir: str = ""

    @property
    def store(self) -> Store:
        """The rows."""
        return Store(self.out / RAW)


def unfinished(runs: Iterable[Run], store: Store) -> list[Run]:
    """Those that have no row, or failed."""
    return [run for run in runs if (store.read(run) or {"status": "failed"})["status"] == "failed"]


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
                    building.prepare_data(replace(settings, cluster="virtual"), log)
                except BadInput as refusal:
                    refusals[source] = refusal
                    raise
            able.append(run)
        except BadInput as error:
            place.store.write(run, rows.failed(run, error))
    return able


def each(
    runs: Iterable[Run], place: Place, jobs: int, begun: Callable[[Run], None]
) -> Iterator[tuple[Run, Row]]:
    """Do runs of the virtual cluster in `jobs` processes; each with its row, as they end."""
    for (run, _), row in pool.each(
        [(run, place) for run in runs], _work, jobs, lambda task: begun(task[0])
    ):
        if isinstance(row, pool.Died):
            row = rows.failed(run, row)
            place.store.write(run, row)
        yield run, row


def _work(task: tuple[Run, Place]) -> Row:
    run, place = task
    try:
        row = rows.ended(run, train.outcome(run.settings(place.raw_dir), log=_silent))
    except Exception as error:  # whatever it is, it stands in the row and ends no other run
        row = rows.failed(run, error)
    place.store.write(run, row)
    return row


def in_this_process(names: Iterable[str], paper: str, place: Place) -> None:
    """Do the runs that are named GROUP/NAME@SEED, on each rank if there are several.

    Whatever ends one of them is raised: among ranks a failure has to end them all.
    """
    known = cells.load(paper)
    for run in [_named(name, known) for name in names]:
        outcome = train.outcome(run.settings(place.raw_dir), log=_silent)
        if outcome is not None:
            place.store.write(run, rows.ended(run, outcome))


def _named(name: str, known: dict[str, cells.Cell]) -> Run:
    cell, _, seed = name.partition("@")
    if cell not in known or not seed.isdecimal():
        raise BadInput(f"{name}: no run; write GROUP/NAME@SEED with a cell of the paper's")
    return Run(known[cell], int(seed))


def _silent(line: str) -> None:
    """What a run tells on its way is of no use among hundreds."""


def main(argv: list[str]) -> None:
    """The binary."""
    with guard():
        values = flags.FLAGS
        in_this_process(argv[1:], values.paper, Place(Path(values.out), values.raw_dir))


def _parse(argv: list[str]) -> list[str]:
    with guard():
        try:
            return flags.FLAGS(argv)
        except flags.Error as error:
            raise BadInput(" ".join(str(error).split())) from None


if __name__ == "__main__":
    flags.DEFINE_string("paper", "cb_dybw", f"whose cells: {', '.join(cells.PAPERS)}")
    flags.DEFINE_string("out", None, "folder of the sweep", required=True)
    flags.DEFINE_string("raw_dir", "", "folder of original files, where data has to be prepared")
    app.run(main, flags_parser=_parse)
