"""Runs of a sweep on MPI: as many as possible under one mpirun, so that TensorFlow starts once."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from typing import IO

from cbdybw.clusters.launch import mpirun
from experiments import rows, sweep
from experiments.cells import Run
from experiments.rows import Row
from experiments.sweep import Place

POLL = 0.1  # seconds


def each(
    runs: Iterable[Run], place: Place, begun: Callable[[Run], None]
) -> Iterator[tuple[Run, Row]]:
    """Do runs on this machine's ranks, one after the other; each with its row, as they end.

    All with the same number of ranks share an mpirun, but for those with faults, after which there
    are fewer ranks. Where one of them fails its ranks end, and others do the rest.
    """
    together: dict[tuple[int, str], list[Run]] = {}
    for run in runs:
        place.store.forget(run)  # a row from now on tells that it has ended
        settings = run.settings()
        alone = run.key if settings.faults else ""
        together.setdefault((settings.ranks, alone), []).append(run)
    for (ranks, _), waiting in sorted(together.items()):
        while waiting:
            with tempfile.TemporaryFile("w+") as said:
                yield from _together(ranks, waiting, place, begun, said)
                if waiting:
                    said.seek(0)
                    story = said.read().strip() or "its ranks ended in silence"
                    run = waiting.pop(0)
                    row = rows.failed(run, story.splitlines()[-1], story)
                    place.store.write(run, row)
                    yield run, row


def _together(
    ranks: int,
    waiting: list[Run],
    place: Place,
    begun: Callable[[Run], None],
    said: IO[str],
) -> Iterator[tuple[Run, Row]]:
    """One mpirun; takes those that have ended off `waiting`, whose first one is running."""
    command = [sys.executable, "-m", "experiments.sweep", f"--out={place.out}"]
    command += [f"--raw_dir={place.raw_dir}", *map(sweep.argument, waiting)]
    argv, environment = mpirun(ranks, command)
    begun(waiting[0])
    with subprocess.Popen(argv, env=environment, stdout=said, stderr=said) as process:
        try:
            over = False
            while waiting and not over:
                over = process.poll() is not None  # asked before we look: nothing comes after it
                while waiting and (row := place.store.read(waiting[0])):
                    yield waiting.pop(0), row
                    if waiting:
                        begun(waiting[0])
                time.sleep(POLL)
        except BaseException:  # an interrupt: the ranks would go on without us
            process.terminate()
            raise
