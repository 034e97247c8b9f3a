"""Fault schedules: which rank fails when, and how. One TOML file for both clusters.

[[fault]]
kind = "kill"          # see below
role = "servers"       # or "workers"; or ranks = [3, 4]
fraction = 0.5         # of the role, at least one rank; or count = 1; without either all of it
iteration = 30         # or time = 2.5, seconds on the cluster's clock; or geometric = 0.02
seed = 1               # of what is drawn, 0 if left out

| kind         | what becomes of the rank                             | needs             |
|--------------|------------------------------------------------------|-------------------|
| `kill`       | it dies at once, by SIGKILL on MPI                   |                   |
| `pause`      | it stands still                                      | `seconds`         |
| `slow`       | computing takes it `factor` times as long            | `seconds`,`factor`|
| `disconnect` | nothing goes in or out, then all of it does, in order| `seconds`         |
| `corrupt`    | the newest file of its running checkpoint is damaged |                   |

`seconds = inf` makes a rank slow to the end. With `geometric = q` the iteration k is drawn with
P(k) ∝ q(1 − q)^(k−1) for k = `least` (1 if left out) up to `most`, mean 1/q without these two: once
for all ranks of the table, which fail together. Rank 0 sums up the run and is never killed, nor
drawn to be; ranks are drawn among those that no earlier table kills; a server must be left.

A rank reaches iteration k when it calls `compute(index=k)` or `record(…, k=k)`. A fault strikes
there, before the rank goes on, or at its time, whatever the rank is doing.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cbdybw.clusters.watch import CORRUPT, DISCONNECT, KILL, PAUSE, SLOW, Fault, Watch
from cbdybw.clusters.worker import keyed_rng
from cbdybw.errors import BadInput

_NEEDS = {
    KILL: (),
    PAUSE: ("seconds",),
    SLOW: ("seconds", "factor"),
    DISCONNECT: ("seconds",),
    CORRUPT: (),
}
_ROOT = 0


@dataclass(frozen=True)
class Schedule:
    """The faults of a run, in the order of the file, then of ranks."""

    faults: tuple[Fault, ...]

    def of(self, rank: int) -> Watch:
        """A new watch over what happens to `rank`."""
        return Watch([fault for fault in self.faults if fault.rank == rank])


# The file


def read(path: str | Path, workers: int, servers: int) -> Schedule:
    """The schedule of a run on ranks 0 … workers + servers − 1, of which the last are servers.

    Everything random is drawn here, by the tables' seeds. Raises BadInput, with a line for
    everything that is wrong with the file.
    """
    text = _text(path)
    try:
        top = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadInput(f"{path}: not TOML ({error}); mend it there") from None
    tables = top.pop("fault", None)
    problems = [f"{path}: there is no {key!r}; use tables [[fault]]" for key in top]
    if not (isinstance(tables, list) and tables and all(isinstance(t, dict) for t in tables)):
        problems.append(f"{path}: holds no faults; use tables [[fault]]")
        tables = []
    roles = {"workers": range(workers), "servers": range(workers, workers + servers)}
    doomed: set[int] = set()
    faults: list[Fault] = []
    for number, (table, where) in enumerate(zip(tables, _places(text, len(tables)), strict=True)):
        try:
            faults += _faults(table, roles, doomed, number)
        except _Wrong as wrong:
            problems += [f"{path}{where}: {line}" for line in wrong.args]
    if problems:
        raise BadInput("\n".join(problems))
    return Schedule(tuple(faults))


class _Wrong(ValueError):
    """What is wrong with one table, a line each."""


def _text(path: str | Path) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}: cannot be read as text ({error})") from None


def _places(text: str, count: int) -> list[str]:
    """Where each table stands: its number, and its line when the headers tell."""
    lines = [n for n, line in enumerate(text.splitlines(), 1) if _HEADER.match(line)]
    known = len(lines) == count  # inline tables have no header
    return [(f":{lines[n]}" if known else "") + f": [[fault]] {n + 1}" for n in range(count)]


def _faults(
    table: Mapping[str, Any], roles: Mapping[str, range], doomed: set[int], number: int
) -> list[Fault]:
    """What table `number` says; `doomed`, the ranks that are killed, grows. Raises _Wrong."""
    for complaints in (_of_keys(table), _of_form(table)):
        if wrong := list(complaints):
            raise _Wrong(*wrong)
    seed, kind = table.get("seed", 0), table["kind"]
    ranks = _ranks(table, roles, doomed, keyed_rng(seed, "fault ranks", number, 0))
    if kind == KILL:
        doomed.update(ranks)
        if roles["servers"] and doomed.issuperset(roles["servers"]):
            raise _Wrong("no server would be left; kill one less")
    iteration, time = table.get("iteration"), table.get("time")
    if "geometric" in table:
        least, most = table.get("least", 1), table.get("most", math.inf)
        rng = keyed_rng(seed, "fault iteration", number, 0)
        iteration = geometric(rng, table["geometric"], least, most)
    seconds, factor = table.get("seconds", 0.0), table.get("factor", 1.0)
    return [Fault(kind, rank, iteration, time, seconds, factor) for rank in ranks]


def geometric(rng: np.random.Generator, q: float, least: int = 1, most: float = math.inf) -> int:
    """k with P(k) ∝ q(1 − q)^(k−1), least ≤ k ≤ most: the law's quantile of a uniform number."""
    stay = math.log1p(-q) if q < 1 else -math.inf  # log of the chance to survive an iteration
    within = -math.expm1(stay * (most - least + 1))
    k = least + math.floor(math.log1p(-rng.random() * within) / stay)
    return int(min(k, most))


def _ranks(
    table: Mapping[str, Any],
    roles: Mapping[str, range],
    doomed: set[int],
    rng: np.random.Generator,
) -> list[int]:
    """The ranks that a table strikes, ascending."""
    kills, size = table["kind"] == KILL, sum(map(len, roles.values()))
    if "ranks" in table:
        ranks = sorted(table["ranks"])
        if ranks[-1] >= size:
            raise _Wrong(f"ranks: {ranks[-1]} is none of this run's; use ranks 0 to {size - 1}")
    else:
        role = table["role"]
        ranks = list(roles[role])
        if not ranks:
            raise _Wrong(f"role: this run has no {role}; use another role, or --{role}")
        if "fraction" in table or "count" in table:
            count = table.get("count") or max(1, round(table["fraction"] * len(ranks)))
            pool = [r for r in ranks if r != _ROOT and r not in doomed] if kills else ranks
            if count > len(pool):
                raise _Wrong(f"{count} of the {role} are to be drawn from {len(pool)}; draw fewer")
            ranks = sorted(rng.choice(pool, count, replace=False).tolist())
    if kills and _ROOT in ranks:
        raise _Wrong("rank 0 sums up the run and cannot be killed; use other ranks, or a count")
    for rank in doomed.intersection(ranks) if kills else ():
        raise _Wrong(f"rank {rank} is killed by an earlier table; use other ranks, or a count")
    return ranks


# What is wrong with a table by itself


def _of_keys(table: Mapping[str, Any]) -> Iterator[str]:
    for key, value in table.items():
        if key not in _KEYS:
            yield f"there is no key {key!r}; use {', '.join(_KEYS)}"
        elif not _KEYS[key][0](value):
            yield f"{key} is {value!r}; use {_KEYS[key][1]}"


def _of_form(table: Mapping[str, Any]) -> Iterator[str]:
    """Keys that are missing, and those that do not go together."""
    kind = table.get("kind")
    if kind is None:
        yield f"kind is missing; use {_KEYS['kind'][1]}"
        return
    for key in ("seconds", "factor"):
        if key in _NEEDS[kind] and key not in table:
            yield f"{key} is missing, which {kind} needs; use {_KEYS[key][1]}"
        elif key in table and key not in _NEEDS[kind]:
            yield f"{key} means nothing to {kind}; leave it out"
    if table.get("seconds") == math.inf and kind != SLOW:
        yield f"seconds is inf, of a {kind} that never ends; use a finite number"
    for choices, least in _ONE_OF.items():
        given = [key for key in choices if key in table]
        if len(given) > 1:
            yield f"{' and '.join(given)} exclude each other; keep one"
        elif len(given) < least:
            yield f"one of {', '.join(choices)} is missing; add it"
    for key, friends in _ONLY_WITH.items():
        if key in table and not any(friend in table for friend in friends):
            yield f"{key} means nothing without {' or '.join(friends)}; leave it out"
    if table.get("least", 1) > table.get("most", math.inf):
        yield f"least is {table.get('least', 1)}, above most; exchange them"


_HEADER = re.compile(r"\s*\[\[\s*fault\s*\]\]")
_ONE_OF = {  # and how many there must be
    ("role", "ranks"): 1,
    ("iteration", "time", "geometric"): 1,
    ("fraction", "count"): 0,
}
_ONLY_WITH = {
    "fraction": ("role",),
    "count": ("role",),
    "least": ("geometric",),
    "most": ("geometric",),
    "seed": ("fraction", "count", "geometric"),
}


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < math.inf


def _is_whole(value: Any, low: int = 0) -> bool:
    return type(value) is int and low <= value < 2**53


# For each key: whether a value will do, and what completes "use …".
_KEYS = {
    "kind": (lambda v: isinstance(v, str) and v in _NEEDS, f"one of {', '.join(_NEEDS)}"),
    "role": (lambda v: v in ("workers", "servers"), "workers or servers"),
    "ranks": (
        lambda v: isinstance(v, list) and v and all(map(_is_whole, v)) and len(set(v)) == len(v),
        "a list of different ranks, such as [3, 4]",
    ),
    "fraction": (lambda v: _is_number(v) and 0 < v <= 1, "a number above 0 to 1"),
    "count": (lambda v: _is_whole(v, 1), "a whole number from 1 up"),
    "iteration": (_is_whole, "a whole number from 0 up"),
    "time": (_is_number, "seconds from 0 up"),
    "geometric": (lambda v: _is_number(v) and 1e-9 <= v <= 1, "a number from 1e-9 to 1, 1/mean"),
    "least": (lambda v: _is_whole(v, 1), "a whole number from 1 up"),
    "most": (lambda v: _is_whole(v, 1), "a whole number from 1 up"),
    "seed": (_is_whole, "a whole number from 0 up"),
    "seconds": (lambda v: v == math.inf or (_is_number(v) and v > 0), "seconds above 0"),
    "factor": (lambda v: _is_number(v) and v > 1, "a number above 1"),
}
