"""What messages between MPI ranks take: latency, bandwidth, cards and overhead, with plain mpi4py.

All ranks of a communicator call each function together, and get its result on every rank. While two
ranks measure the others sleep: they may share processors. Who waits for a message looks once in a
millisecond, as a rank that trains does, and latencies include that. Figures are medians of several.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from mpi4py import MPI

_FIRST = 65_536  # bytes of the message that tells how large the others can be
_LEAST, _MOST = 3, 20  # repetitions
_CHUNK, _AHEAD = 32_768, 4  # bytes of a message in a stream, and messages under way to each rank
_STREAMS, _LONGEST = 3, 0.4  # streams in each direction, and seconds of one at most
_EMPTY = 15  # messages without content that a latency is the median of
_ASK, _DATA, _END, _ANSWER = range(4)  # tags
_PAUSE, _NAP = 1e-3, 1e-4  # seconds between two looks: of who has nothing to do, of who has


class Link(NamedTuple):
    """Seconds that a message without content takes from one rank to the other, and bytes per second
    of a vector beyond that; the mean of both directions."""

    latency: float
    bandwidth: float


class Card(NamedTuple):
    """Bytes per second that a rank sends when it sends to all others, and that it receives when all
    others send to it."""

    out: float
    into: float


def links(comm: MPI.Comm, nbytes: int, seconds: float) -> dict[tuple[int, int], Link]:
    """(i, j) → the link of ranks i < j for vectors of `nbytes`, within about `seconds`.

    Where these would take too long, smaller messages stand in for them.
    """
    pairs = list(itertools.combinations(range(comm.size), 2))
    found = {}
    for i, j in pairs:
        _meet(comm)
        if comm.rank == i:
            found[i, j] = _ask(comm, j, nbytes, seconds / len(pairs))
        elif comm.rank == j:
            _answer(comm, i)
    return {pair: link for some in comm.allgather(found) for pair, link in some.items()}


def _ask(comm: MPI.Comm, peer: int, nbytes: int, seconds: float) -> Link:
    _back_and_forth(comm, peer, 0, _LEAST)  # connects
    latency = _back_and_forth(comm, peer, 0, _EMPTY)
    first = min(nbytes, _FIRST)
    pace = first / _back_and_forth(comm, peer, first, 1)
    size = int(max(first, min(nbytes, pace * seconds / (2 * _LEAST))))
    times = int(np.clip(pace * seconds / (2 * size), _LEAST, _MOST))
    took = _back_and_forth(comm, peer, size, times)
    comm.Send(np.array((-1, 0)), peer, _ASK)
    return Link(latency, size / max(took - latency, took / 2))


def _back_and_forth(comm: MPI.Comm, peer: int, nbytes: int, times: int) -> float:
    """Seconds of one way, the median."""
    comm.Send(np.array((nbytes, times)), peer, _ASK)
    there = back = np.zeros(nbytes, np.uint8)
    took = []
    for _ in range(times):
        begun = time.perf_counter()
        comm.Send(there, peer, _DATA)
        _wait(comm.Irecv(back, peer, _DATA))
        took.append((time.perf_counter() - begun) / 2)
    return statistics.median(took)


def _answer(comm: MPI.Comm, peer: int) -> None:
    order = np.empty(2, int)
    while True:
        _wait(comm.Irecv(order, peer, _ASK))
        nbytes, times = map(int, order)
        if nbytes < 0:
            return
        vector = np.empty(nbytes, np.uint8)
        for _ in range(times):
            _wait(comm.Irecv(vector, peer, _DATA))
            comm.Send(vector, peer, _DATA)


def cards(comm: MPI.Comm, seconds: float) -> list[Card]:
    """Each rank's card, within about `seconds`."""
    each = min(_LONGEST, seconds / (2 * _STREAMS * comm.size))
    own = Card(0.0, 0.0)
    for centre in range(comm.size):
        rates = []
        for outward in (True, False):
            several = []
            for _ in range(_STREAMS):
                _meet(comm)
                several.append(_stream(comm, centre, outward, each))
            rates.append(statistics.median(several))
        if comm.rank == centre:
            own = Card(*rates)
    return comm.allgather(own)


def _stream(comm: MPI.Comm, centre: int, outward: bool, seconds: float) -> float:
    """Bytes per second between `centre` and all others, as it sees them."""
    if comm.rank == centre:
        peers = [rank for rank in range(comm.size) if rank != centre]
    else:
        peers = [centre]
    sends = outward == (comm.rank == centre)
    times = (_send if sends else _receive)(comm, peers, seconds)
    begun = times[0] + seconds / 4  # by then all of them are under way
    times = [moment for moment in times if moment >= begun] or times
    passed = times[-1] - times[0]
    return (len(times) - 1) * _CHUNK / passed if passed else 0.0


def _send(comm: MPI.Comm, peers: list[int], seconds: float) -> list[float]:
    """Keep some messages under way to each peer for `seconds`; when each was answered."""
    chunk, nothing = np.zeros(_CHUNK, np.uint8), np.empty(0, np.uint8)
    under_way = [_AHEAD] * len(peers)
    sent = [comm.Isend(chunk, peer, _DATA) for peer in peers for _ in range(_AHEAD)]
    answers = [comm.Irecv(nothing, peer, _ANSWER) for peer in peers]
    times, end = [], time.perf_counter() + seconds
    while any(under_way):
        n, _ = _any(answers)
        under_way[n] -= 1
        if (now := time.perf_counter()) < end:
            times.append(now)
            sent.append(comm.Isend(chunk, peers[n], _DATA))
            under_way[n] += 1
        if under_way[n]:
            answers[n] = comm.Irecv(nothing, peers[n], _ANSWER)
    sent += [comm.Isend(nothing, peer, _END) for peer in peers]
    MPI.Request.Waitall(sent)
    return times or [end]


def _receive(comm: MPI.Comm, peers: list[int], seconds: float) -> list[float]:
    """Answer all messages until each peer has said that it was the last; when they came."""
    chunks = [np.empty(_CHUNK, np.uint8) for _ in peers]
    nothing, sent, times = np.empty(0, np.uint8), [], []
    begun, ended, status = time.perf_counter(), 0, MPI.Status()
    coming = [comm.Irecv(c, peer) for c, peer in zip(chunks, peers, strict=True)]
    while ended < len(peers):
        n, status = _any(coming)
        if status.tag == _END:
            ended += 1
            continue
        if (now := time.perf_counter()) < begun + seconds:
            times.append(now)
        sent.append(comm.Isend(nothing, peers[n], _ANSWER))
        coming[n] = comm.Irecv(chunks[n], peers[n])
    MPI.Request.Waitall(sent)
    return times or [begun]


def _any(requests: list[MPI.Request]) -> tuple[int, MPI.Status]:
    """Which of these is done, and how."""
    status = MPI.Status()
    while True:
        n, here = MPI.Request.Testany(requests, status)
        if here:
            return n, status
        time.sleep(_NAP)


def overheads(comm: MPI.Comm) -> list[float]:
    """Seconds of each rank's processor that sending one small message takes, to the next rank."""
    own, nothing = [], np.empty(0, np.uint8)
    to, source = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    _meet(comm)
    for _ in range(100):
        coming = comm.Irecv(nothing, source, _DATA)
        begun = time.perf_counter()
        going = comm.Isend(nothing, to, _DATA)
        own.append(time.perf_counter() - begun)
        MPI.Request.Waitall([coming, going])
    return comm.allgather(statistics.median(own))


def steps(comm: MPI.Comm, step: Callable[[int], object] | None, seconds: float) -> list[float]:
    """Seconds of `step(n)` on each rank, all at the same time; 0 where there is None."""
    took = [0.0]
    if step is not None:
        step(0)  # compiles
    _meet(comm)
    if step is not None:
        took, end = [], time.perf_counter() + seconds
        while len(took) < _LEAST or time.perf_counter() < end:
            begun = time.perf_counter()
            step(len(took) + 1)
            took.append(time.perf_counter() - begun)
    _meet(comm)
    return comm.allgather(statistics.median(took))


def _meet(comm: MPI.Comm) -> None:
    """Come together."""
    _wait(comm.Ibarrier())


def _wait(request: MPI.Request) -> None:
    """Wait without keeping a processor from those that work."""
    while not request.Test():
        time.sleep(_PAUSE)
