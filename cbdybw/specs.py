"""Flags of the form `name:key=value,key=value`, and the tables of names that they choose from.

    --delay=shifted_exponential:base=0.5,mean=0.5
    --graph=erdos_renyi:p=0.3

A table (delay laws, graphs …) maps each name to a `Choice`. Everything that a flag can get wrong
is found here and raised as `BadInput`; a builder is called with checked values only. The same
table prints the help text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from cbdybw.errors import BadInput


class Value(NamedTuple):
    """What may stand behind a key."""

    read: Callable[[str], Any]  # raises ValueError
    allowed: str  # completes "use …"
    default: str | None = None  # None: the key must be given


@dataclass(frozen=True)
class Choice:
    """One row of a table: what builds it, its keys, and one line of description."""

    build: Callable[..., Any]
    says: str
    keys: Mapping[str, Value] = field(default_factory=dict)

    @property
    def takes_path(self) -> bool:
        """`name:PATH`: a lone path, which may hold commas and equal signs."""
        return list(self.keys) == ["path"]

    def usage(self, name: str) -> str:
        """The form of the flag, defaults filled in: `persistent:ranks=,slowdown=,base=1`."""
        if self.takes_path:
            return f"{name}:PATH"
        keys = ",".join(f"{key}={value.default or ''}" for key, value in self.keys.items())
        return f"{name}:{keys}" if keys else name


def parse(text: str, flag: str) -> tuple[str, dict[str, str]]:
    """Split `name:key=value,key=value`; `flag` (such as "--delay") is named in the errors.

    Keys alone, as in `latency=0.001,bandwidth=1e9`, have the name "".
    """
    given = f"{flag}={text}"
    head, colon, tail = text.partition(":")
    name, pairs = (head.strip(), tail) if colon or "=" not in head else ("", text)
    keys: dict[str, str] = {}
    for pair in pairs.split(",") if pairs.strip() else ():
        key, equals, value = (part.strip() for part in pair.partition("="))
        if not (key and equals and value):
            raise BadInput(f"{given}: {pair!r} is no pair key=value; use name:key=value,key=value")
        if key in keys:
            raise BadInput(f"{given}: {key} is given twice; keep one")
        keys[key] = value
    return name, keys


def select(text: str, flag: str, table: Mapping[str, Choice]) -> tuple[Choice, dict[str, Any]]:
    """The row of `table` that `text` names, and the values of its keys, read and checked."""
    given = f"{flag}={text}"
    name, _, path = text.partition(":")
    name = name.strip()
    if name not in table:
        raise BadInput(f"{given}: {name!r} is not known; use one of {', '.join(table)}")
    choice = table[name]
    keys = {"path": path.strip()} if choice.takes_path else parse(text, flag)[1]
    return choice, read(keys, choice.keys, given, choice.usage(name))


def read(
    keys: Mapping[str, str], wanted: Mapping[str, Value], given: str, usage: str
) -> dict[str, Any]:
    """The values of `keys`, in the order of `wanted`.

    `given` is the whole flag as typed and `usage` its form; both appear in the errors.
    """
    for key in keys:
        if key not in wanted:
            raise BadInput(f"{given}: there is no key {key!r}; use {usage}")
    values = {}
    for key, value in wanted.items():
        text = keys.get(key, value.default)
        if text is None:
            raise BadInput(f"{given}: {key} is missing; use {usage}")
        try:
            values[key] = value.read(text)
        except ValueError:
            raise BadInput(f"{given}: {key} is {text!r}; use {value.allowed}") from None
    return values


def number(
    low: float, high: float = math.inf, *, above: bool = False, default: str | None = None
) -> Value:
    """A finite number from `low` (exclusive with `above`) to `high`."""

    def read_number(text: str) -> float:
        x = float(text)
        if not math.isfinite(x) or x < low or x > high or (above and x == low):
            raise ValueError
        return x

    start = f"a finite number above {low:g}" if above else f"a finite number from {low:g}"
    return Value(read_number, start + (f" to {high:g}" if high < math.inf else " up"), default)


def integer(low: int, *, default: str | None = None) -> Value:
    """A whole number from `low` up."""

    def read_integer(text: str) -> int:
        n = int(text)
        if n < low:
            raise ValueError
        return n

    return Value(read_integer, f"a whole number from {low} up", default)


def _read_ranks(text: str) -> tuple[int, ...]:
    ranks = tuple(int(rank) for rank in text.split("+"))
    if min(ranks) < 0 or len(set(ranks)) < len(ranks):
        raise ValueError
    return ranks


def _read_path(text: str) -> str:
    if not text:
        raise ValueError
    return text


RANKS = Value(_read_ranks, "different ranks joined by +, such as 0+3")
PATH = Value(_read_path, "the path of a file or folder")


def help_text(table: Mapping[str, Choice]) -> str:
    """One line for each row of `table`: the form of the flag and what it means."""
    rows = [(choice.usage(name), choice.says) for name, choice in table.items()]
    width = max(len(usage) for usage, _ in rows)
    return "\n".join(f"{usage:<{width}}  {says}" for usage, says in rows)
