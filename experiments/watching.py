"""Tasks followed to their end: a table that moves on a terminal, and lines of news elsewhere.

Where a task is comes from the batch system, what came of it from its run folder.
"""

from __future__ import annotations

import contextlib
import textwrap
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from experiments.arrays import Task
from experiments.submission import ENDED, Run, Submission

WAITING, RUNNING, DONE, OVER, GONE = "waiting", "running", "done", "over", "gone"
"""Of a task: it has yet to run, it runs, it ended with exit code 0, it ended otherwise, or nobody
knows it any more."""
_SPENT = (DONE, OVER, GONE)
_LONGEST = 200  # characters of a log's last line
_STYLES = {"finished": "green", "running": "bold", "diverged": "yellow"}


class Place(NamedTuple):
    """Where a task is: one of the words above, as which job, and what the batch system says."""

    state: str
    job: str = ""
    says: str = ""


class Silent(RuntimeError):
    """The batch system does not answer just now."""


class Runner(Protocol):
    """What runs tasks.

    Attributes:
        pause: seconds between two looks at it.
        lag: seconds after a task's end in which its run folder may still look as before.
    """

    pause: float
    lag: float

    def places(self) -> dict[int, Place]:
        """Where each task is; Silent when that cannot be told just now."""


class Seen(NamedTuple):
    """A task at a glance: `state` is a place's or a status, `why` a line when it ended badly."""

    task: Task
    state: str
    run: Run
    place: Place
    why: str = ""

    @property
    def ended(self) -> bool:
        """Whether nothing more is to come."""
        return self.state not in (WAITING, "requeued", RUNNING)

    @property
    def progress(self) -> str:
        """Iterations that have been evaluated."""
        k = self.run.iteration
        return "" if k is None else f"{k}/{self.task.settings.iterations}"

    @property
    def loss(self) -> str:
        """The training loss there."""
        return "" if self.run.loss is None else f"{self.run.loss:.4g}"


def follow(submission: Submission, runner: Runner, console: Console) -> list[Seen]:
    """Show the tasks until all have ended; what came of them."""
    look = _Look(submission, runner)
    with _shown(console) as show:
        while True:
            try:
                seen = look()
            except Silent as silence:
                console.print(f"{silence}; asks again", markup=False, soft_wrap=True)
            else:
                show(seen)
                if all(each.ended for each in seen):
                    break
            time.sleep(runner.pause)
    if not console.is_terminal:
        console.print(_table(seen))
    return seen


class _Look:
    """A look at all tasks; it remembers who has ended without a word yet."""

    def __init__(self, submission: Submission, runner: Runner):
        self._submission, self._runner = submission, runner
        self._silent: dict[int, float] = {}

    def __call__(self) -> list[Seen]:
        places = self._runner.places()  # first: who has ended by then has written all
        return [
            self._seen(task, places.get(task.number, Place(GONE)))
            for task in self._submission.tasks
        ]

    def _seen(self, task: Task, place: Place) -> Seen:
        run = self._submission.run(task)
        if run.status in ENDED:
            return Seen(task, run.status, run, place)
        if place.state not in _SPENT:
            self._silent.pop(task.number, None)
            requeued = place.state == WAITING and run.status is not None
            return Seen(task, "requeued" if requeued else place.state, run, place)
        if run.status in (None, "running") or place.state == DONE:
            since = self._silent.setdefault(task.number, time.monotonic())
            if time.monotonic() - since < self._runner.lag:
                return Seen(task, RUNNING, run, place)
            return Seen(task, "failed", run, place, self._last_words(task, place))
        return Seen(task, run.status, run, place, run.failure or "")

    def _last_words(self, task: Task, place: Place) -> str:
        with contextlib.suppress(FileNotFoundError):
            text = self._submission.log(task, place.job).read_text(errors="replace")
            if lines := [line for line in text.splitlines() if line.strip()]:
                return f"{place.says} {textwrap.shorten(lines[-1], _LONGEST)}".strip()
        return place.says or "it has left no word"


@contextlib.contextmanager
def _shown(console: Console) -> Iterator[Callable[[list[Seen]], None]]:
    if console.is_terminal:
        with Live(console=console, auto_refresh=False) as live:
            yield lambda seen: live.update(_table(seen), refresh=True)
        return
    before: dict[int, str] = {}

    def news(seen: list[Seen]) -> None:
        for each in seen:
            if before.get(each.task.number) != each.state:
                before[each.task.number] = each.state
                says = each.place.says if each.state == WAITING else each.progress
                words = (time.strftime("%H:%M:%S"), each.task.name, each.state, says)
                console.print("  ".join(filter(None, words)), markup=False, soft_wrap=True)

    yield news


def _table(seen: list[Seen]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("run", overflow="fold")
    table.add_column("state")
    table.add_column("iteration", justify="right", no_wrap=True)
    table.add_column("loss", justify="right", no_wrap=True)
    table.add_column("job", overflow="fold")
    for each in seen:
        job = " ".join(filter(None, (each.place.job, each.place.says if not each.ended else "")))
        style = _STYLES.get(each.state, "red" if each.ended else "")
        cells = (each.task.name, each.state, each.progress, each.loss, job)
        table.add_row(*map(Text, cells), style=style)
    return table
