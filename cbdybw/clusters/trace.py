"""What happened when: the spans of every rank and every event that woke it.

A span (24 bytes) is something a rank did for a while. An event (16 bytes) is something that its
coroutine was told: a message came in, a computation ended, a timer ran out. The events of a rank,
in order, determine everything it does, so they are what a replay delivers again.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable
from enum import IntEnum
from pathlib import Path

import numpy as np

from cbdybw.clusters.worker import Kind
from cbdybw.errors import BadInput
from cbdybw.storage import atomic


class Span(IntEnum):
    """What a rank did for a while."""

    COMPUTE = 0
    WAIT = 1
    AVERAGE = 2
    COLLECTIVE = 3  # a barrier or an allreduce
    CHECKPOINT = 4


class Event(IntEnum):
    """What woke a coroutine, beside the arrival of a message (whose Kind is below 28)."""

    COMPUTED = 28
    INTERRUPTED = 29
    TIMEOUT = 30
    COLLECTED = 31  # a barrier, an allreduce or a checkpoint is complete


SPANS = np.dtype([("start", "<f8"), ("end", "<f8"), ("code", "<i8")])
EVENTS = np.dtype([("time", "<f8"), ("code", "<i8")])

_RANK, _KIND, _ITERATION = 17, 34, 39  # bit offsets in a code; the peer is in the lowest 17 bits
_MASK = (1 << 17) - 1
MOST_RANKS, MOST_ITERATIONS = 1 << 17, (1 << 24) - 1  # that a code has room for


def decode(code: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(rank, kind, iteration, peer) of each code."""
    return (code >> _RANK) & _MASK, (code >> _KIND) & 31, code >> _ITERATION, code & _MASK


class Trace:
    """The record of one process: one rank on MPI, all ranks on the virtual cluster."""

    def __init__(self) -> None:
        self._spans = array("d"), array("q")
        self._events = array("d"), array("q")
        self._flushed = 0, 0  # spans and events that are in a file

    def span(self, rank: int, kind: int, iteration: int, start: float, end: float) -> None:
        times, codes = self._spans
        times.append(start)
        times.append(end)
        codes.append(((iteration << 5 | kind) << _KIND) + (rank << _RANK | rank))

    def event(self, rank: int, time: float, kind: int, iteration: int, peer: int) -> None:
        times, codes = self._events
        times.append(time)
        codes.append(((iteration << 5 | kind) << _KIND) + (rank << _RANK | peer))

    def broadcast(self, size: int, time: float, kind: int, iteration: int, peer: int) -> None:
        """The same message came in at every rank but its sender, at the same time."""
        times, codes = self._events
        times.extend(array("d", (time,)) * (size - 1))
        every = (np.arange(size, dtype=np.int64) << _RANK) + (
            ((iteration << 5 | kind) << _KIND) + peer
        )
        codes.frombytes(every[:peer].tobytes())
        codes.frombytes(every[peer + 1 :].tobytes())

    @property
    def spans(self) -> np.ndarray:
        return self._spans_from(0)

    @property
    def events(self) -> np.ndarray:
        return self._events_from(0)

    def _spans_from(self, first: int) -> np.ndarray:
        times = np.array(self._spans[0][2 * first :]).reshape(-1, 2)
        rows = np.empty(len(times), SPANS)
        rows["start"], rows["end"] = times[:, 0], times[:, 1]
        rows["code"] = self._spans[1][first:]
        return rows

    def _events_from(self, first: int) -> np.ndarray:
        rows = np.empty(len(self._events[0]) - first, EVENTS)
        rows["time"] = self._events[0][first:]
        rows["code"] = self._events[1][first:]
        return rows

    def busy(self) -> dict[int, tuple[float, float]]:
        """Rank → seconds of computing, and of waiting for messages, of the ranks that have any."""
        spans = self.spans
        rank, kind, _, _ = decode(spans["code"])
        seconds = spans["end"] - spans["start"]
        sums = [np.bincount(rank, seconds * (kind == k)) for k in (Span.COMPUTE, Span.WAIT)]
        return {int(r): (float(sums[0][r]), float(sums[1][r])) for r in np.unique(rank)}

    def sha256(self, parameters: Iterable[np.ndarray]) -> str:
        """Covers (time, rank, kind, iteration, peer) of spans and events, and the parameters,
        which a timing-only run (`Weightless`) has none of."""
        digest = hashlib.sha256(self.spans.tobytes() + self.events.tobytes())
        for vector in parameters:
            if isinstance(vector, np.ndarray):
                digest.update(vector.tobytes())
        return digest.hexdigest()

    def flush(self, folder: Path, process: int, iteration: int) -> None:
        """Write what is new since the last flush as the segment that ends at `iteration`."""
        segment = f"{process:05d}-{iteration:09d}.npy"
        for table, rows in (
            ("spans", self._spans_from(self._flushed[0])),
            ("events", self._events_from(self._flushed[1])),
        ):
            atomic.write_array(folder / f"{table}-{segment}", rows)
        self._flushed = len(self._spans[1]), len(self._events[1])

    def restore(self, folder: Path, process: int, iteration: int) -> None:
        """Read back the segments of `process` that end at or before `iteration`."""
        spans, events = load(folder, process, iteration)
        times = np.column_stack((spans["start"], spans["end"]))
        self._spans[0].frombytes(times.tobytes())
        self._spans[1].frombytes(spans["code"].tobytes())
        self._events[0].frombytes(events["time"].tobytes())
        self._events[1].frombytes(events["code"].tobytes())
        self._flushed = len(spans), len(events)


def load(
    folder: Path, process: int | None = None, iteration: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Spans and events of a trace folder, of one process or all, in the order recorded."""
    pattern = "*" if process is None else f"{process:05d}"
    tables = []
    for table, dtype in (("spans", SPANS), ("events", EVENTS)):
        paths = sorted(folder.glob(f"{table}-{pattern}-*.npy"))
        parts = []
        for path in paths:
            if iteration is None or int(path.stem.rsplit("-", 1)[1]) <= iteration:
                with atomic.readable(path):
                    parts.append(np.load(path, allow_pickle=False))
        if any(part.dtype != dtype for part in parts):
            raise BadInput(f"{folder}: not a trace of this version; record the run again")
        tables.append(np.concatenate(parts) if parts else np.empty(0, dtype))
    return tables[0], tables[1]


def load_run(run: str | Path, given: str) -> tuple[np.ndarray, np.ndarray]:
    """`load` of a run folder; BadInput, which begins with `given`, when it holds no trace."""
    spans, events = load(Path(run) / "trace")
    if not len(events):
        raise BadInput(f"{given}: no trace there; give the --run_dir of a run that has ended")
    return spans, events


def compute_times(run: str | Path) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """Rank → (iterations at which it started to compute, ascending; seconds each took).

    A computation that was interrupted (`drop`) would have taken longer than recorded: the longest
    one of its rank stands in for it.
    """
    spans, events = load_run(run, f"--delay=trace:{run}")
    _, kind, _, _ = decode(spans["code"])
    spans = spans[kind == Span.COMPUTE]
    rank, _, started, _ = decode(spans["code"])
    seconds = spans["end"] - spans["start"]
    stopped, kind, at, _ = decode(events["code"])
    interrupted = kind == Event.INTERRUPTED
    times = {}
    for r in np.unique(rank):
        mine = np.flatnonzero(rank == r)
        mine = mine[np.argsort(started[mine], kind="stable")]
        cut_short = np.isin(started[mine], at[interrupted & (stopped == r)])
        took = np.where(cut_short, seconds[mine].max(), seconds[mine])
        times[int(r)] = started[mine], took
    return times


def chrome(run: str | Path) -> dict:
    """The trace in Chrome's JSON format, for Perfetto: one track per rank, arrows as instants."""
    spans, events = load_run(run, str(run))
    rank, kind, iteration, _ = decode(spans["code"])
    rows = [
        {"ph": "X", "pid": 0, "tid": int(r), "name": Span(int(s)).name.lower(),
         "ts": start * 1e6, "dur": (end - start) * 1e6, "args": {"iteration": int(k)}}
        for r, s, k, start, end in zip(
            rank, kind, iteration, spans["start"].tolist(), spans["end"].tolist(), strict=True
        )
    ]  # fmt: skip
    rank, kind, iteration, peer = decode(events["code"])
    rows += [
        {"ph": "i", "s": "t", "pid": 0, "tid": int(r), "name": Kind(int(m)).name.lower(),
         "ts": time * 1e6, "args": {"iteration": int(k), "from": int(p)}}
        for r, m, k, p, time in zip(
            rank, kind, iteration, peer, events["time"].tolist(), strict=True
        )
        if m < Event.COMPUTED
    ]  # fmt: skip
    rows += [
        {"ph": "M", "pid": 0, "tid": int(r), "name": "thread_name", "args": {"name": f"rank {r}"}}
        for r in np.unique(rank)
    ]
    return {"traceEvents": rows, "displayTimeUnit": "ms"}
