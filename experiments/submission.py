"""The folder of a submission: what was submitted, where it is going on, and what comes of it.

submission.json     which runs; which job each task is, once that is known
job.sh              the batch script
tasks/N.flags       the flags of task N, in full: `experiments.train --flagfile=…` runs it
logs/               what the tasks print
runs/NAME-SEED/     their run folders
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from cbdybw.clusters import signals
from cbdybw.clusters.guard import say
from cbdybw.errors import BadInput
from cbdybw.storage import atomic, ownership
from cbdybw.storage.ownership import Owner
from cbdybw.storage.run_directory import RunDirectory
from experiments.arrays import Task

ENDED = ("finished", "diverged")
"""Statuses of runs that are not begun again."""
_MARK = "submission.json"


class Run(NamedTuple):
    """What a task's run folder says: the manifest's `status`, None where there is no folder yet,
    evaluated `iteration`, training `loss` there, and why it ended if it did before its time."""

    status: str | None = None
    iteration: int | None = None
    loss: float | None = None
    failure: str | None = None


class Submission:
    """The folder `out` of `tasks`; `open` makes it."""

    def __init__(self, out: Path, tasks: Sequence[Task]):
        self.out, self.tasks = Path(os.path.abspath(out)), tasks
        self.script = self.out / "job.sh"
        self.logs = self.out / "logs"

    def open(self, script: str) -> None:
        """Make the folder with `script` in it, unless this submission is there already.

        BadInput where something else is.
        """
        if not os.path.lexists(self.out):
            with atomic.publishing_folder(self.out) as folder:
                (folder / "logs").mkdir()
                (folder / "tasks").mkdir()
                for task in self.tasks:
                    path = folder / "tasks" / self.flagfile(task).name
                    atomic.write_text(path, task.settings.flagfile())
                atomic.write_text(folder / "job.sh", script)
                atomic.write_json(folder / _MARK, {"runs": self._runs, "jobs": {}})
        self._check_same()

    @contextlib.contextmanager
    def owned(self) -> Iterator[None]:
        """Nobody else submits from this folder, or runs its tasks, meanwhile; else BadInput."""
        number = ownership.take(self.out, None, f"--out={self.out}", say)
        with Owner(self.out, number, lose=signals.end):
            yield

    def flagfile(self, task: Task) -> Path:
        """The flag file of a task."""
        return self.out / "tasks" / f"{task.number}.flags"

    def log(self, task: Task, job: str = "") -> Path:
        """What a task prints, as `job` or here."""
        return self.logs / f"{job or task.number}.log"

    @property
    def jobs(self) -> dict[int, str]:
        """Number of a task → its job, as Slurm calls it: JOB_TASK."""
        return {int(n): job for n, job in self._read()["jobs"].items()}

    def submitted(self, jobs: dict[int, str]) -> None:
        """These tasks are those jobs from now on."""
        now = {str(n): job for n, job in (self.jobs | jobs).items()}
        atomic.write_json(self.out / _MARK, self._read() | {"jobs": now})

    def run(self, task: Task) -> Run:
        """How far a task's run has come."""
        directory = RunDirectory(task.run_dir)
        if not (directory.path / "manifest.json").exists():
            return Run()
        manifest, metrics = directory.manifest(), directory.metrics()
        last = metrics[-1] if metrics else {}
        return Run(
            manifest["status"],
            last.get("iteration"),
            last.get("train_loss"),
            manifest.get("failure"),
        )

    def unfinished(self) -> list[Task]:
        """The tasks whose runs have not come to their end."""
        return [task for task in self.tasks if self.run(task).status not in ENDED]

    @property
    def _runs(self) -> list[str]:
        return [task.name for task in self.tasks]

    def _read(self) -> dict:
        with atomic.readable(self.out / _MARK):
            return atomic.read_json(self.out / _MARK)

    def _check_same(self) -> None:
        given = f"--out={self.out}"
        if not (self.out / _MARK).exists():
            raise BadInput(f"{given}: exists already and is no submission; name a new folder")
        if self._read()["runs"] != self._runs:
            raise BadInput(f"{given}: holds a submission of other runs; name a new folder")
        for task in self.tasks:
            with atomic.readable(self.flagfile(task)):
                before = type(task.settings).from_flagfile(self.flagfile(task).read_text())
            if others := task.settings.differing(before, besides=()):
                raise BadInput(
                    f"{given}: there {task.name} was submitted with other flags than "
                    f"{' '.join(others)}; name a new folder"
                )
