"""What the settings of a run may be: limits of numbers, and flags that do not go together.

Each refusal is one line: what was given, and what to give instead.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from cbdybw.algorithms import ALGORITHMS
from cbdybw.algorithms.plan import Pace
from cbdybw.clusters import trace
from cbdybw.errors import BadInput
from cbdybw.learning import workloads
from cbdybw.learning.schedules import exponential_decay

if TYPE_CHECKING:
    from experiments.settings import Settings

LEAST, MOST = 1e-3, 1e9  # seconds: below and beyond lie typing errors


def check_numbers(settings: Settings) -> None:
    """Whether each number lies where it means something."""
    for name, least, most in (
        ("workers", 1, trace.MOST_RANKS),
        ("servers", 1, trace.MOST_RANKS - settings.workers),
        ("backup_workers", 0, math.inf),
        ("staleness", 0, math.inf),
        ("local_steps", 1, math.inf),
        ("pca", 0, math.inf),
        ("batch_size", 1, math.inf),
        ("iterations", 1, trace.MOST_ITERATIONS),
        ("seed", 0, 2**32 - 1),  # what the generators of all libraries take
        ("tau", 1, 10**9),
        ("commit_rate", 0, 10**9),
        ("reward_points", 3, 10**4),
        ("eval_every", 0, math.inf),
        ("checkpoint_every", 0, math.inf),
    ):
        value = getattr(settings, name)
        if not least <= value <= most:
            use = f"{least} … {most}" if most < math.inf else f"{least} or more"
            raise BadInput(f"--{name}={value}: use {use}")
    if not settings.max_time > 0:
        raise BadInput(f"--max_time={settings.max_time}: use seconds above 0")
    _check_pace(settings)
    if math.isnan(settings.target_loss):
        raise BadInput("--target_loss=nan: use a number")
    exponential_decay(settings.eta0, settings.eta_decay, settings.eta_decay_every, 1)


def _check_pace(settings: Settings) -> None:
    """The numbers of ADSP and its kin; times are looked at as the run has them."""
    factor = settings.time_factor
    if not 0 < factor < math.inf:
        raise BadInput(f"--time_factor={factor}: use a finite number above 0")
    for name in ("check_period", "probe_window", "search_epoch"):
        if not LEAST <= getattr(settings, name) * factor <= MOST:
            scaled = f" --time_factor={factor}" if factor != 1 else ""
            raise BadInput(
                f"--{name}={getattr(settings, name)}{scaled}: use {LEAST} … {MOST:g} seconds in all"
            )
    if settings.eval_seconds and not LEAST <= settings.eval_seconds <= MOST:
        raise BadInput(
            f"--eval_seconds={settings.eval_seconds}: use {LEAST} … {MOST:g}, or 0 for no looks"
        )
    if not 0 <= settings.global_eta < math.inf:
        raise BadInput(f"--global_eta={settings.global_eta}: use a finite number from 0 up")
    if not 0 <= settings.server_momentum < 1:
        raise BadInput(f"--server_momentum={settings.server_momentum}: use 0 up to below 1")


def check_combinations(settings: Settings) -> None:
    """Whether the flags go together."""
    row = ALGORITHMS[settings.algorithm]
    if settings.policy not in row.policies:
        given = "--clock" if settings.policy == "paper" else "--straggler_policy"
        raise BadInput(
            f"{given}={settings.policy}: not possible for --algorithm={settings.algorithm}; "
            f"use --straggler_policy={' or '.join(row.policies)}"
        )
    mixes = row.family == "consensus" and settings.algorithm != "cb_adsp"
    if settings.combine == "cta" and not mixes:
        raise BadInput(
            f"--combine=cta: --algorithm={settings.algorithm} has one order of a step; leave it out"
        )
    if settings.algorithm == "ps_backup" and settings.backup_workers >= settings.workers:
        raise BadInput(
            f"--backup_workers={settings.backup_workers}: of {settings.workers} workers at least "
            f"one has to be waited for; use at most {settings.workers - 1}"
        )
    _check_commits(settings, row.searches)
    _check_iterated(settings)
    if settings.clock == "paper" and settings.cluster == "mpi":
        raise BadInput("--clock=paper: exists on paper only; use --cluster=virtual")
    if settings.clock == "paper" and settings.straggler_policy != "carry":
        raise BadInput(
            f"--clock=paper takes the place of --straggler_policy={settings.straggler_policy}; "
            "give one of them"
        )
    if settings.network and settings.cluster == "mpi":
        raise BadInput(
            f"--network={settings.network}: a real network needs no model; use --cluster=virtual"
        )
    if settings.replay and (settings.cluster == "mpi" or settings.resume):
        given = "--cluster=mpi" if settings.cluster == "mpi" else "--resume"
        raise BadInput(
            f"--replay={settings.replay}: runs on the virtual cluster, from the start; "
            f"leave out {given}"
        )
    if (settings.resume or settings.checkpoint_every) and not (settings.run_dir or settings.replay):
        given = "--resume" if settings.resume else f"--checkpoint_every={settings.checkpoint_every}"
        raise BadInput(f"{given}: there is no folder to keep checkpoints in; give --run_dir")


COMMITTING = ("adsp", "adsp_plus", "adsp_plus_plus", "adacomm", "fixed_adacomm", "cb_adsp")
OWN_STEPS = (*COMMITTING, "scar")


def _check_commits(settings: Settings, searches: bool) -> None:
    """What ADSP and its kin do not go together with."""
    if searches and settings.servers > 1:
        raise BadInput(
            f"--servers={settings.servers}: the scheduler of --algorithm={settings.algorithm} "
            "looks at the whole model; use --servers=1"
        )
    if settings.batch_tune and settings.algorithm not in ("bsp", "fixed_adacomm"):
        raise BadInput(
            f"--batch_tune: --algorithm={settings.algorithm} has minibatches of one size; "
            "use bsp or fixed_adacomm"
        )
    if settings.algorithm == "cb_adsp" and settings.commit_rate == 0:
        raise BadInput(
            "--commit_rate=0: --algorithm=cb_adsp has no centre to search for it; "
            "give a whole number from 1 up"
        )
    if settings.local_steps > 1 and (settings.batch_tune or settings.algorithm in OWN_STEPS):
        given = "--batch_tune" if settings.batch_tune else f"--algorithm={settings.algorithm}"
        raise BadInput(
            f"--local_steps={settings.local_steps}: {given} has steps of its own; leave it out"
        )
    if settings.algorithm == "cb_adsp":
        first = settings.check_period * settings.time_factor / settings.commit_rate
        if first > settings.max_time:
            raise BadInput(
                f"--max_time={settings.max_time}: the first exchange of cb_adsp is due at "
                f"{first:g} s; give more time, a larger --commit_rate or a shorter --check_period"
            )
    probes = settings.algorithm.startswith("adsp") and not (
        settings.algorithm == "adsp" and settings.commit_rate
    )
    if probes and settings.commit_timer == "restart" and settings.probe_window <= Pace.shortest:
        raise BadInput(
            f"--probe_window={settings.probe_window}: with --commit_timer=restart nobody commits "
            f"within {Pace.shortest:g} s; use more than that"
        )


def _check_iterated(settings: Settings) -> None:
    """Iterative-convergent workloads and SCAR need each other."""
    workload, algorithm = settings.workload, settings.algorithm
    iterated = workloads.is_iterated(workload, settings.dataset)
    of_adsp = "; of --workload=cnn ADSP's learns from --dataset=cifar10, SCAR's from mnist"
    hint = of_adsp if workload.startswith("cnn") else ""
    if iterated and algorithm != "scar":
        raise BadInput(
            f"--algorithm={algorithm}: --workload={workload} is iterated as a whole; "
            f"use --algorithm=scar{hint}"
        )
    if algorithm == "scar" and not iterated:
        raise BadInput(
            f"--workload={workload}: --algorithm=scar iterates {', '.join(workloads.ITERATED)}; "
            f"use one of these{hint}"
        )
