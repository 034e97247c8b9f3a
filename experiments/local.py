"""Tasks without a batch system: processes of this machine, in folders like those of jobs."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections import deque
from collections.abc import Iterable
from typing import IO, NamedTuple

from cbdybw.clusters.launch import mpirun
from experiments.arrays import Task
from experiments.submission import Submission
from experiments.watching import DONE, OVER, RUNNING, WAITING, Place

_AGAIN = 75  # exit code of a run that wants to be started again
_PATIENCE = 30.0  # seconds in which a run that was told to end does so


class _Started(NamedTuple):
    process: subprocess.Popen
    log: IO[bytes]


class Local:
    """Runs `tasks`, `jobs` at once, while somebody looks at their `places`.

    Leaving the block ends what still runs, in such a way that it can be resumed.
    """

    pause = 0.5
    lag = 0.0

    def __init__(self, submission: Submission, tasks: Iterable[Task], jobs: int):
        self._submission, self._jobs = submission, jobs
        self._waiting = deque(tasks)
        self._running: dict[int, tuple[Task, _Started]] = {}
        self._places = {task.number: Place(OVER) for task in submission.tasks}
        self._places |= {task.number: Place(WAITING) for task in self._waiting}

    def __enter__(self) -> Local:
        return self

    def __exit__(self, *_: object) -> None:
        for _, started in self._running.values():
            started.process.terminate()
        for _, started in self._running.values():
            try:
                started.process.wait(_PATIENCE)
            except subprocess.TimeoutExpired:
                started.process.kill()
                started.process.wait()
            started.log.close()

    def places(self) -> dict[int, Place]:
        """Where each task is just now; starts what can be started."""
        for number, (task, started) in list(self._running.items()):
            if (code := started.process.poll()) is not None:
                del self._running[number]
                started.log.close()
                self._places[number] = Place(DONE if code == 0 else OVER)
                if code == _AGAIN:
                    self._waiting.append(task)
                    self._places[number] = Place(WAITING)
        while self._waiting and len(self._running) < self._jobs:
            task = self._waiting.popleft()
            started = self._start(task)
            self._running[task.number] = task, started
            self._places[task.number] = Place(RUNNING, f"process {started.process.pid}")
        return dict(self._places)

    def _start(self, task: Task) -> _Started:
        command = [sys.executable, "-m", "experiments.train"]
        command.append(f"--flagfile={self._submission.flagfile(task)}")
        if task.run_dir.exists():
            command.append("--resume")
        environ = dict(os.environ)
        if task.settings.cluster == "mpi":
            command, environ = mpirun(task.ranks, command)
        with contextlib.ExitStack() as stack:
            log = stack.enter_context(open(self._submission.log(task), "ab"))
            # In a session of its own: an interrupt is for us, who end it then.
            process = subprocess.Popen(
                command, env=environ, stdout=log, stderr=log, start_new_session=True
            )
            stack.pop_all()
        return _Started(process, log)
