"""Data sets of numbers whose originals are private: generated, or a user's own.

A file of the user's in --raw_dir is taken where it is there and sound; else the data are generated
from SEED, and every result says so.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from cbdybw.specs import Choice, integer, select
from data_prep import chiller, rail
from data_prep.samples import Samples

SEED = 0
NOTICE = f"generated series (seed {SEED}); the paper's data is private"

TABLES = {
    "rail": Choice(
        rail.samples,
        "stress in a rail; windows of a series (ADSP)",
        {"window": integer(1, default="10")},
    ),
    "chiller": Choice(chiller.samples, "performance of five chillers (ADSP)"),
}
"""Built from (numbers, name of their source, **keys)."""

_MODULES = {"rail": rail, "chiller": chiller}


class Found(NamedTuple):
    """The samples of a data set; `source` goes into the manifest, `notice` under every result."""

    samples: Samples
    source: dict[str, Any]
    notice: str | None


def is_table(dataset: str) -> bool:
    """Whether `dataset`, such as "rail:window=100", is one of TABLES."""
    return _name(dataset) in TABLES


def find(dataset: str, raw_dir: str, log: Callable[[str], None]) -> Found:
    """The samples of `dataset`; BadInput names what is wrong with a file of the user's."""
    choice, keys = select(dataset, "--dataset", TABLES)
    module = _MODULES[_name(dataset)]
    path = Path(raw_dir) / module.FILE
    if raw_dir and path.exists():
        numbers, notice = module.read(path), None
        source = {"name": "raw_dir", "place": str(path.resolve())}
    else:
        numbers, notice = module.generate(SEED), NOTICE
        source = {"name": "generated", "place": f"seed {SEED}"}
        log(f"{dataset}: no {module.FILE} of your own in --raw_dir: {notice}")
    source |= {"sha256": hashlib.sha256(numbers.tobytes()).hexdigest(), "original": False}
    blamed = dataset if notice else str(path)
    return Found(choice.build(numbers, blamed, **keys), source, notice)


def _name(dataset: str) -> str:
    return dataset.partition(":")[0].strip()
