"""Settings in the words of figures and verdicts: algorithms, delay laws, data, all of a setting."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cbdybw import specs
from cbdybw.algorithms import ALGORITHMS
from cbdybw.learning.workloads import needs_data
from experiments import comparison
from experiments.settings import Settings

if TYPE_CHECKING:
    from experiments.reading import Result

TITLES = {
    "cb_full": "cb-Full",
    "cb_dybw": "cb-DyBW",
    "cb_static": "cb-static",
    "dsgd_aau": "DSGD-AAU",
    "ad_psgd": "AD-PSGD",
    "allreduce": "AllReduce",
    "bsp": "BSP",
    "asp": "ASP",
    "ssp": "SSP",
    "ps_backup": "PS, fixed b",
    "dbw": "DBW",
    "adsp": "ADSP",
    "adsp_plus": "ADSP+",
    "adsp_plus_plus": "ADSP++",
    "adacomm": "ADACOMM",
    "fixed_adacomm": "Fixed ADACOMM",
    "cb_adsp": "cb-ADSP",
    "scar": "SCAR",
}
LAWS = comparison.LAWS | {
    "none": "no delay",
    "constant": "{mean} s always",
    "shifted_exponential": "{base} s + Exp(mean {mean} s)",
    "pareto": "Pareto(α={alpha}, from {scale} s)",
    "lognormal": "lognormal(mean {mean} s, σ={sigma})",
    "persistent": "rank {ranks} always {slowdown}× slower",
    "random_straggler": "a random rank {slowdown}× slower",
    "trace": "recorded times",
}
APART = {
    "commit_rate": "ΔC={}",
    "commit_timer": "{} timers",
    "reward_points": "{} points",
    "server_momentum": "μ={:g}",
    "batch_tune": "tuned batches",
}
"""Settings that belong to an algorithm's name where they are not the default."""
CHECKED = ("adsp", "adsp_plus", "adsp_plus_plus", "adacomm", "cb_adsp")
"""Algorithms that have check periods."""


def title(settings: Settings) -> str:
    """The algorithm, with what sets it apart from its default form."""
    parts = [TITLES[settings.algorithm]]
    if settings.algorithm == "cb_full" and settings.barrier == "neighbours":
        return f"{parts[0]}, neighbours"
    if settings.policy != "carry":
        parts.append(settings.policy)
    for name, words in APART.items():
        value = getattr(settings, name)
        if value != getattr(Settings, name):
            parts.append(words.format(value))
    return " ".join(parts)


def law(delay: str) -> str:
    """A delay law in words."""
    name, keys = specs.parse(delay, "--delay")
    if name == "machines":
        return _machines(**keys)
    return LAWS[name].format_map({"slowdown": "", "ranks": "", **keys})


def _machines(path: str, **keys: str) -> str:
    words = {
        "heterogeneity": "H={}",
        "processes": "{} workers on each",
        "scale": "steps ×{}",
        "jitter": "jitter {}",
    }
    how = "; ".join(words[name].format(value) for name, value in keys.items())
    return f"{Path(path).stem} machines" + (f" ({how})" if how else "")


def model(settings: Settings) -> str:
    """What is learnt from what: `2NN, MNIST, shards:2`."""
    if not needs_data(settings.workload):
        return settings.workload
    name = specs.parse(settings.workload, "--workload")[0]
    return f"{name.upper()}, {settings.dataset.upper()}, {settings.partition}"


def slug(*parts: object) -> str:
    """A file's name, such as learning-n6-mnist-lrm-iid."""
    return "-".join(str(part).replace(":", "").replace("_", "") for part in parts)


def setting(results: Sequence[Result]) -> str:
    """Law, graph, policy, clock, seeds: without them no number means anything."""
    runs = [r.settings for r in results]
    seeds = sorted({r.seed for r in results})
    parts = [
        _listed(law(s.delay) for s in runs),
        *_where(runs),
        _listed(map(_cluster, runs)),
        f"{'seed' if len(seeds) == 1 else 'seeds'} {_listed(seeds)}",
    ]
    if any(r.learns for r in results):
        learning = [r.settings for r in results if r.learns]
        parts.insert(0, _listed(model(s) for s in learning))
        parts.insert(1, f"batch {_listed(s.batch_size for s in learning)}")
    if any(r.notice for r in results):
        parts.append("NOT the original data")
    return " · ".join(parts)


def _where(runs: list[Settings]) -> list[str]:
    """Graph and number of workers, what a straggler does, how long a check period is: what has a
    meaning for some of the runs."""
    on_graph = [s for s in runs if ALGORITHMS[s.algorithm].family != "server"]
    sizes = _listed(sorted(s.workers for s in runs))
    parts = [f"{sizes} workers"]
    if on_graph:
        dybw = [s for s in runs if s.algorithm == "cb_dybw"] or runs
        parts = [
            f"{_listed(s.graph.partition(':')[0] for s in on_graph)} of {sizes}",
            f"policy {_listed(s.straggler_policy for s in dybw if s.clock == 'event') or 'none'}",
            f"{_listed(s.clock for s in dybw)} clock",
        ]
    periods = [s.time_factor * s.check_period for s in runs if s.algorithm in CHECKED]
    return parts + ([f"Γ = {_listed(f'{x:g} s' for x in periods)}"] if periods else [])


def _cluster(s: Settings) -> str:
    if s.cluster == "mpi":
        return "MPI, wall clock"
    return f"virtual cluster, {s.network or 'instant'} network"


def _listed(items: Iterable[object]) -> str:
    return ", ".join(dict.fromkeys(map(str, items)))
