"""What a run does about losses: the flags of fault schedules, running checkpoints and recovery."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cbdybw import specs
from cbdybw.algorithms import ALGORITHMS
from cbdybw.algorithms.plan import Survival
from cbdybw.clusters import faults
from cbdybw.errors import BadInput
from cbdybw.scar.blocks import Blocks
from cbdybw.scar.checkpoint import Memory, Store
from cbdybw.scar.tuning import Expected

if TYPE_CHECKING:
    from experiments.settings import Settings

SHARDS = 256
"""[choice] Blocks of a worker's estimate, in the consensus family."""
FOLDER = "running"
"""Of the running checkpoints, in a run's folder; a folder each rank."""

SAVE_COST = {
    "latency": specs.number(0),
    "bandwidth": specs.number(0, above=True),
}


def check(settings: Settings) -> None:
    """Whether the flags about losses mean something, and go together."""
    _check_numbers(settings)
    row, recovery = ALGORITHMS[settings.algorithm], settings.survives
    given = f"--recovery={recovery}"
    if recovery not in row.recoveries:
        raise BadInput(
            f"{given}: not possible for --algorithm={settings.algorithm}; "
            f"use {' or '.join(row.recoveries)}"
        )
    consensus = row.family == "consensus"
    if consensus and settings.cluster == "mpi" and recovery not in ("none", "without"):
        raise BadInput(
            f"{given}: mpirun starts no new rank in the place of a lost one; "
            "use --recovery=without, or --cluster=virtual"
        )
    if recovery in ("partial", "full"):
        if settings.cluster == "mpi" and not settings.run_dir:
            raise BadInput(
                f"{given}: running checkpoints need a folder that all ranks share; give --run_dir"
            )
        if consensus and settings.workload.partition(":")[0] == "timing":
            raise BadInput(f"{given}: --workload=timing has nothing to save; use neighbour")
    if settings.checkpoint_policy == "auto" and settings.algorithm != "scar":
        raise BadInput("--checkpoint_policy=auto: is for --algorithm=scar; use priority or full")
    _check_cuts(settings)


def _check_numbers(settings: Settings) -> None:
    for name, low, high in (("checkpoint_fraction", 0, 1), ("lost_share", 0, 1)):
        if not low < getattr(settings, name) <= high:
            raise BadInput(f"--{name}={getattr(settings, name)}: use a number above 0, at most 1")
    if settings.checkpoint_period < 1:
        raise BadInput(f"--checkpoint_period={settings.checkpoint_period}: use 1 or more")
    if not 0 <= settings.failure_rate <= 1:
        raise BadInput(f"--failure_rate={settings.failure_rate}: use 0 … 1")
    save_cost(settings)


def _check_cuts(settings: Settings) -> None:
    """Consistent cuts need everybody, and so does the agreement on `--max_time`."""
    consensus = ALGORITHMS[settings.algorithm].family == "consensus"
    if settings.algorithm == "scar" or (consensus and settings.survives != "none"):
        for name, default in (("checkpoint_every", 0), ("max_time", float("inf"))):
            if getattr(settings, name) != default:
                raise BadInput(
                    f"--{name}={getattr(settings, name)}: needs every rank to the end, which "
                    f"--algorithm={settings.algorithm} --recovery={settings.survives} does "
                    "without; leave it out"
                )
    if settings.faults and settings.checkpoint_every:
        raise BadInput(
            f"--checkpoint_every={settings.checkpoint_every}: a cut does not know which --faults "
            "have struck; leave one of them out"
        )


def save_cost(settings: Settings) -> dict[str, float]:
    """Latency and bandwidth of --save_cost."""
    given = f"--save_cost={settings.save_cost}"
    keys = specs.parse(settings.save_cost, "--save_cost")[1]
    return specs.read(keys, SAVE_COST, given, "latency=SECONDS,bandwidth=BYTES_PER_SECOND")


def build(settings: Settings, problem: Any) -> Survival:
    """What the algorithm is told."""
    blocks = getattr(problem, "blocks", None)
    if blocks is None and problem.dim:
        blocks = Blocks.shards(problem.dim, SHARDS)
    policy = settings.checkpoint_policy
    return Survival(
        recovery=settings.survives,
        fraction=settings.checkpoint_fraction,
        period=settings.checkpoint_period,
        policy="priority" if policy == "auto" else policy,
        store=_stores(settings, blocks),
        seed=settings.seed,
        expected=_expected(settings) if policy == "auto" else None,
    )


def _expected(settings: Settings) -> Expected:
    return Expected(settings.failure_rate, settings.lost_share, **save_cost(settings))


def _stores(settings: Settings, blocks: Blocks | None) -> Callable[[int], Store]:
    """Rank → where its running checkpoint is kept, the same object each time."""
    about = f"{settings.workload} on {settings.dataset}, seed {settings.seed}"

    @cache
    def store(rank: int) -> Store:
        if not settings.run_dir:
            return Memory(blocks)
        from cbdybw.scar.log import Log

        return Log(_folder(settings, rank), blocks, about)

    return store


def _folder(settings: Settings, rank: int) -> Path:
    return Path(settings.run_dir) / FOLDER / f"rank-{rank:05d}"


def schedule(settings: Settings) -> faults.Schedule | None:
    """The faults of the run, where there are any."""
    if not settings.faults:
        return None
    found = faults.read(settings.faults, settings.workers, settings.ranks - settings.workers)
    corrupted = [fault.rank for fault in found.faults if fault.kind == "corrupt"]
    if corrupted and not (settings.run_dir and settings.survives in ("partial", "full")):
        raise BadInput(
            f"--faults={settings.faults}: a corrupt file needs running checkpoints on disk; "
            "give --run_dir and --recovery=partial"
        )
    if settings.algorithm == "scar" and corrupted and min(corrupted) < settings.workers:
        raise BadInput(
            f"--faults={settings.faults}: rank {min(corrupted)} is a worker of scar, which has no "
            'running checkpoint to corrupt; use role = "servers"'
        )
    return found


def damage(settings: Settings, survival: Survival, rank: int) -> None:
    """Flip a byte in the middle of the newest file of a rank's running checkpoint."""
    survival.store(rank).flush()
    newest = max(_folder(settings, rank).glob("*.blocks"))
    with open(newest, "r+b") as file:
        file.seek(newest.stat().st_size // 2)
        byte = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte[0] ^ 0xFF]))
