"""The progress of a list of runs: how many are done, how long the rest takes, what goes on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from experiments.cells import Run
from experiments.progress import Step, Steps
from experiments.rows import Row

WIDTH = 38
"""Columns that the note beside a bar may have, of 80."""


def follow(
    title: str,
    runs: list[Run],
    jobs: int,
    each: Callable[[Callable[[Run], None]], Iterator[tuple[Run, Row]]],
    steps: Steps,
) -> None:
    """Show a step in which `each(begun)` does `runs`, `jobs` at once; nothing if there are none."""
    if not runs:
        return
    seconds = sum(run.cell.seconds for run in runs) / jobs
    with steps.step(title, seconds) as step:
        countdown = _Countdown(step, runs, seconds)
        for run, _ in each(countdown.begun):
            countdown.ended(run)
        step.note(f"{len(runs)} runs")


class _Countdown:
    """Weighs runs by the time that their cells should take."""

    def __init__(self, step: Step, runs: list[Run], seconds: float):
        self._step, self._all, self._seconds = step, len(runs), seconds
        self._left = {run.key: run.cell.seconds for run in runs}
        self._total, self._latest = sum(self._left.values()), ""
        self._start = time.perf_counter()

    def begun(self, run: Run) -> None:
        """`run` goes on from now on."""
        self._latest = str(run)
        self._show()

    def ended(self, run: Run) -> None:
        """`run` has come to its end."""
        del self._left[run.key]
        self._show()

    def _show(self) -> None:
        done = 1 - sum(self._left.values()) / self._total
        elapsed = time.perf_counter() - self._start
        rest = _clock(elapsed * (1 / done - 1) if done else self._seconds)
        self._step.at(done * self._seconds)
        note = f"{self._all - len(self._left)}/{self._all}, {rest} left: {self._latest}"
        self._step.note(note[:WIDTH])


def _clock(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds > 90 else f"{seconds:.0f} s"
