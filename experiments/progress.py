"""Progress of a long command on stderr: steps, each with a bar and the time that it takes."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)


def stderr() -> Console:
    """A console on a copy of stderr's descriptor.

    What redirects stderr itself, as TensorFlow's silent start does, does not stop the bars.
    """
    return Console(file=os.fdopen(os.dup(2), "w"), highlight=False)


class Step:
    """A step under way."""

    def __init__(self, progress: Progress, task: TaskID):
        self._progress, self._task = progress, task

    def at(self, seconds: float) -> None:
        """So many of the seconds that the step should last are over."""
        total = self._progress.tasks[self._task].total
        self._progress.update(self._task, completed=min(seconds, 0.99 * total))

    def note(self, text: str) -> None:
        """Say what happens just now, or in the end what has come of it."""
        self._progress.update(self._task, note=text)


class Steps:
    """A line a step: on a terminal all of them with moving bars, elsewhere as each one ends."""

    def __init__(self, console: Console):
        self._console = console
        self._progress = Progress(
            SpinnerColumn(finished_text="✓"),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=12),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}", style="dim", markup=False),
            console=console,
        )

    def __enter__(self) -> Steps:
        if self._console.is_terminal:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:
            self._progress.stop()

    @contextmanager
    def step(self, title: str, seconds: float | None = None) -> Iterator[Step]:
        """Something that should last `seconds`; without them the bar only shows that it goes on."""
        note = f"of about {seconds:.0f} s" if seconds else ""
        task = self._progress.add_task(title, total=seconds, note=note)
        start = time.perf_counter()
        if not self._console.is_terminal:
            self._console.print(title, end=f" ({note}) … " if note else " … ", soft_wrap=True)
        yield Step(self._progress, task)
        self._progress.update(task, total=1, completed=1)
        if not self._console.is_terminal:
            self._console.print(f"{time.perf_counter() - start:.1f} s", soft_wrap=True)
