"""Data sets of numbers, not images: a user's own file, else downloaded or generated.

A file of the user's in --raw_dir is taken where it is there and sound. Else what is published is
downloaded; what is private is generated from SEED, and every result says so.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from cbdybw.errors import BadInput
from cbdybw.specs import Choice, integer, select
from data_prep import chiller, covertype, rail
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
    "covertype": Choice(covertype.samples, "forest cover of 581,012 patches of land (SCAR)"),
}
"""Built from (numbers, name of their source, **keys)."""

_MODULES = {"rail": rail, "chiller": chiller, "covertype": covertype}


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
    path, notice = _own_file(module.FILE, raw_dir), None
    if path:
        numbers = module.read(path)
        source = {"name": "raw_dir", "place": str(path.resolve()), "original": False}
    elif module is covertype:
        if raw_dir:
            raise BadInput(
                f"--raw_dir={raw_dir}: no {module.FILE} there; leave out or name another"
            )
        numbers = covertype.fetch(log)
        source = {"name": "figshare", "place": covertype.URL, "original": True}
    else:
        numbers, notice = module.generate(SEED), NOTICE
        source = {"name": "generated", "place": f"seed {SEED}", "original": False}
        log(f"{dataset}: no {module.FILE} of your own in --raw_dir: {notice}")
    source["sha256"] = hashlib.sha256(numbers.tobytes()).hexdigest()
    return Found(choice.build(numbers, str(path or dataset), **keys), source, notice)


def _own_file(name: str, raw_dir: str) -> Path | None:
    """The user's file `name`, gzipped or not."""
    paths = (Path(raw_dir, name + suffix) for suffix in ("", ".gz")) if raw_dir else ()
    return next((path for path in paths if path.exists()), None)


def _name(dataset: str) -> str:
    return dataset.partition(":")[0].strip()
