"""Tasks shared out among processes, any of which may die.

Each process does many tasks, so that TensorFlow starts once in each. They are spawned, not forked:
TensorFlow's threads do not survive a fork. (`concurrent.futures` gives all its tasks up when one of
its processes dies, and does not say at which task that was.)
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection, wait
from typing import Generic, TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")

_context = multiprocessing.get_context("spawn")


class Died(RuntimeError):
    """The process that did a task has died; the message says how."""

    def __init__(self, code: int):
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        out_of_memory = "; was there enough memory?" if code == -signal.SIGKILL else ""
        super().__init__(f"its process ended {how}{out_of_memory}")


def each(
    tasks: Iterable[Task],
    work: Callable[[Task], Result],
    jobs: int,
    begun: Callable[[Task], None],
) -> Iterator[tuple[Task, Result | Died]]:
    """Every task with what `work(task)` returned in one of `jobs` processes, as they end.

    `work` is a module's function that raises nothing; where its process dies the result is Died,
    and another process takes its place. Tasks begin in their order, and `begun` is told of each.
    Leaving the iterator early, or an interrupt, ends the processes.
    """
    waiting = deque(tasks)
    idle: list[_Process[Task, Result]] = []
    busy: dict[Connection, tuple[_Process[Task, Result], Task]] = {}
    try:
        while waiting or busy:
            while waiting and len(busy) < jobs:
                process = idle.pop() if idle else _Process(work)
                task = waiting.popleft()
                begun(task)
                process.give(task)
                busy[process.connection] = process, task
            for connection in wait(busy):
                process, task = busy.pop(connection)
                result = process.take()
                if not isinstance(result, Died):
                    idle.append(process)
                yield task, result
    finally:
        for process in [*idle, *(process for process, _ in busy.values())]:
            process.end()


class _Process(Generic[Task, Result]):
    """A process that does one task after another, and our end of the connection to it."""

    def __init__(self, work: Callable[[Task], Result]):
        self.connection, theirs = _context.Pipe()
        self._process = _context.Process(target=_serve, args=(theirs, work), daemon=True)
        self._process.start()
        theirs.close()  # now only the process has it, and its death closes it

    def give(self, task: Task) -> None:
        """Let it begin; a process that has died by now is noticed by `take`."""
        with contextlib.suppress(BrokenPipeError):
            self.connection.send(task)

    def take(self) -> Result | Died:
        """What came of the task; waits for it."""
        try:
            return self.connection.recv()
        except (EOFError, ConnectionResetError):
            self._process.join()
            return Died(self._process.exitcode)

    def end(self) -> None:
        """End the process, whatever it does."""
        self._process.terminate()
        self._process.join()
        self.connection.close()


def _serve(connection: Connection, work: Callable[[Task], Result]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ^C is for the parent, which ends us
    with contextlib.suppress(EOFError, BrokenPipeError):  # the parent has died
        while True:
            connection.send(work(connection.recv()))
