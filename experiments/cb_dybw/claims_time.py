"""The claims about time: how long iterations last, whom they wait for, what is predicted."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from experiments import statistics
from experiments.cb_dybw import prediction, topology
from experiments.cb_dybw.law_table import FULL, Entry, entries
from experiments.cb_dybw.laws import PUBLISHED
from experiments.claims import SEPARATOR, Claim, Evidence, Rows, numbers
from experiments.reading import Result, by_cell, read, select, split, values
from experiments.statistics import Interval
from experiments.words import TITLES, law

SAME_ORDER = 2.0
"""Iteration counts within this factor are of the same order [choice]."""

FLUCTUATES = 0.1
"""Standard deviation over time, in workers, from which b(k) is not simply constant [choice]."""

ADAPTS = -0.1
"""Correlation of b(k) with the length of iteration k, below which b follows the delays [choice]:
who waits longer leaves fewer out."""

WELL_PREDICTED = 0.05
"""Error of a predicted mean iteration time [choice], as in the limit for recorded times."""

Verdict = dict[str, Any]


def shorter_iterations(rows: Rows) -> Verdict:
    """Abstract: iterations 65 to 70 % shorter than cb-Full's."""
    claim = Claim(
        "An iteration of cb-DyBW is 65 to 70 % shorter than one of cb-Full (global barrier)",
        "[paper]",
        "65–70 %",
        f"at least {PUBLISHED[0]:.0%}",
        Interval.percent,
    )
    found = _dybw(rows)
    if not found:
        return claim.untested("cb_full (global) and cb_dybw in group laws")
    evidence = {_name(e): Evidence(e.shorter, PUBLISHED[0], 1.0) for e in found}
    band = [_name(e) for e in found if e.shorter.within(*PUBLISHED)]
    beside = f"Within the published band: {', '.join(band) or 'none'}"
    if learning := {_name(e): e.shorter_learning for e in found if e.shorter_learning.n}:
        beside += f". In the shorter runs that learn: {numbers(learning, Interval.percent)}"
    return claim.judged(evidence, _runs(found), beside)


def sooner_at_the_target(rows: Rows) -> Verdict:
    """The corollary on time: with as many iterations, time falls as iterations shorten."""
    claim = Claim(
        "Where iterations are at least 65 % shorter, a target loss is reached as much sooner",
        "[derived]",
        "65–70 %, if as many iterations are needed",
        f"the time to the target loss falls by at least {PUBLISHED[0]:.0%}",
        Interval.percent,
    )
    found = [
        e for e in _dybw(rows) if e.sooner.n and e.full_arrives and e.shorter.mean >= PUBLISHED[0]
    ]
    if not found:
        return claim.untested("learning in group laws with iterations that are 65 % shorter")
    return claim.judged(
        {_name(e): Evidence(e.sooner, PUBLISHED[0], 1.0) for e in found}, _runs(found)
    )


def same_order_of_iterations(rows: Rows) -> Verdict:
    """Theorem: cb-DyBW and cb-Full need iterations of the same order."""
    claim = Claim(
        "cb-DyBW needs iterations of the same order as cb-Full to a target loss",
        "[paper]",
        "same order",
        f"the ratio of their numbers lies in 1/{SAME_ORDER:g} … {SAME_ORDER:g}",
        Interval.text,
    )
    found = [e for e in _dybw(rows) if e.iterations_ratio.n and e.full_arrives]
    if not found:
        return claim.untested("learning with cb_full (global) and cb_dybw in group laws")
    evidence = {_name(e): Evidence(e.iterations_ratio, 1 / SAME_ORDER, SAME_ORDER) for e in found}
    ways = dict.fromkeys(e.way for e in found)
    means = [f"{way} {_geometric([e for e in found if e.way == way])}" for way in ways]
    return claim.judged(evidence, _runs(found), f"Mean over the laws: {', '.join(means)}")


def _geometric(found: list[Entry]) -> str:
    logs = [math.log(e.iterations_ratio.mean) for e in found]
    return statistics.mean(logs).map(math.exp).text()


def backup_workers_fluctuate(rows: Rows) -> Verdict:
    """Figure of b(k): the number of backup workers changes while training."""
    claim = Claim(
        "The number of backup workers fluctuates while training",
        "[paper]",
        "fluctuates",
        f"b(k) has a standard deviation over time of at least {FLUCTUATES} workers",
        Interval.text,
    )
    cells = _with_backups(rows)
    if not cells:
        return claim.untested("cb_dybw with b(k)")
    deviations = {
        name: Evidence(
            statistics.mean(values(runs, lambda r: float(np.std(r.row["backup_workers"])))),
            FLUCTUATES,
            math.inf,
        )
        for name, runs in cells.items()
    }
    means = {
        name: statistics.mean(values(runs, lambda r: float(np.mean(r.row["backup_workers"]))))
        for name, runs in cells.items()
    }
    least, most = (f(means, key=lambda name: means[name].mean) for f in (min, max))
    return claim.judged(
        deviations,
        [r for runs in cells.values() for r in runs],
        f"Mean b: from {means[least].text()} ({least}) to {means[most].text()} ({most})",
    )


def backup_workers_adapt(rows: Rows) -> Verdict:
    """The threshold waits for whom it needs: in longer iterations fewer are left out."""
    claim = Claim(
        "The number of backup workers adapts to the delays of the moment",
        "[paper]",
        "dynamic",
        f"the correlation of b(k) with the length of iteration k is below {ADAPTS}",
        Interval.text,
    )
    cells = _with_backups(rows)
    if not cells:
        return claim.untested("cb_dybw with b(k)")
    evidence = {
        name: Evidence(statistics.mean(values(runs, _correlation)), -1.0, ADAPTS)
        for name, runs in cells.items()
    }
    return claim.judged(evidence, [r for runs in cells.values() for r in runs])


def _correlation(r: Result) -> float:
    b, seconds = np.array(r.row["backup_workers"]), np.array(r.row["durations"])
    if not (b.std() > 0 and seconds.std() > 0):
        return 0.0  # what never changes follows nothing
    return float(np.corrcoef(b, seconds)[0, 1])


def _with_backups(rows: Rows) -> dict[str, list[Result]]:
    """Cells of cb-DyBW whose b(k) is known, by setting; one partition and model stand for all."""
    found = [
        r
        for group in ("learning", "laws")
        for r in select(read(rows.get(group, [])), algorithm="cb_dybw")
        if "backup_workers" in r.row and r.settings.partition == "iid"
    ]
    cells = {}
    for runs in by_cell(found).values():
        s = runs[0].settings
        parts = f"N={s.workers}", s.graph, law(s.delay), s.policy
        cells.setdefault(SEPARATOR.join(parts), runs)
    return cells


def predicted_as_measured(rows: Rows) -> Verdict:
    """The virtual cluster against MPI ranks."""
    claim = Claim(
        "The virtual cluster predicts mean iteration times on MPI",
        "[choice]",
        "–",
        f"predicted/measured - 1 lies within ± {WELL_PREDICTED:.0%}",
        Interval.percent,
    )
    found = prediction.points(rows.get("mpi", []))
    if not found:
        return claim.untested("an algorithm on both clusters in group mpi")
    return claim.judged(
        {p.title: Evidence(p.error, -WELL_PREDICTED, WELL_PREDICTED) for p in found},
        [r for p in found for r in p.runs],
    )


def threshold_in_large_networks(rows: Rows) -> Verdict:
    """Whether the threshold is still of use when there are many edges to be the first."""
    return _large_networks(rows, "cb_dybw")


def pathsearch_in_large_networks(rows: Rows) -> Verdict:
    """The same of DSGD-AAU, whose candidates are all edges of the graph."""
    return _large_networks(rows, "dsgd_aau")


def _large_networks(rows: Rows, algorithm: str) -> Verdict:
    name = TITLES[algorithm]
    claim = Claim(
        f"{name} is ahead of cb-Full at equal time, however many workers there are",
        "[choice]",
        "–",
        f"training loss of {name} / cb-Full's, when the first of them ends, is at most 1",
        Interval.text,
    )
    evidence, used = {}, []
    for (n, graph, *_), runs in split(
        [r for r in read(rows.get("topology", [])) if r.learns], *topology.PLACE
    ).items():
        both = [select(runs, algorithm=a) for a in (algorithm, "cb_full")]
        if all(both):
            at = topology.equal_time([r for own in both for r in own])
            losses = [values(own, lambda r, at=at: r.loss_at(at)) for own in both]
            kind = graph.partition(":")[0]
            evidence[f"{kind}{SEPARATOR}N={n}"] = Evidence(statistics.ratio(*losses), 0.0, 1.0)
            used += [r for own in both for r in own]
    if not evidence:
        return claim.untested(f"cb_full and {algorithm} in group topology")
    return claim.judged(evidence, used, _too_early(evidence))


def _too_early(evidence: dict[str, Evidence]) -> str:
    """From which N on it is behind, graph by graph."""
    behind: dict[str, str] = {}
    for name, e in evidence.items():
        graph, n = name.split(SEPARATOR)
        if e.value.mean > 1:
            behind.setdefault(graph, n)
    if not behind:
        return "Not behind anywhere"
    return "Behind on " + ", ".join(f"{graph} from {n} on" for graph, n in behind.items())


def _dybw(rows: Rows) -> list[Entry]:
    """The entries of the table of laws that are cb-DyBW's."""
    return [e for e in entries(rows.get("laws", [])) if not e.way.startswith(FULL)]


def _name(e: Entry) -> str:
    policy = e.way.partition(" ")[2] or "carry"
    return SEPARATOR.join((f"N={e.workers}", e.law, policy))


def _runs(found: list[Entry]) -> list[Result]:
    return [r for e in found for r in e.runs]


CLAIMS = (
    shorter_iterations,
    sooner_at_the_target,
    same_order_of_iterations,
    backup_workers_fluctuate,
    backup_workers_adapt,
    predicted_as_measured,
    threshold_in_large_networks,
    pathsearch_in_large_networks,
)
