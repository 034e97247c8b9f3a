"""How long messages travel on the virtual cluster.

Where nothing is known of cards, a sender's network card sends one message after the other at the
link's bandwidth; then the message travels for the link's latency, and receiving is free. A link
never reorders.

Where a file says at what rate the ranks' cards send and receive, messages share these rates, and
those of their links, at the same time: see `clusters.cards`. A file of measured rates is what
`python -m experiments.calibrate` writes. What the model leaves out: what messages cost processors,
packets that are lost, switches with less room than their ports together, ranks that share a card
(each of them has what it had of it when all were talking), the slow start of a connection that has
been idle, and the consent of the receiver that MPI waits for before it sends a large message. Over
TCP the latter comes behind what goes the other way, and iterations in which neighbours exchange
vectors took half as long again; `--mca btl_tcp_eager_limit` (with `…rndv_eager_limit` and
`…max_send_size`) above the size of a vector does away with it, and is what predictions are for.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections import deque
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from cbdybw import specs
from cbdybw.clusters.cards import Cards
from cbdybw.clusters.worker import FIRST_CONTROL, Message
from cbdybw.errors import BadInput

HEADER = 16  # bytes of a message beside its body (8 bytes each) and its vector [choice]
_FREE = (0.0, math.inf)
Then = Callable[[float, bool], None]
"""What happens when it is known when a message arrives, and whether right behind control."""


class Network:
    """A time model of links.

    Args:
        latency: seconds that every message travels.
        bandwidth: bytes per second of every sender.
        jitter: mean of an exponential further latency, drawn for each message.
        links: (source, dest) → (latency, bandwidth) where they differ.
        cards: rank → bytes per second that its card sends, and as many that it receives, at the
            same time; with any, every other card has `bandwidth`, and links without an entry are
            as fast as their cards.
        seed: of the jitter, which is keyed by (seed, source, dest, kind, iteration).
    """

    def __init__(
        self,
        latency: float = 0.0,
        bandwidth: float = math.inf,
        jitter: float = 0.0,
        links: Mapping[tuple[int, int], tuple[float, float]] | None = None,
        seed: int = 0,
        cards: Mapping[int, float] | None = None,
    ):
        self._default, self._jitter, self._seed = (latency, bandwidth), jitter, seed
        self._links, self._card_rates = links or {}, cards or {}
        self.instant = latency == 0 and bandwidth == math.inf and jitter == 0
        self.instant = self.instant and not self._links and not cards
        self.shares = bool(cards)
        self._cards = Cards(
            card=lambda rank: self._card_rates.get(rank, bandwidth),
            link=lambda way: self._links.get(way, _FREE)[1],
        )
        self._under_way: dict[tuple[int, int], deque[tuple[Message, float, Then]]] = {}
        self._card_free: dict[int, float] = {}
        self._last: dict[tuple[int, int], tuple[float, bool]] = {}
        self._many = 1024  # links remembered before those that are idle are forgotten

    def arrival(self, source: int, dest: int, message: Message, now: float) -> tuple[float, bool]:
        """When the message arrives, and whether it comes right behind control on its link.

        Where cards are shared, that is so if nothing else is sent: see `share`.
        """
        nbytes, latency, bandwidth = self._facts(source, dest, message)
        if self.shares:
            self._cards.send((source, dest), nbytes, now)
            return self._cards.foretold((source, dest)) + latency, False
        sent = max(now, self._card_free.get(source, 0.0)) + nbytes / bandwidth
        self._card_free[source] = sent
        return self._in_order(source, dest, message, sent + latency, now)

    def share(self, source: int, dest: int, message: Message, now: float, then: Then) -> None:
        """Put a message on its way over shared cards; `through` says when it has passed them."""
        nbytes, latency, _ = self._facts(source, dest, message)
        self._cards.send((source, dest), nbytes, now)
        self._under_way.setdefault((source, dest), deque()).append((message, latency, then))

    @property
    def next(self) -> float:
        """When the next message will have passed the cards, if nothing is shared before; or inf."""
        return self._cards.next

    def through(self, now: float) -> Iterator[tuple[Then, float, bool]]:
        """The messages that have passed the cards by now: what was said with each, when it arrives,
        and whether it comes right behind control on its link."""
        for way in self._cards.through(now):
            message, latency, then = self._under_way[way].popleft()
            yield then, *self._in_order(*way, message, now + latency, now)

    def _facts(self, source: int, dest: int, message: Message) -> tuple[int, float, float]:
        """Bytes of a message, seconds that it travels, and the bandwidth that it has alone."""
        latency, bandwidth = self._links.get((source, dest), self._default)
        nbytes = HEADER + 8 * len(message.body)
        nbytes += message.vector.nbytes if message.vector is not None else 0
        return nbytes, latency + self._extra(source, dest, message), bandwidth

    def _in_order(
        self, source: int, dest: int, message: Message, time: float, now: float
    ) -> tuple[float, bool]:
        """When a message arrives that could at `time`: not before those sent before it."""
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
        self._cards.forget()
        self._under_way.clear()
        self._last.clear()

    def _extra(self, source: int, dest: int, message: Message) -> float:
        if not self._jitter:
            return 0.0
        key = struct.pack("<5q", self._seed, source, dest, message.kind, message.iteration)
        word = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little")
        return -self._jitter * math.log((word + 1) / 2**64)

    def barrier(self, members: int) -> float:
        """Seconds of a dissemination barrier: ⌈log₂ n⌉ rounds of one latency."""
        return math.ceil(math.log2(members)) * self._slowest()[0] if members > 1 else 0.0

    def allreduce(self, members: int, vector: np.ndarray) -> float:
        """Seconds of a ring allreduce: 2(n-1) rounds of one n-th of the vector."""
        latency, bandwidth = self._slowest()
        return 2 * (members - 1) * (latency + vector.nbytes / members / bandwidth)

    def _slowest(self) -> tuple[float, float]:
        """Latency and bandwidth of a round in which everybody sends: those of the slowest, where
        cards are known."""
        if not self.shares:
            return self._default
        latencies, bandwidths = zip(self._default, *self._links.values(), strict=True)
        return max(latencies), min(*bandwidths, *self._card_rates.values())


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

    A line `i j latency bandwidth` of the file overrides both directions of a link, a line `i rate`
    says how many bytes per second the card of rank i sends, and as many it receives.
    """
    name, keys = specs.parse(text, "--network")
    if name:
        raise BadInput(f"--network={text}: {name!r} is no pair key=value; use {USAGE}")
    values = specs.read(keys, KEYS, f"--network={text}", USAGE)
    path = values.pop("links")
    links, cards = _read_links(path, workers) if path else (None, None)
    return Network(**values, links=links, cards=cards, seed=seed)


def _read_links(
    path: str, workers: int
) -> tuple[dict[tuple[int, int], tuple[float, float]], dict[int, float]]:
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not a text file"
        raise BadInput(f"--network: links={path}: {reason}; give a readable file") from None
    links, cards = {}, {}
    for n, line in enumerate(lines, 1):
        words = line.split("#")[0].split()
        if not words:
            continue
        try:
            if len(words) == 2:
                ranks, values = [int(words[0])], [_read_bandwidth(words[1])]
            else:
                i, j, latency, bandwidth = words
                ranks = [int(i), int(j)]
                values = [KEYS["latency"].read(latency), _read_bandwidth(bandwidth)]
        except ValueError:
            what = "is neither `i j latency bandwidth` nor `i rate`"
            raise BadInput(f"{path}:{n}: {line!r} {what}") from None
        if len(set(ranks)) < len(ranks) or not all(0 <= rank < workers for rank in ranks):
            what = "link " + " ".join(map(str, ranks)) if len(ranks) > 1 else f"rank {ranks[0]}"
            raise BadInput(f"{path}:{n}: no {what} among the ranks 0 … {workers - 1}")
        if len(ranks) == 1:
            cards[ranks[0]] = values[0]
        else:
            i, j = ranks
            links[i, j] = links[j, i] = tuple(values)
    return links, cards
