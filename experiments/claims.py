"""A claim, the evidence for it, and the verdict that the numbers give.

A claim is tested in many settings. Each has a number, its interval and the range that the claim
allows: the setting counts for the claim if the whole interval lies inside, against it if all of it
lies outside, and for nothing if it is too wide to tell. All words below are computed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from experiments.reading import Result
from experiments.statistics import Interval
from experiments.words import setting

Rows = dict[str, list[dict[str, Any]]]
"""Group of cells → its rows, as `experiments.rows` describes them."""

FEW = 4
"""Settings that are listed one by one; of more the smallest and the largest number are given."""

SEPARATOR = " · "
"""Between the parts of a setting's name."""


class Evidence(NamedTuple):
    """A setting's number, and where the claim says it lies."""

    value: Interval
    low: float
    high: float

    @property
    def holds(self) -> bool | None:
        """True, False, or None where the interval is too wide."""
        return self.value.within(self.low, self.high)


class Claim(NamedTuple):
    """What is claimed.

    `tag`: how well it is known that the paper says so ([paper]), or that it is ours ([derived],
    [choice]). `published`: the number, if there is one. `rule`: in words, what counts as
    reproduced. `show`: how a number is printed.
    """

    claim: str
    tag: str
    published: str
    rule: str
    show: Callable[[Interval], str]

    def judged(
        self, evidence: dict[str, Evidence], runs: list[Result] | str, beside: str = ""
    ) -> dict[str, Any]:
        """The verdict; `evidence` by setting, `runs` are all that it comes from, or what is to be
        said of them, and `beside` is said after our numbers."""
        verdict, why = conclusion({name: e.holds for name, e in evidence.items()})
        ours = numbers({name: e.value for name, e in evidence.items()}, self.show)
        where = runs if isinstance(runs, str) else setting(runs)
        return self._verdict(where, f"{ours}. {beside}" if beside else ours, verdict, why)

    def untested(self, missing: str) -> dict[str, Any]:
        """The verdict where there is nothing to judge by."""
        return self._verdict("–", "–", "cannot be tested", f"no rows of {missing}")

    def _verdict(self, where: str, ours: str, verdict: str, why: str) -> dict[str, Any]:
        return {
            "claim": self.claim,
            "tag": self.tag,
            "setting": where,
            "published": self.published,
            "ours": ours,
            "verdict": verdict,
            "why": f"{self.rule}: {why}",
        }


def conclusion(holds: dict[str, bool | None]) -> tuple[str, str]:
    """The verdict on a claim that holds, does not, or may hold in these settings; and why."""
    yes, no, unclear = ([name for name, x in holds.items() if x is y] for y in (True, False, None))
    parts = (("holds for", yes), ("does not for", no), ("too uncertain for", unclear))
    why = "; ".join(f"{says} {listed(names)}" for says, names in parts if names)
    if len(yes) == len(holds):
        return "reproduced", f"holds in all settings ({len(holds)})"
    if yes:
        where = " and ".join(yes) if len(yes) <= 2 else f"{len(yes)} of {len(holds)} settings"
        return f"reproduced under {where}", why
    return ("not reproduced" if no else "cannot be tested"), why


def listed(settings: list[str]) -> str:
    """A few as they are; many by their last part, such as a policy, which is then said once."""
    if len(settings) <= FEW or not any(SEPARATOR in name for name in settings):
        return ", ".join(settings)
    by_last: dict[str, list[str]] = {}
    for name in settings:
        rest, _, last = name.rpartition(SEPARATOR)
        by_last.setdefault(last, []).append(rest)
    return " — ".join(f"{last}: {', '.join(rests)}" for last, rests in by_last.items())


def numbers(values: dict[str, Interval], show: Callable[[Interval], str]) -> str:
    """All of a few, the extremes of many."""

    def one(name: str) -> str:
        return f"{name}: {show(values[name])} (n={values[name].n})"

    if len(values) <= FEW:
        return "; ".join(map(one, values))
    reached = sorted(
        (n for n in values if values[n].mean == values[n].mean), key=lambda n: values[n]
    )
    if not reached:
        return f"not reached in any of {len(values)} settings"
    missing = len(values) - len(reached)
    rest = f"; not reached in {missing}" if missing else ""
    return f"{len(values)} settings, from {one(reached[0])} to {one(reached[-1])}{rest}"
