"""Machines of unequal speed, read from a TOML file that lists them in the order of ranks.

description = "…"

[network]
bandwidth = 12.5e6     # bytes per second of every sender
latency = 0.01         # seconds

[[machines]]
name = "t2.large"
count = 7
seconds = 1.0          # of one minibatch
slowed = true          # belongs to the group that is slowed to make the cluster more unequal
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cbdybw.commit_theory import slowdown
from cbdybw.errors import BadInput


class Machines(NamedTuple):
    """What a file says; the arrays have an entry for each instance, in the order of ranks.

    Attributes:
        seconds: of one minibatch, as the file says.
        slowed: whether the instance is of the group that is slowed.
        bandwidth: bytes per second of every sender.
        latency: seconds that every message travels.
    """

    description: str
    names: tuple[str, ...]
    seconds: np.ndarray
    slowed: np.ndarray
    bandwidth: float
    latency: float

    @property
    def speeds(self) -> np.ndarray:
        """Minibatches per second, nobody slowed."""
        return 1 / self.seconds

    def slowdown(self, heterogeneity: float) -> float:
        """By which factor the group is slowed to make H = (Σ v/M)/min v; 1 for H = 0, as it is."""
        if heterogeneity == 0:
            return 1.0
        return slowdown(self.speeds, np.flatnonzero(self.slowed).tolist(), heterogeneity)

    def step_seconds(self, heterogeneity: float = 0, processes: int = 1) -> np.ndarray:
        """Seconds of one minibatch for each worker, with `processes` neighbouring ranks on an
        instance, each as fast as one alone [choice]."""
        factors = np.where(self.slowed, self.slowdown(heterogeneity), 1.0)
        return np.repeat(self.seconds * factors, processes)


def load(path: str | Path) -> Machines:
    """Read a file; whatever is wrong with it is BadInput that names it."""
    try:
        table = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}: cannot be read as text ({error})") from None
    except tomllib.TOMLDecodeError as error:
        raise BadInput(f"{path}: not TOML ({error}); mend it there") from None
    top = _read(table, _TOP, str(path))
    network = _read(top["network"], _NETWORK, f"{path}: [network]")
    rows = [
        _read(row, _MACHINE, f"{path}: [[machines]] {at}")
        for at, row in enumerate(top["machines"], 1)
    ]
    counts = [row["count"] for row in rows]
    return Machines(
        top["description"],
        tuple(row["name"] for row in rows for _ in range(row["count"])),
        np.repeat([float(row["seconds"]) for row in rows], counts),
        np.repeat([row["slowed"] for row in rows], counts),
        float(network["bandwidth"]),
        float(network["latency"]),
    )


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value <= 1e12


# For each key: whether a value will do, and what completes "use …".
_TEXT = (lambda value: isinstance(value, str), "a text")
_ABOVE_0 = (lambda value: _is_number(value) and value > 0, "a number above 0 to 1e12")
_TOP = {
    "description": _TEXT,
    "network": (lambda value: isinstance(value, dict), "a table [network]"),
    "machines": (
        lambda value: isinstance(value, list) and value and all(isinstance(v, dict) for v in value),
        "tables [[machines]]",
    ),
}
_NETWORK = {
    "bandwidth": _ABOVE_0,
    "latency": (_is_number, "a number from 0 to 1e12"),
}
_MACHINE = {
    "name": _TEXT,
    "count": (
        lambda value: type(value) is int and 1 <= value <= 10**5,
        "a whole number, 1 to 100000",
    ),
    "seconds": _ABOVE_0,
    "slowed": (lambda value: isinstance(value, bool), "true or false"),
}


def _read(table: Mapping[str, Any], wanted: Mapping[str, tuple], where: str) -> Mapping[str, Any]:
    """The table, if it holds exactly the keys that are wanted, with values that will do."""
    for key in table:
        if key not in wanted:
            raise BadInput(f"{where}: there is no key {key!r}; use {', '.join(wanted)}")
    for key, (will_do, allowed) in wanted.items():
        if key not in table:
            raise BadInput(f"{where}: {key} is missing; use {allowed}")
        if not will_do(table[key]):
            raise BadInput(f"{where}: {key} is {table[key]!r}; use {allowed}")
    return table
