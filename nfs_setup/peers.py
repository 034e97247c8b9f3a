"""Processes that run probes, on this host and on others: one line of JSON each way at a time.

    to a peer     {"number": 7, "probe": "race", "values": {"folder": …, "kind": "link", …}}
    from a peer   {"number": 7, "event": …}     on the way, from probes that yield
                  {"number": 7, "answer": …}, or {"number": 7, "errno": 28} if the system refused

Nothing listens: a peer is a child process (of ssh or srun, for another host) and ends with its
standard input. Folders that it made it removes then, also when the doctor was killed. Only peers
touch what is examined: a file server that does not answer stops them, and never the doctor.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import GeneratorType
from typing import Any, TextIO

from nfs_setup import changes, probes

PROBES = probes.PROBES | changes.PROBES
"""What a peer can be asked."""

LAUNCH = "ssh -o BatchMode=yes {host}"
"""What starts a command on another host: the command's words are added."""

SRUN = "srun --quiet --nodelist={host} --ntasks=1"
"""The same where hosts are reached by Slurm."""

_SHELLS = {"ssh", "rsh"}  # hand their words to a shell, which takes them apart again
_LAST_WORDS = 2.0  # seconds for a peer that has ended to say why
_PATIENCE = 40.0  # seconds for an answer: longer than any probe takes
_END = 15.0  # seconds for a peer to clear up, if it has answered so far


class NoAnswer(RuntimeError):
    """A peer has ended, or has not answered in time; the message says which, in its own words."""


def command(launch: str, host: str) -> list[str]:
    """The words that start a peer on `host`, which has the same checkout in the same place."""
    here = Path(__file__).resolve().parents[1]
    words = ["env", f"PYTHONPATH={here}", sys.executable, "-m", "nfs_setup.doctor", "--peer"]
    first = [word.replace("{host}", host) for word in shlex.split(launch)]
    return first + (list(map(shlex.quote, words)) if Path(first[0]).name in _SHELLS else words)


class Peer:
    """One process; a context manager, which ends it.

    Attributes:
        name: of its host, for people; empty for this one.
        code: its exit code once it has ended; not 0 where something of its own is left behind.
    """

    code: int | None = None

    def __init__(self, name: str, words: list[str]):
        self.name = name
        self._asked, self._silent = 0, False
        self._lines: queue.Queue[tuple[float, str | None]] = queue.Queue()
        self._errors: list[str] = []
        self._process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            bufsize=1,
            start_new_session=True,  # Ctrl-C is for the doctor, which ends its peers in order
        )
        self._threads = [
            threading.Thread(target=self._hear, daemon=True),
            threading.Thread(target=self._overhear, daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    @classmethod
    def local(cls) -> Peer:
        """Another process on this host."""
        return cls("", command("env", ""))

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_) -> None:
        with contextlib.suppress(OSError):  # it may have ended before
            self._process.stdin.close()
        try:
            self.code = self._process.wait(_LAST_WORDS if self._silent else _END)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self.code = -signal.SIGKILL
            with contextlib.suppress(subprocess.TimeoutExpired):  # the kernel may not let it go yet
                self._process.wait(_LAST_WORDS)
        for thread in self._threads:
            thread.join(_LAST_WORDS)

    def ask(self, probe: str, **values: Any) -> Any:
        """What `probe` answers; OSError where the system refused, NoAnswer after some patience."""
        self.tell(probe, **values)
        return self.answer()

    def tell(self, probe: str, **values: Any) -> None:
        """Start `probe`; `hear` and `answer` have what it says."""
        self._asked += 1
        request = {"number": self._asked, "probe": probe, "values": values}
        with contextlib.suppress(BrokenPipeError):  # no answer will come, and say what has happened
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()

    def answer(self) -> Any:
        """The answer to what was told last, past all events."""
        while True:
            _, what = self.hear()
            if "answer" in what:
                return what["answer"]

    def hear(self) -> tuple[float, dict[str, Any]]:
        """The next event or answer to what was told last, and when it came (time.monotonic)."""
        end = time.monotonic() + _PATIENCE
        while True:
            try:
                when, line = self._lines.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                self._silent = True
                of = f" of {self.name}" if self.name else ""
                raise NoAnswer(f"no answer{of} within {_PATIENCE:.0f} s") from None
            if line is None:
                raise NoAnswer(self._why())
            what = _object(line)
            if what.get("number") == self._asked:
                if "errno" in what:
                    raise OSError(what["errno"], os.strerror(what["errno"]))
                return when, what

    def _hear(self) -> None:
        for line in self._process.stdout:
            self._lines.put((time.monotonic(), line))
        self._lines.put((time.monotonic(), None))

    def _overhear(self) -> None:
        self._errors += [line.strip() for line in self._process.stderr if line.strip()]

    def _why(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_LAST_WORDS)
        self._threads[1].join(_LAST_WORDS)
        code = self._process.poll()
        return self._errors[-1] if self._errors else f"its process has ended with code {code}"


def _object(line: str) -> dict[str, Any]:
    """The reply in `line`; empty where it is none, but a greeting of the host's, say."""
    try:
        what = json.loads(line)
    except ValueError:
        return {}
    return what if isinstance(what, dict) else {}


def serve(requests: TextIO, replies: TextIO) -> None:
    """Be a peer until `requests` ends.

    A batch system sends SIGTERM to all processes of a job: it ends the doctor, and so this one.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    made: list[str] = []
    try:
        for line in requests:
            request = json.loads(line)
            for reply in _replies(request["probe"], request["values"], made):
                replies.write(json.dumps({"number": request["number"], **reply}) + "\n")
                replies.flush()
    except BrokenPipeError:
        pass  # nobody listens any more
    finally:
        for folder in made:
            shutil.rmtree(folder)


def _replies(probe: str, values: dict[str, Any], made: list[str]) -> Iterator[dict[str, Any]]:
    try:
        result = PROBES[probe](**values)
        if isinstance(result, GeneratorType):
            events, result = result, None
            while True:
                try:
                    yield {"event": next(events)}
                except StopIteration as end:
                    result = end.value
                    break
    except OSError as error:
        yield {"errno": error.errno}
        return
    if probe == "make":
        made.append(result)
    yield {"answer": result}
