"""Delay law × straggler policy × clock: the numbers of the table that tells when the published
reduction holds (group 2). `laws` draws it, `page` prints it, `verdicts` judges by it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cbdybw import specs
from experiments import statistics
from experiments.cb_dybw import expected
from experiments.reading import Result, read, split, values
from experiments.settings import Settings
from experiments.statistics import Interval, Values
from experiments.words import law, title

FULL = "cb-Full"
COLUMNS = (
    FULL,
    "cb-Full, neighbours",
    "cb-DyBW",
    "cb-DyBW drop",
    "cb-DyBW late",
    "cb-DyBW paper",
)
"""Titles, in the order of the table; the first is what the others are compared with."""


@dataclass(frozen=True)
class Entry:
    """One law and one way to wait, next to cb-Full with the global barrier under that law.

    Attributes:
        law, way: row and column of the table.
        seconds: mean iteration time, of the longest runs there are: those without learning.
        shorter: 1 - seconds / cb-Full's.
        shorter_learning: the same from the runs that learn: more seeds, fewer iterations.
        exact: `seconds` from theory, None where there is none.
        exact_shorter: `shorter` from theory.
        used: gradients used in an iteration, as a share of N.
        to_target: seconds to the target loss, by seed.
        iterations_to_target: the same in iterations.
        sooner: 1 - time to the target / cb-Full's, paired by seed.
        iterations_ratio: iterations to the target / cb-Full's, paired by seed.
        full_arrives: whether cb-Full itself comes to the target, on every seed.
        runs: all that this comes from, cb-Full's included.
    """

    workers: int
    law: str
    way: str
    seconds: Interval
    shorter: Interval
    shorter_learning: Interval
    exact: float | None
    exact_shorter: float | None
    used: float
    to_target: Values
    iterations_to_target: Values
    sooner: Interval
    iterations_ratio: Interval
    full_arrives: bool
    runs: list[Result]


def entries(rows: list[dict[str, Any]]) -> list[Entry]:
    """All that the rows contain, by number of workers, law and way; laws as they come in `order`.

    Without runs of cb-Full behind a global barrier a law has no entries: there is nothing to
    compare with.
    """
    found = []
    for (workers, *_), runs in split(read(rows), "workers", "graph", "delay").items():
        ways = {way: [r for r in runs if title(r.settings) == way] for way in COLUMNS}
        if ways[FULL]:
            name = law_of(runs[0].settings)
            found += [_entry(workers, name, way, ways) for way in COLUMNS if ways[way]]
    return sorted(found, key=lambda e: (e.workers, _order(e.runs[0].settings)))


def law_of(settings: Settings) -> str:
    """The law in words that do not depend on N: where on the path a straggler is, not its rank."""
    name = specs.parse(settings.delay, "--delay")[0]
    if name != "persistent" or settings.graph != "path":
        return law(settings.delay)
    keys = specs.parse(settings.delay, "--delay")[1]
    at_end = keys["ranks"] in ("0", str(settings.workers - 1))
    return f"{'end' if at_end else 'middle'} of the path always {keys['slowdown']}× slower"


def _order(settings: Settings) -> tuple[int, str]:
    """Memoryless times first, then the lone stragglers, then heavy tails."""
    known = ("exponential", "shifted_exponential", "persistent", "random_straggler", "pareto")
    name = specs.parse(settings.delay, "--delay")[0]
    return known.index(name) if name in known else len(known), settings.delay


def _entry(workers: int, name: str, way: str, ways: dict[str, list[Result]]) -> Entry:
    own, full = ways[way], ways[FULL]
    timing = [[r for r in runs if not r.learns] for runs in (own, full)]
    learning = [[r for r in runs if r.learns] for runs in (own, full)]
    longest = timing if all(timing) else learning
    seconds = [values(runs, lambda r: r.value("mean_iteration_seconds")) for runs in longest]
    fewer = [values(runs, lambda r: r.value("mean_iteration_seconds")) for runs in learning]
    times = [_to_target(runs, "clock_seconds") for runs in learning]
    iterations = [_to_target(runs, "iteration") for runs in learning]
    exact, exact_full = (expected.iteration(runs[0].settings) for runs in (own, full))
    return Entry(
        workers,
        name,
        way,
        statistics.mean(seconds[0]),
        statistics.reduction(*seconds),
        statistics.reduction(*fewer),
        exact,
        1 - exact / exact_full if exact is not None and exact_full is not None else None,
        float(sum(r.share_used for r in longest[0]) / len(longest[0])) if longest[0] else 0.0,
        times[0],
        iterations[0],
        statistics.reduction(*times),
        statistics.ratio(*iterations),
        not np.isnan(list(iterations[1].values())).any(),
        [*own, *full] if way != FULL else own,
    )


def _to_target(runs: list[Result], axis: str) -> Values:
    return values(runs, lambda r: r.to_loss(r.settings.target_loss, axis))


def table(rows: list[dict[str, Any]]) -> list[list[str]]:
    """The table as text; the first line holds the heads. For Markdown and for the page."""
    heads = [
        "N",
        "delay law",
        "who waits how",
        "mean iteration, virtual s",
        "exact",
        "shorter than cb-Full's",
        "exact",
        "in short runs that learn",
        "gradients used / N",
        "to target loss, virtual s",
        "sooner than cb-Full",
    ]
    return [heads, *(_line(entry) for entry in entries(rows))]


def _line(e: Entry) -> list[str]:
    other = e.way != FULL
    return [
        str(e.workers),
        e.law,
        e.way if other else f"{FULL}, global",
        f"{e.seconds.mean:.3f}",
        "–" if e.exact is None else f"{e.exact:.3f}",
        e.shorter.percent() if other else "–",
        f"{100 * e.exact_shorter:.1f} %" if other and e.exact_shorter is not None else "–",
        e.shorter_learning.percent() if other and e.shorter_learning.n else "–",
        f"{e.used:.2f}",
        statistics.mean(e.to_target).plus_minus() if e.to_target else "–",
        e.sooner.percent() if other and e.sooner.n else "–",
    ]
