"""How long one client waits for what another one writes, by one clock.

    nfs_visibility.py ask FOLDER ROUNDS
    nfs_visibility.py answer FOLDER ROUNDS

In each round who asks writes something, who answers writes the like as soon as it sees that, and
who asks takes the time until it sees the answer: neither was seen later than that. Both have looked
in vain before, so that what they remember is out of date. `ask` prints the seconds of each round:
{"created": […], "replaced": […], "appended": […]}.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

from cbdybw.storage import atomic

_PAUSE = 0.01  # seconds between two looks
_REST = 0.3  # seconds in which both sides look in vain
_PATIENCE = 100.0  # seconds


def create(folder: Path, who: str, round_: int) -> None:
    """A file that was not there."""
    atomic.write_bytes(folder / f"{who}-{round_}", b"x")


def is_created(folder: Path, who: str, round_: int) -> bool:
    return (folder / f"{who}-{round_}").exists()


def replace(folder: Path, who: str, round_: int) -> None:
    """A file that takes the place of another one."""
    atomic.write_text(folder / f"{who}-replaced", str(round_))


def is_replaced(folder: Path, who: str, round_: int) -> bool:
    path = folder / f"{who}-replaced"
    return path.exists() and atomic.read_bytes(path) == str(round_).encode()


def append(folder: Path, who: str, round_: int) -> None:
    """A line more."""
    atomic.append_text(folder / f"{who}-appended", f"{round_}\n")


def is_appended(folder: Path, who: str, round_: int) -> bool:
    path = folder / f"{who}-appended"
    return path.exists() and atomic.read_bytes(path).endswith(f"{round_}\n".encode())


KINDS = {
    "created": (create, is_created),
    "replaced": (replace, is_replaced),
    "appended": (append, is_appended),
}


def wait(seen: Callable[[], bool], seconds: float) -> bool:
    """Look until something is seen, for so long at most; whether it was."""
    end = time.monotonic() + seconds
    while not (there := seen()) and time.monotonic() < end:
        time.sleep(_PAUSE)
    return there


def main(who: str, folder: Path, rounds: int) -> None:
    """One side."""
    other, took = {"ask": "answer", "answer": "ask"}[who], {}
    for kind, (do, done) in KINDS.items():
        took[kind] = []
        for round_ in range(rounds):
            if who == "ask":
                assert not wait(lambda: done(folder, other, round_), _REST)  # noqa: B023
                began = time.monotonic()
                do(folder, who, round_)
            if not wait(lambda: done(folder, other, round_), _PATIENCE):  # noqa: B023
                sys.exit(f"{kind}, round {round_}: not seen within {_PATIENCE:g} s")
            if who == "ask":
                took[kind].append(time.monotonic() - began)
            else:
                do(folder, who, round_)
    if who == "ask":
        print(json.dumps(took))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
