"""The settings of one run: a dataclass, its flags and its defaults in one place."""

from __future__ import annotations

import math
from dataclasses import dataclass

from cbdybw import specs, topology
from cbdybw.algorithms import ALGORITHMS
from cbdybw.algorithms.plan import RECOVERIES
from cbdybw.clusters import delays, network
from cbdybw.learning.workloads import WORKLOADS
from cbdybw.scar.checkpoint import POLICIES
from experiments import limits, survival
from experiments.flagged import Flagged, parse_flags
from experiments.flagged import flag as _flag

__all__ = ["Settings", "define_flags", "from_flagfile", "from_flags", "parse_flags"]


def _table(text: str, rows: str) -> str:
    return f"{text}:\n{rows}"


def _algorithms() -> str:
    width = max(map(len, ALGORITHMS))
    return "\n".join(f"{name:<{width}}  {row.says}" for name, row in ALGORITHMS.items())


@dataclass(frozen=True)
class Settings(Flagged):
    """One field a flag; the metadata holds the flag's help and its allowed values."""

    cluster: str = _flag("virtual", "where to run", ("virtual", "mpi"))
    algorithm: str = _flag(
        "cb_dybw", _table("how workers synchronise", _algorithms()), tuple(ALGORITHMS)
    )
    workload: str = _flag("lrm", _table("what is learnt", specs.help_text(WORKLOADS)))
    dataset: str = _flag(
        "mnist",
        "auto, mnist, fashion_mnist, cifar10, digits, rail, chiller or covertype; of mf: jester or "
        "movielens; of lda: newsgroups, reuters or generated",
    )
    data_dir: str = _flag("", "prepared data; made when missing; empty: a folder under data/")
    raw_dir: str = _flag("", "folder of original files, where data has yet to be prepared")
    pca: int = _flag(50, "principal components; 0: the pixels")
    partition: str = _flag("iid", "iid, shards:K, dirichlet:ALPHA or thinned:SHARE")
    workers: int = _flag(6, "N; on MPI the number of ranks, without servers")
    servers: int = _flag(
        1, "ranks that serve parameters, a shard each, beside the workers (parameter servers only)"
    )
    graph: str = _flag("ring", _table("who is whose neighbour", specs.help_text(topology.GRAPHS)))
    delay: str = _flag(
        "none",
        _table("seconds that a gradient takes (MPI: at least)", specs.help_text(delays.LAWS)),
    )
    network: str = _flag("", f"links of the virtual cluster: {network.USAGE}; empty: instant")
    straggler_policy: str = _flag(
        "carry", "what a straggler does when the threshold comes", ("carry", "drop", "late")
    )
    clock: str = _flag(
        "event",
        "event: who is late starts late; paper: a straggler's step ends at no cost in time "
        "(virtual cluster only; it takes the place of a straggler policy)",
        ("event", "paper"),
    )
    edge_rule: str = _flag("one", "new edges of one iteration that count", ("one", "all"))
    barrier: str = _flag("global", "whom cb_full waits for", ("global", "neighbours"))
    backup_workers: int = _flag(1, "b: how many cb_static and ps_backup do not wait for")
    staleness: int = _flag(4, "s: how many steps ahead of the slowest ssp lets a worker be")
    tau: int = _flag(40, "τ: minibatches of a worker in an iteration of fixed_adacomm")
    commit_rate: int = _flag(
        0, "ΔC: commits of a worker in a check period (adsp: 0 searches for it; cb_adsp)"
    )
    check_period: float = _flag(60.0, "Γ: seconds between two check points (adsp, adacomm)")
    probe_window: float = _flag(60.0, "seconds of training after which a probe is judged")
    search_epoch: float = _flag(1000.0, "seconds after which adsp searches anew")
    time_factor: float = _flag(
        1.0,
        "for short runs: what --check_period, --probe_window, --search_epoch and the shortest time "
        "between two commits of --commit_timer=restart are multiplied by",
    )
    commit_timer: str = _flag(
        "due",
        "due: commits have due times from the check point on; restart: a timer starts again at "
        "each commit, as in the authors' code (adsp)",
        ("due", "restart"),
    )
    reward_points: int = _flag(
        17, "losses in a probe's window that adsp fits its curve to (the authors' code: 3)"
    )
    global_eta: float = _flag(0.0, "η of a commit at the server; 0: 1/N (adsp)")
    server_momentum: float = _flag(0.0, "μ at the server (adsp, adsp_plus)")
    batch_tune: bool = _flag(
        False, "minibatches in proportion to the workers' speeds (bsp, fixed_adacomm)"
    )
    combine: str = _flag(
        "atc",
        "atc: adapt, then combine; cta: combine, then adapt (averages with neighbours only)",
        ("atc", "cta"),
    )
    local_steps: int = _flag(1, "minibatches of a worker in one iteration")
    batch_size: int = _flag(1024, "samples in a minibatch")
    eta0: float = _flag(0.2, "η0 of the learning rate η0·δ^k")
    eta_decay: float = _flag(0.95, "δ of the learning rate η0·δ^k")
    eta_decay_every: str = _flag("epoch", "what k counts in η0·δ^k", ("epoch", "iteration"))
    iterations: int = _flag(200, "K")
    max_time: float = _flag(
        math.inf,
        "seconds on the cluster's clock after which to stop; an iteration that all wait for is "
        "completed",
    )
    target_loss: float = _flag(
        -math.inf,
        "report the time to this training loss, with --eval_seconds also to this held-out loss; "
        "never stops a run",
    )
    seed: int = _flag(0, "of the partition, the minibatches, the first estimate and the delays")
    run_dir: str = _flag("", "folder to write; empty: nothing is written")
    resume: bool = _flag(False, "continue --run_dir from its last checkpoint")
    eval_every: int = _flag(10, "iterations between two evaluations; 0: only at the end")
    eval_seconds: float = _flag(
        0.0, "seconds on the cluster's clock between two looks at the held-out loss; 0: none"
    )
    checkpoint_every: int = _flag(0, "iterations between two checkpoints in --run_dir; 0: none")
    faults: str = _flag("", "TOML file that says who fails when (see cbdybw.clusters.faults)")
    recovery: str = _flag(
        "",
        "when a rank is lost: none: the run ends; without: the others go on; neighbour: a new "
        "worker begins from the average of its neighbours; partial: what was lost comes back from "
        "the running checkpoint; full: everything does; empty: partial for scar, else none",
        ("", *RECOVERIES),
    )
    checkpoint_fraction: float = _flag(0.125, "r: share of the values in each running checkpoint")
    checkpoint_period: int = _flag(8, "C: iterations in which as much is saved as there is")
    checkpoint_policy: str = _flag(
        "priority",
        "blocks that a running checkpoint saves: those that changed most, in turn, at random, or "
        "all; auto: r and C as well, the cheapest for --failure_rate",
        (*POLICIES, "auto"),
    )
    failure_rate: float = _flag(0.0, "failures per iteration that auto reckons with")
    lost_share: float = _flag(0.5, "share of the blocks that a failure loses, for auto")
    save_cost: str = _flag(
        "latency=0.0003,bandwidth=2e9",
        "seconds that a save holds up training, and bytes per second beyond, for auto",
    )
    batch_gradients: bool = _flag(
        True,
        "on the virtual cluster, one call for the gradients of all workers that compute at the "
        "same time, where that is faster",
    )
    replay: str = _flag("", "a recorded run to run again on the virtual cluster, event by event")

    def __post_init__(self) -> None:
        self.check_texts()
        limits.check_numbers(self)
        limits.check_combinations(self)
        survival.check(self)

    @property
    def ranks(self) -> int:
        """Processes of the run: the workers, and the parameter servers where there are any."""
        served = ALGORITHMS[self.algorithm].family == "server"
        return self.workers + (self.servers if served else 0)

    @property
    def policy(self) -> str:
        """What a straggler does: the straggler policy, or the paper's reading of it."""
        return "paper" if self.clock == "paper" else self.straggler_policy

    @property
    def survives(self) -> str:
        """What is done when a rank is lost: one of RECOVERIES."""
        return self.recovery or ("partial" if self.algorithm == "scar" else "none")


define_flags = Settings.define_flags
from_flags = Settings.from_flags
from_flagfile = Settings.from_flagfile
