"""How long messages travel on the virtual cluster.

A sender's network card sends one message after the other at the link's bandwidth; then the message
travels for the link's latency. A link never reorders.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Mapping

import numpy as np

from cbdybw import specs
from cbdybw.clusters.worker import FIRST_CONTROL, Message
from cbdybw.errors import BadInput

HEADER = 16  # bytes of a message beside its body (8 bytes each) and its vector [choice]


class Network:
    """A time model of links.

    Args:
        latency: seconds that every message travels.
        bandwidth: bytes per second of every sender.
        jitter: mean of an exponential further latency, drawn for each message.
        links: (source, dest) → (latency, bandwidth) where they differ.
        seed: of the jitter, which is keyed by (seed, source, dest, kind, iteration).
    """

    def __init__(
        self,
        latency: float = 0.0,
        bandwidth: float = math.inf,
        jitter: float = 0.0,
        links: Mapping[tuple[int, int], tuple[float, float]] | None = None,
        seed: int = 0,
    ):
        self._default, self._jitter, self._seed = (latency, bandwidth), jitter, seed
        self._links = links or {}
        self.instant = latency == 0 and bandwidth == math.inf and jitter == 0 and not self._links
        self._card_free: dict[int, float] = {}
        self._last: dict[tuple[int, int], tuple[float, bool]] = {}
        self._many = 1024  # links remembered before those that are idle are forgotten

    def arrival(self, source: int, dest: int, message: Message, now: float) -> tuple[float, bool]:
        """When the message arrives, and whether it comes right behind control on its link."""
        latency, bandwidth = self._links.get((source, dest), self._default)
        nbytes = HEADER + 8 * len(message.body)
        nbytes += message.vector.nbytes if message.vector is not None else 0
        sent = max(now, self._card_free.get(source, 0.0)) + nbytes / bandwidth
        self._card_free[source] = sent
        time = sent + latency + self._extra(source, dest, message)
        last, behind = self._last.get((source, dest), (-1.0, False))
        time = max(time, last)
        behind = time == last and behind
        self._last[source, dest] = (time, behind or message.kind >= FIRST_CONTROL)
        if len(self._last) > self._many:
            self._forget_idle(now)
        return time, behind

    def _forget_idle(self, now: float) -> None:
        """Drop links on which nothing is under way: all pairs of 10,000 ranks fill the memory."""
        self._last = {link: last for link, last in self._last.items() if last[0] >= now}
        self._many = max(1024, 2 * len(self._last))

    def forget(self) -> None:
        """At a consistent cut nothing is under way: links are as new, as they are for a run that
        is resumed there."""
        self._card_free.clear()
        self._last.clear()

    def _extra(self, source: int, dest: int, message: Message) -> float:
        if not self._jitter:
            return 0.0
        key = struct.pack("<5q", self._seed, source, dest, message.kind, message.iteration)
        word = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little")
        return -self._jitter * math.log((word + 1) / 2**64)

    def barrier(self, members: int) -> float:
        """Seconds of a dissemination barrier: ⌈log₂ n⌉ rounds of one latency."""
        return math.ceil(math.log2(members)) * self._default[0] if members > 1 else 0.0

    def allreduce(self, members: int, vector: np.ndarray) -> float:
        """Seconds of a ring allreduce: 2(n-1) rounds of one n-th of the vector."""
        latency, bandwidth = self._default
        return 2 * (members - 1) * (latency + vector.nbytes / members / bandwidth)


def _read_bandwidth(text: str) -> float:
    rate = float(text)
    if not rate > 0:
        raise ValueError
    return rate


KEYS = {
    "latency": specs.number(0, default="0"),
    "bandwidth": specs.Value(_read_bandwidth, "bytes per second above 0, or inf", "inf"),
    "jitter": specs.number(0, default="0"),
    "links": specs.Value(str, "the path of a file of links", ""),
}
USAGE = "latency=0,bandwidth=inf,jitter=0,links=FILE"


def parse(text: str, workers: int, seed: int) -> Network:
    """`latency=0.001,bandwidth=1e9,jitter=0,links=FILE`, each key optional; "" is instant.

    A line of the file is `i j latency bandwidth` and overrides both directions of a link.
    """
    name, keys = specs.parse(text, "--network")
    if name:
        raise BadInput(f"--network={text}: {name!r} is no pair key=value; use {USAGE}")
    values = specs.read(keys, KEYS, f"--network={text}", USAGE)
    path = values.pop("links")
    return Network(**values, links=_links(path, workers) if path else None, seed=seed)


def _links(path: str, workers: int) -> dict[tuple[int, int], tuple[float, float]]:
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not a text file"
        raise BadInput(f"--network: links={path}: {reason}; give a readable file") from None
    links = {}
    for n, line in enumerate(lines, 1):
        words = line.split("#")[0].split()
        if not words:
            continue
        try:
            i, j, latency, bandwidth = words
            i, j = int(i), int(j)
            latency, bandwidth = KEYS["latency"].read(latency), _read_bandwidth(bandwidth)
        except ValueError:
            raise BadInput(f"{path}:{n}: {line!r} is not `i j latency bandwidth`") from None
        if i == j or not (0 <= i < workers and 0 <= j < workers):
            raise BadInput(f"{path}:{n}: no link {i} {j} among the ranks 0 … {workers - 1}")
        links[i, j] = links[j, i] = (latency, bandwidth)
    return links
