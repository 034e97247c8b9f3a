"""The claims about pace: workers of ADSP do not wait, so that their speeds add up.

Ranges were fixed before the short scale had been run, and are not changed by what it gives.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cbdybw.commit_theory import bsp_steps, heterogeneity
from experiments import statistics
from experiments.adsp.published import THREE_WORKERS
from experiments.adsp.split import law as throughput_law
from experiments.adsp.split import speeds, steps_per_second
from experiments.adsp.target_table import waiting
from experiments.claims import SEPARATOR, Claim, Evidence, Rows
from experiments.reading import Result, by_cell, read, select, split, values
from experiments.statistics import Interval
from experiments.words import TITLES, law, model

NEXT_TO_NOTHING = 0.1
"""Share of time in which workers do not compute, above the paper's 6.2 % [choice]."""

LAWFUL = 0.02
"""How far steps per second may be from what speeds alone make them, as a fraction [choice]."""

Verdict = dict[str, Any]


def no_waiting(rows: Rows) -> Verdict:
    """Figure of where the time of three workers goes."""
    claim = Claim(
        "Workers of ADSP do not wait",
        "[paper]",
        f"{THREE_WORKERS['adsp'].waiting:.1%} of the time not computing, three workers [code]",
        f"at most {NEXT_TO_NOTHING:.0%} of the workers' time is not computing",
        Interval.percent,
    )
    evidence, used, beside = {}, [], []
    for group in ("split", "race"):
        for runs in by_cell(r for r in read(rows.get(group, [])) if r.learns).values():
            s = runs[0].settings
            name = SEPARATOR.join((f"M={s.workers}", model(s)))
            share = statistics.mean(values(runs, waiting))
            if s.algorithm == "adsp":
                evidence.setdefault(name, Evidence(share, 0.0, NEXT_TO_NOTHING))
                used += runs
            elif group == "split":
                beside.append(f"{TITLES[s.algorithm]} {share.percent()}{_published(s.algorithm)}")
    if not evidence:
        return claim.untested("adsp in groups split and race")
    others = f"Of three workers: {', '.join(beside)}" if beside else ""
    return claim.judged(evidence, used, others)


def _published(algorithm: str) -> str:
    found = THREE_WORKERS.get(algorithm)
    return f" (published {found.waiting:.1%})" if found else ""


def all_speeds_add_up(rows: Rows) -> Verdict:
    """Nobody waits, so the speeds add up."""
    claim = Claim(
        "ADSP takes Σv steps a second",
        "[derived]",
        "5.190 of 5.208, three workers [code]",
        f"steps per second / Σv - 1 lies within ± {LAWFUL:.0%}",
        Interval.percent,
    )
    evidence, used = {}, []
    for name, runs in _paces(rows).items():
        own = select(runs, algorithm="adsp")
        if own:
            total = float(speeds(own[0].settings).sum())
            rate = statistics.mean(values(own, _steps_per_second))
            off = rate.map(lambda x, total=total: x / total - 1)
            evidence[name] = Evidence(off, -LAWFUL, LAWFUL)
            used += own
    if not evidence:
        return claim.untested("adsp in groups split and heterogeneity")
    return claim.judged(evidence, used)


def faster_than_bsp_by_h(rows: Rows) -> Verdict:
    """BSP goes at the pace of the slowest, ADSP at that of the mean: their ratio is H."""
    claim = Claim(
        "ADSP takes H times as many steps a second as BSP",
        "[derived]",
        "exactly H without communication",
        "the ratio of steps per second / H - 1, without the time that the law of throughput gives "
        f"BSP's commits, lies within ± {LAWFUL:.0%}",
        Interval.percent,
    )
    evidence, used, measured = {}, [], []
    for name, runs in _paces(rows).items():
        adsp, bsp = (select(runs, algorithm=a) for a in ("adsp", "bsp"))
        if adsp and bsp:
            s, v = bsp[0].settings, speeds(bsp[0].settings)
            h, commits = heterogeneity(v), throughput_law(s) / bsp_steps(v)
            ratio = statistics.ratio(*(values(own, _steps_per_second) for own in (adsp, bsp)))
            off = ratio.map(lambda x, lost=commits / h: x * lost - 1)
            evidence[name] = Evidence(off, -LAWFUL, LAWFUL)
            measured.append(f"{ratio.mean:.3f} where H = {h:.3f}")
            used += [*adsp, *bsp]
    if not evidence:
        return claim.untested("adsp and bsp on the same machines in groups split and heterogeneity")
    return claim.judged(evidence, used, f"Ratios with that time: {', '.join(measured)}")


def _steps_per_second(r: Result) -> float:
    """Those that workers took, the ones that the end of the run came before included."""
    if not len(r.steps):
        return steps_per_second(r)
    return float(r.steps.sum() / np.mean(r.computing + r.waiting))


def _paces(rows: Rows) -> dict[str, list[Result]]:
    """Machines and what is learnt → runs on them."""
    found = [r for group in ("split", "heterogeneity") for r in read(rows.get(group, []))]
    return {
        SEPARATOR.join((law(runs[0].settings.delay), model(runs[0].settings))): runs
        for runs in split(found, "workers", "delay", "workload", "dataset", "partition").values()
    }


CLAIMS = (no_waiting, all_speeds_add_up, faster_than_bsp_by_h)
