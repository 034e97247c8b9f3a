"""What is kept of a run: a row, one small JSON file while a sweep goes on, a line of JSONL later.

A row has

    key, cell, seed     which run it is; cell is GROUP/NAME
    kind                what it did, where it did not train (see `experiments.kinds`)
    flags               name → value of those that differ from the defaults, but the seed
    status              finished, diverged or failed
    versions, commit    of what it was run with
    reason, story       of a failed run instead of what follows: a line, and the traceback or what
                        the ranks said
    result              the JSON object that the binary of its kind prints

and what else its kind keeps; of training that is

    curve               column → values, one an evaluation: iteration, clock_seconds, train_loss,
                        test_error, consensus_distance; None where a number is not finite; of more
                        than 210 evaluations 100 at about equal distances
    looks               column → values, one a look at the clock (--eval_seconds): seconds, steps,
                        held_out_loss
    mean_train_loss     over all evaluations, be they in the curve or not
    durations           seconds between the ends of consecutive iterations, K values
    backup_workers      how many were not waited for in iteration k, K values

durations and backup_workers are absent from runs of more than 1,000 iterations, backup_workers also
where nobody is left out. Numbers in lists have five significant digits, at the looks nine.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from cbdybw.errors import BadInput
from cbdybw.storage import atomic
from experiments import environment
from experiments.cells import NOT_IN_KEY, Run
from experiments.evaluation import finite
from experiments.train import Outcome

Row = dict[str, Any]
Kept = Outcome | Row
"""What a run comes to: of training an Outcome, of other kinds what the row keeps."""

CURVE = ("iteration", "clock_seconds", "train_loss", "test_error", "consensus_distance")
LOOKS = ("seconds", "steps", "held_out_loss")
LONGEST = 1000
"""Iterations of which each one's duration is kept."""
MOST_POINTS, POINTS = 210, 100
"""Evaluations of a curve that is kept whole, and that are kept of a longer one."""


def ended(run: Run, outcome: Kept) -> Row:
    """The row of a run that came to its end, be it that it diverged."""
    kept = _trained(run, outcome) if isinstance(outcome, Outcome) else outcome
    return _head(run, kept["result"]["status"]) | kept


def _trained(run: Run, outcome: Outcome) -> Row:
    result = {name: value for name, value in outcome.result.items() if name not in NOT_IN_KEY}
    row = {
        "result": result,
        "curve": {name: _short(m[name] for m in _kept(outcome.metrics)) for name in CURVE},
        "mean_train_loss": _mean(m["train_loss"] for m in outcome.metrics),
    }
    if "looks" in outcome.arrays:
        columns = outcome.arrays["looks"].T.tolist()
        row["looks"] = {
            name: _short(map(finite, column), digits=9)  # a target may lie between five of them
            for name, column in zip(LOOKS, columns, strict=True)
        }
    searches = run.cell.group == "rates"  # for a loss; how long iterations last is no part of it
    if len(outcome.arrays["last_close"]) <= LONGEST and not searches:
        ends = np.maximum.accumulate(np.maximum(outcome.arrays["last_close"], 0.0))
        row["durations"] = _short(np.diff(ends, prepend=0.0).tolist())
        if "backup_workers" in outcome.arrays:
            row["backup_workers"] = _short(outcome.arrays["backup_workers"].tolist())
    return row


def failed(run: Run, reason: str, story: str = "") -> Row:
    """The row of a run that did not come to its end; `story` is all that there is to say of it."""
    return _head(run, "failed") | {"reason": reason, "story": story}


def _head(run: Run, status: str) -> Row:
    return {
        "key": run.key,
        "cell": run.cell.name,
        "seed": run.seed,
        **({"kind": run.cell.kind} if run.cell.kind != "train" else {}),
        "flags": _flags(run),
        "status": status,
        **_origin(),
    }


def _flags(run: Run) -> Row:
    try:
        settings = run.settings()
    except BadInput:
        lines = (line for line in run.cell.text.splitlines() if line.startswith("--"))
        return dict(line.removeprefix("--").split("=", 1) for line in lines)
    return {
        field.name: getattr(settings, field.name)
        for field in dataclasses.fields(settings)
        if field.name != "seed" and getattr(settings, field.name) != field.default
    }


@cache
def _origin() -> Row:
    return {"versions": environment.versions(), "commit": environment.git()["commit"]}


def _kept(metrics: list[Row]) -> list[Row]:
    if len(metrics) <= MOST_POINTS:
        return metrics
    return [metrics[i] for i in np.linspace(0, len(metrics) - 1, POINTS).round().astype(int)]


def _mean(values: Iterable[float | None]) -> float | None:
    values = list(values)
    return None if not values or None in values else float(np.mean(values))


def _short(values: Iterable[float | None], digits: int = 5) -> list[float | None]:
    return [
        None if v is None else v if isinstance(v, int) else float(f"{v:.{digits}g}") for v in values
    ]


class Store:
    """The folder of a sweep's rows, one file a run, named after the run's key."""

    def __init__(self, folder: Path):
        self.folder = folder

    def read(self, run: Run) -> Row | None:
        """The row of a run, None when it has none yet; under the name that its cell has today."""
        path = self._path(run)
        if not path.exists():
            return None
        with atomic.readable(path):
            return _checked(atomic.read_json(path)) | {"cell": run.cell.name}

    def write(self, run: Run, row: Row) -> None:
        """Keep the row; it is there as a whole or not at all, whenever this process is killed."""
        self.folder.mkdir(parents=True, exist_ok=True)
        atomic.write_text(self._path(run), _line(row))

    def forget(self, run: Run) -> None:
        """Remove the row, if there is one."""
        self._path(run).unlink(missing_ok=True)

    def _path(self, run: Run) -> Path:
        return self.folder / f"{run.key}.json"


def collect(rows: Iterable[Row], out: Path) -> None:
    """Write the rows of runs that came to an end into OUT/GROUP.jsonl, by cell and seed."""
    groups: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: (row["cell"], row["seed"])):
        if row["status"] != "failed":
            groups.setdefault(row["cell"].partition("/")[0], []).append(row)
    for group, members in groups.items():
        atomic.write_text(out / f"{group}.jsonl", "".join(map(_line, members)))


def collected(out: Path) -> dict[str, list[Row]]:
    """Group → its rows, as `collect` wrote them."""
    groups = {}
    for path in sorted(out.glob("*.jsonl")):
        with atomic.readable(path):
            lines = atomic.read_bytes(path).decode().splitlines()
            groups[path.stem] = [_checked(json.loads(line)) for line in lines]
    return groups


def _checked(row: Any) -> Row:
    """`row`; ValueError when it is none of ours."""
    if not isinstance(row, dict) or not {"key", "cell", "seed", "flags", "status"} <= row.keys():
        raise ValueError("not the row of a run")
    payload = {"result"} if "kind" in row else {"result", "curve"}
    if row["status"] != "failed" and not payload <= row.keys():
        raise ValueError(f"a row without {' and '.join(sorted(payload))}")
    return row


def _line(row: Row) -> str:
    return json.dumps(row, separators=(",", ":"), ensure_ascii=False, allow_nan=False) + "\n"
