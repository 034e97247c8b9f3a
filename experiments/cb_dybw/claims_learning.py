"""The claims about learning: like cb-Full, on non-iid data, at the proved rate, with speed-up."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from experiments import statistics
from experiments.cb_dybw import expected, speedup
from experiments.claims import SEPARATOR, Claim, Evidence, Rows
from experiments.reading import WORKLOAD, Result, by_title, read, select, split, values
from experiments.statistics import Interval
from experiments.words import model

LIKE_LOSS = 1.1
"""Final losses within this factor are alike: in a printed figure the curves touch [choice]."""

LIKE_ERROR = 0.01
"""Test errors a percentage point apart are alike [choice]."""

NON_IID = 0.05
"""How much test error non-iid data may cost and still count as learning [choice]."""

EFFICIENT = 0.8
"""Speed-up / N down to which it is called linear [choice]."""

EXACT = 0.1
"""How far a mean over few seeds may be from a closed form, as a fraction [choice]."""

SLOPE = (-0.6, -0.4)
"""Of log(mean ‖∇F‖²) against log(NK): -1/2 with room for the term 1/K [choice]."""

ACCURACY = {
    "LRM, MNIST, iid": (0.88, 0.93, "near 90 %"),
    "2NN, MNIST, iid": (0.965, 0.985, "97–98 %"),
    "2NN, CIFAR10, iid": (0.45, 0.56, "near 50 %"),
}
"""What the models reach on these data with these inputs [choice]; the paper's are not known."""

Verdict = dict[str, Any]
Number = Callable[[Result], float]


def like_in_loss(rows: Rows) -> Verdict:
    """Figure of the training loss against k."""
    claim = Claim(
        "At equal iterations the training loss of cb-DyBW is like cb-Full's",
        "[paper]",
        "similar",
        f"the ratio of the final losses lies in 1/{LIKE_LOSS:g} … {LIKE_LOSS:g}",
        Interval.text,
    )
    return _pairwise(
        claim,
        rows,
        lambda full, dybw: Evidence(
            statistics.ratio(*(_finals(runs, "train_loss") for runs in (dybw, full))),
            1 / LIKE_LOSS,
            LIKE_LOSS,
        ),
    )


def like_in_error(rows: Rows) -> Verdict:
    """Figure of the test error against k."""
    claim = Claim(
        "At equal iterations the test error of cb-DyBW is like cb-Full's",
        "[paper]",
        "similar",
        f"the final errors differ by at most {LIKE_ERROR:.0%} (points)",
        Interval.percent,
    )
    return _pairwise(
        claim,
        rows,
        lambda full, dybw: Evidence(
            statistics.difference(*(_finals(runs, "test_error") for runs in (dybw, full))),
            -LIKE_ERROR,
            LIKE_ERROR,
        ),
    )


def same_iterations_to_target(rows: Rows) -> Verdict:
    """The theorem's consequence, on every kind of data."""
    claim = Claim(
        "cb-DyBW needs iterations of the same order as cb-Full, iid or not",
        "[paper]",
        "same order",
        "the ratio of iterations to the target loss lies in 1/2 … 2",
        Interval.text,
    )

    def ratio(full: list[Result], dybw: list[Result]) -> Evidence:
        counts = [values(runs, _iterations) for runs in (dybw, full)]
        return Evidence(statistics.ratio(*counts), 0.5, 2.0)

    def arrives(full: list[Result]) -> bool:
        return not any(map(math.isnan, values(full, _iterations).values()))

    return _pairwise(claim, rows, ratio, arrives)


def _pairwise(
    claim: Claim,
    rows: Rows,
    compare: Callable[[list[Result], list[Result]], Evidence],
    usable: Callable[[list[Result]], bool] = bool,
) -> Verdict:
    """Judge by every workload in which cb-Full and cb-DyBW both ran, with a `usable` cb-Full."""
    evidence, used = {}, []
    for runs in split(read(rows.get("learning", [])), *WORKLOAD).values():
        full, dybw = _pair(runs)
        if full and dybw and usable(full):
            s = full[0].settings
            evidence[f"{model(s)}{SEPARATOR}N={s.workers}"] = compare(full, dybw)
            used += [*full, *dybw]
    if not evidence:
        return claim.untested("cb_full (global) and cb_dybw in group learning")
    return claim.judged(evidence, used)


def _finals(runs: list[Result], name: str) -> statistics.Values:
    return values(runs, lambda r: r.value(name))


def works_on_non_iid_data(rows: Rows) -> Verdict:
    """Experiments on non-iid partitions."""
    claim = Claim(
        "cb-DyBW learns from non-iid data",
        "[paper]",
        "works",
        f"the final test error is at most {NON_IID:.0%} (points) above that on iid data",
        Interval.percent,
    )
    evidence, beside, used = {}, [], []
    same = [name for name in WORKLOAD if name != "partition"]
    for runs in split(read(rows.get("learning", [])), *same).values():
        parts = {p: _pair(of_p) for (p,), of_p in split(runs, "partition").items()}
        for partition, (full, dybw) in parts.items():
            iid_full, iid_dybw = parts.get("iid", ([], []))
            if partition == "iid" or not (dybw and iid_dybw):
                continue
            name = f"{model(dybw[0].settings)}{SEPARATOR}N={dybw[0].settings.workers}"
            evidence[name] = Evidence(_cost(dybw, iid_dybw), -1.0, NON_IID)
            used += [*dybw, *iid_dybw]
            if full and iid_full:
                beside.append(f"{name}: {_cost(full, iid_full).percent()}")
    if not evidence:
        return claim.untested("cb_dybw with iid and with other partitions in group learning")
    return claim.judged(evidence, used, f"cb-Full pays {'; '.join(beside)}" if beside else "")


def _cost(other: list[Result], iid: list[Result]) -> Interval:
    return statistics.difference(*(_finals(runs, "test_error") for runs in (other, iid)))


def fits_the_models(rows: Rows) -> Verdict:
    """A check of ours: neither models nor data are broken."""
    claim = Claim(
        "Accuracy fits the models",
        "[choice]",
        "; ".join(f"{name} {says}" for name, (_, _, says) in ACCURACY.items()),
        "test accuracy lies in "
        + "; ".join(f"{low:.1%} … {high:.1%}" for low, high, _ in ACCURACY.values()),
        Interval.percent,
    )
    evidence, used = {}, []
    for runs in split(read(rows.get("learning", [])), *WORKLOAD).values():
        s = runs[0].settings
        if s.workers != 6 or model(s) not in ACCURACY:
            continue
        low, high, _ = ACCURACY[model(s)]
        for name, own in zip(("cb-Full", "cb-DyBW"), _pair(runs), strict=True):
            if own:
                accuracy = statistics.mean(_finals(own, "test_error")).map(lambda x: 1 - x)
                evidence[f"{model(s)}{SEPARATOR}{name}"] = Evidence(accuracy, low, high)
                used += own
    if not evidence:
        return claim.untested("MNIST or CIFAR-10 with six workers in group learning")
    return claim.judged(evidence, used)


def linear_speedup(rows: Rows) -> Verdict:
    """Corollary: N workers need 1/N of the iterations."""
    claim = Claim(
        "Linear speed-up: iterations to a target fall as 1/N",
        "[paper]",
        "O(1/(Nε²)) iterations",
        f"iterations of 1 worker / (N × iterations of N workers) is at least {EFFICIENT:g}",
        Interval.text,
    )
    found = list(filter(speedup.aims, read(rows.get("speedup", []))))
    evidence, used = {}, []
    for (workload, dataset), runs in split(found, "workload", "dataset").items():
        name = "quadratic" if workload.startswith("quadratic") else f"{dataset} {workload}"
        for (algorithm, graph), by_n in speedup.series(runs).items():
            counts = {n: values(of_n, _iterations) for n, of_n in by_n.items()}
            for n in sorted(counts.keys() - {1}) if 1 in counts else ():
                gain = statistics.ratio(counts[1], counts[n]).map(lambda x, n=n: x / n)
                parts = algorithm, name, graph, f"N={n}"
                evidence[SEPARATOR.join(parts)] = Evidence(gain, EFFICIENT, math.inf)
                used += by_n[n]
    if not evidence:
        return claim.untested("a target with one worker and with more in group speedup")
    least, most = (end(r.settings.eta0 for r in found) for end in (min, max))
    return claim.judged(evidence, used, f"η0 from {least:g} to {most:g}")


def _iterations(r: Result) -> float:
    return r.to_loss(r.settings.target_loss, "iteration")


def stationary_error(rows: Rows) -> Verdict:
    """The quadratic problem, whose answer is known."""
    claim = Claim(
        "The noise left in w̄ falls as 1/N, on every graph",
        "[derived]",
        "ησ²·dim/(Nλ(2-ηλ)), if all gradients are used",
        f"E‖w̄ - w*‖² / the closed form lies in {1 - EXACT:g} … {1 + EXACT:g}",
        Interval.text,
    )
    found = list(filter(speedup.is_stationary, read(rows.get("speedup", []))))
    evidence = {}
    for (algorithm, graph), by_n in speedup.series(found).items():
        for n, runs in by_n.items():
            ratio = statistics.mean(
                values(
                    runs, lambda r: speedup.stationary_error(r) / expected.quadratic(r).stationary
                )
            )
            evidence[SEPARATOR.join((algorithm, graph, f"N={n}"))] = Evidence(
                ratio, 1 - EXACT, 1 + EXACT
            )
    if not evidence:
        return claim.untested("the quadratic problem with constant η in group speedup")
    return claim.judged(evidence, found)


def rate(rows: Rows) -> Verdict:
    """Theorem: O(1/√(NK) + 1/K) with η = √(N/K)."""
    claim = Claim(
        "The mean of ‖∇F‖² falls as O(1/√(NK) + 1/K) with η ∝ √(N/K)",
        "[paper]",
        "exponent -1/2 of NK",
        f"the fitted exponent lies in {SLOPE[0]:g} … {SLOPE[1]:g}",
        Interval.text,
    )
    found = list(filter(speedup.is_rate, read(rows.get("speedup", []))))
    evidence, beside = {}, []
    for algorithm, runs in by_title(found).items():
        product = [r.settings.workers * r.settings.iterations for r in runs]
        fitted = statistics.power(product, [speedup.mean_gradient(r) for r in runs])
        evidence[algorithm] = Evidence(fitted, *SLOPE)
        exact = statistics.power(product, [speedup.exact_mean_gradient(r) for r in runs])
        ratio = statistics.mean(
            [speedup.mean_gradient(r) / speedup.exact_mean_gradient(r) for r in runs]
        )
        shares = [r.share_used for r in runs]
        beside.append(
            f"{algorithm}: exact exponent, if all gradients are used, {exact.mean:.3f}; "
            f"measured/exact {ratio.text()}; gradients used / N from {min(shares):.2f} to "
            f"{max(shares):.2f}"
        )
    if not evidence:
        return claim.untested(f"cells {speedup.RATE}* in group speedup")
    return claim.judged(evidence, found, "; ".join(beside))


def _pair(results: list[Result]) -> tuple[list[Result], list[Result]]:
    """The runs of cb-Full behind a global barrier, and those of cb-DyBW with carry."""
    full = select(results, algorithm="cb_full", barrier="global")
    return full, select(results, algorithm="cb_dybw", policy="carry")


CLAIMS = (
    like_in_loss,
    like_in_error,
    same_iterations_to_target,
    works_on_non_iid_data,
    fits_the_models,
    linear_speedup,
    stationary_error,
    rate,
)
