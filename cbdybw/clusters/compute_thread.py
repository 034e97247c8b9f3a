"""The compute thread of one rank: functions run there while the main thread goes on polling."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cbdybw.clusters.loop import Activity
    from cbdybw.clusters.worker import Match


class Job:
    """A computation: `fn` in the compute thread, then the rest of its injected delay.

    Attributes:
        start: when it began, on the loop's clock.
        seconds: that it lasts at least.
        took: seconds after its start at which `fn` had returned.
        deadline: when it ends, if `fn` has returned by then.
    """

    __slots__ = (
        "_begun", "activity", "args", "deadline", "error", "fn", "index", "ran", "result",
        "seconds", "start", "took", "until",
    )  # fmt: skip

    def __init__(
        self,
        fn: Callable[..., Any],
        args: tuple,
        index: int = 0,
        start: float = 0.0,
        seconds: float = 0.0,
        until: Match | None = None,
    ):
        self.fn, self.args, self.index, self.until = fn, args, index, until
        self.start, self.seconds, self.deadline = start, seconds, start + seconds
        self.ran, self.result, self.error = False, None, None
        self._begun, self.took = time.perf_counter(), 0.0
        self.activity: Activity

    def run(self) -> None:
        try:
            self.result = self.fn(*self.args)
        except BaseException as error:  # raised again in the coroutine that waits for the result
            self.error = error
        self.took = time.perf_counter() - self._begun


class ComputeThread:
    """Runs jobs one after the other."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._returned: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self.busy = 0
        threading.Thread(target=self._serve, name="compute", daemon=True).start()

    def _serve(self) -> None:
        while True:
            job = self._jobs.get()
            job.run()
            self._returned.put(job)
            del job  # an idle thread must not keep vectors alive

    def start(self, job: Job) -> None:
        self.busy += 1
        self._jobs.put(job)

    def returned(self, wait: float = 0.0) -> Job | None:
        """The next job whose function has returned, after at most `wait` seconds."""
        try:
            job = self._returned.get(wait > 0, wait)
        except queue.Empty:
            return None
        self.busy -= 1
        return job
