"""From settings to the pieces of a run. What cannot be used is refused here, before any file of the
run is written."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import networkx as nx

from cbdybw import topology
from cbdybw.algorithms.plan import Pace, Plan
from cbdybw.clusters import delays, network, signals
from cbdybw.clusters.faults import Schedule
from cbdybw.clusters.launch import is_root, placement
from cbdybw.clusters.root import on_root
from cbdybw.errors import BadInput
from cbdybw.learning import schedules, workloads
from cbdybw.learning.corpus import Corpus
from cbdybw.problem import Iterated, Problem
from cbdybw.storage import datasets
from cbdybw.storage.run_directory import RunDirectory
from data_prep import ratings, texts
from experiments import survival
from experiments.settings import Settings

if TYPE_CHECKING:
    from cbdybw.learning.horovod import Horovod
    from cbdybw.learning.iterated import Data
    from data_prep.prepare import Preparation

Log = Callable[[str], None]
FAULT_NOTES = "faults"
"""The folder, in a run's, of what ranks note of themselves before they are killed."""


class Pieces(NamedTuple):
    """What a run is made of, beside the cluster.

    `faults` are what befalls its ranks. `data` is what the manifest says of the data set: `sha256`,
    and `notice`, a line that belongs under every result; both None where nothing is learnt from
    data.
    """

    problem: Problem
    plan: Plan
    delay: delays.DelayLaw
    network: network.Network
    faults: Schedule | None
    data: dict[str, str | None]


def build(settings: Settings, log: Log) -> Pieces:
    """The pieces, with data prepared where it is missing. `log` is called on the root only."""
    check_ranks(settings)
    workloads.check(settings.workload, settings.dataset)
    graph = topology.build(settings.graph, settings.workers, settings.seed)
    _check_backup_workers(settings, graph)
    delay = delays.parse(settings.delay, settings.workers, settings.seed)
    _check_time_passes(settings, delay)
    links = network.parse(settings.network, settings.ranks, settings.seed)
    faults = survival.schedule(settings)
    problem, data = build_problem(settings, log)
    _check_servers(settings, problem)
    plan = build_plan(settings, graph, problem, log)
    return Pieces(problem, plan, delay, links, faults, data)


def _check_backup_workers(settings: Settings, graph: nx.Graph) -> None:
    worker, degree = min(graph.degree, key=lambda pair: pair[1])
    if settings.algorithm == "cb_static" and settings.backup_workers > degree:
        raise BadInput(
            f"--backup_workers={settings.backup_workers}: worker {worker} has "
            f"{degree} neighbours only; use at most {degree}"
        )


def _check_time_passes(settings: Settings, delay: delays.DelayLaw) -> None:
    by_the_clock = ("adsp", "adsp_plus", "adsp_plus_plus", "cb_adsp")
    if settings.algorithm in by_the_clock and settings.cluster == "virtual" and not settings.replay:
        for worker in range(settings.workers):
            if not delay(worker, 0) > 0:
                raise BadInput(
                    f"--delay={settings.delay}: the steps of worker {worker} take no time, and the "
                    f"commits of --algorithm={settings.algorithm} come by the clock; give a --delay"
                )


def _check_servers(settings: Settings, problem: Problem) -> None:
    servers = settings.ranks - settings.workers
    if servers > problem.dim > 0:
        raise BadInput(
            f"--servers={servers}: a server holds a parameter at least, and --workload="
            f"{settings.workload} has {problem.dim}; use at most {problem.dim}"
        )


def check_ranks(settings: Settings) -> None:
    """Whether as many ranks were started as the settings ask for."""
    started = placement()
    if settings.cluster == "mpi" and (started or (0, 1))[1] != settings.ranks:
        ranks, servers = started[1] if started else 1, settings.ranks - settings.workers
        given = f"--workers={settings.workers}" + (f" --servers={servers}" if servers else "")
        instead = f" or give --workers={ranks - servers}" if ranks > servers else ""
        raise BadInput(
            f"{given}: {ranks} MPI rank{'s are' if ranks > 1 else ' is'} running; "
            f"start with mpirun -n {settings.ranks}{instead}"
        )
    if settings.cluster == "virtual" and started and started[1] > 1:
        raise BadInput("--cluster=virtual: needs no mpirun; give --cluster=mpi or start it alone")


def build_problem(settings: Settings, log: Log) -> tuple[Problem | Iterated, dict[str, str | None]]:
    """The learning problem, and what the manifest says of its data."""
    batch_size, seed = settings.batch_size, settings.seed
    data, about = load_data(settings, log)
    if about["notice"] and data.name == "digits":
        # A stand-in, too small for the batch that was asked for.
        batch_size = min(batch_size, data.manifest["batch_size"])
    problem = workloads.build(settings.workload, data, batch_size, seed, settings.eta0)
    return problem, about


def load_data(settings: Settings, log: Log) -> tuple[Data, dict[str, str | None]]:
    """What the workload learns from, made where it is missing, and what its manifest says: `sha256`
    and `notice`. None where nothing is learnt from data."""
    if not workloads.needs_data(settings.workload):
        return None, {"sha256": None, "notice": None}
    folder = prepare_data(settings, log)
    if settings.dataset in texts.TEXTS:
        data = _corpus(settings, folder, log)
        return data, {"sha256": _sha256(data), "notice": data.notice}
    data = (ratings if workloads.collection(settings.workload) else datasets).load(folder)
    return data, {name: data.manifest[name] for name in ("sha256", "notice")}


def prepare_data(settings: Settings, log: Log) -> str:
    """The folder with the data that `settings` learn from, made where it is missing."""
    workloads.check(settings.workload, settings.dataset)
    folder = settings.data_dir or _data_folder(settings)
    prepare = _prepare_collection if workloads.collection(settings.workload) else _prepare_samples
    on_root(lambda: prepare(settings, folder, log), settings.cluster == "mpi")
    return folder


def _prepare_collection(settings: Settings, folder: str, log: Log) -> None:
    if settings.dataset in texts.TEXTS:
        _corpus(settings, folder, log)
    else:
        ratings.prepare(settings.dataset, settings.raw_dir, folder, log)


def _corpus(settings: Settings, folder: str, log: Log) -> Corpus:
    return texts.corpus(settings.dataset, settings.raw_dir, folder, log=log)


def _sha256(corpus: Corpus) -> str:
    return hashlib.sha256(corpus.words.tobytes() + corpus.sizes.tobytes()).hexdigest()


def _prepare_samples(settings: Settings, folder: str, log: Log) -> None:
    from data_prep.prepare import Preparation, prepare

    wanted = Preparation(**{name: getattr(settings, name) for name in Preparation.__annotations__})
    if not _is_prepared(wanted, folder):
        prepare(wanted, folder, log)


def _data_folder(settings: Settings) -> str:
    if workloads.collection(settings.workload):
        return f"data/{settings.dataset}"
    partition = settings.partition.replace(":", "")
    size = f"w{settings.workers}-b{settings.batch_size}-s{settings.seed}"
    return f"data/{settings.dataset}-pca{settings.pca}-{partition}-{size}"


def _is_prepared(wanted: Preparation, folder: str) -> bool:
    """Whether `folder` holds such data; BadInput when it holds something else."""
    if not os.path.lexists(folder) or (os.path.isdir(folder) and not os.listdir(folder)):
        return False
    manifest = datasets.read_manifest(folder)
    there: dict[str, Any] = manifest["parameters"]
    names = {there["dataset"], manifest["dataset"]}  # `auto` that found MNIST is mnist
    if wanted.dataset in names:
        there = there | {"dataset": wanted.dataset}
    for name in ("dataset", "pca", "partition", "workers"):
        if there[name] != getattr(wanted, name):
            raise BadInput(
                f"--data_dir={folder}: prepared with --{name}={there[name]}, not "
                f"{getattr(wanted, name)}; give --{name}={there[name]} or another folder"
            )
    return True


def build_plan(settings: Settings, graph: nx.Graph, problem: Problem, log: Log) -> Plan:
    """What the algorithm is told: graph, connecting edges, learning rate, when to stop."""
    connection = topology.connecting_edges(graph)
    if settings.algorithm == "cb_dybw" and is_root():
        kind = "a Hamiltonian path" if connection.is_path else "a minimum spanning tree"
        log(f"--graph={settings.graph}: DTUR's connecting edges are {kind}")
    return Plan(
        neighbours=topology.neighbours(graph),
        connecting=connection.edges,
        diameter=nx.diameter(graph) if math.isfinite(settings.max_time) else 0,
        eta=schedules.exponential_decay(
            settings.eta0,
            settings.eta_decay,
            settings.eta_decay_every,
            max(1, getattr(problem, "steps_per_epoch", 1) // settings.local_steps),
        ),
        iterations=settings.iterations,
        policy=settings.policy,
        edge_rule=settings.edge_rule,
        barrier=settings.barrier,
        max_time=settings.max_time,
        checkpoint_every=settings.checkpoint_every,
        combine=settings.combine,
        local_steps=settings.local_steps,
        backup_workers=settings.backup_workers,
        staleness=settings.staleness,
        pace=_pace(settings, problem),
        survival=survival.build(settings, problem),
    )


def _pace(settings: Settings, problem: Problem) -> Pace:
    """How often workers commit; times are shorter by the factor for short runs."""
    factor = settings.time_factor
    return Pace(
        rate=settings.commit_rate,
        period=factor * settings.check_period,
        window=factor * settings.probe_window,
        epoch=factor * settings.search_epoch,
        shortest=factor * Pace.shortest,
        restarts=settings.commit_timer == "restart",
        points=settings.reward_points,
        eta=settings.global_eta,
        momentum=settings.server_momentum,
        tau=settings.tau,
        batch_size=getattr(problem, "batch_size", settings.batch_size)
        if settings.batch_tune
        else 0,
    )


def build_cluster(settings: Settings, pieces: Pieces, **told: Any) -> Any:
    """The cluster to run on; `told` are trace, recorder and saver."""
    told |= {"seed": settings.seed, "servers": settings.ranks - settings.workers}
    struck = {
        "faults": pieces.faults,
        "corrupt": partial(survival.damage, settings, pieces.plan.survival),
        "warned": signals.warned,
    }
    if settings.replay:
        from cbdybw.clusters.replay import ReplayCluster

        return ReplayCluster(settings.ranks, settings.replay, **told)
    if settings.cluster == "mpi":
        from cbdybw.clusters.mpi import MpiCluster

        return MpiCluster(
            delay=pieces.delay,
            dim=pieces.problem.dim,
            neighbours=pieces.plan.neighbours,
            horovod=_horovod(settings, pieces.problem),
            fault_notes=settings.run_dir and RunDirectory(settings.run_dir).path / FAULT_NOTES,
            **struck,
            **told,
        )
    from cbdybw.clusters.virtual import VirtualCluster

    return VirtualCluster(
        settings.ranks,
        delay=pieces.delay,
        network=pieces.network,
        batch=settings.batch_gradients,
        replaces=pieces.plan.survival.replaces and settings.ranks == settings.workers,
        **struck,
        **told,
    )


def _horovod(settings: Settings, problem: Problem) -> Horovod | None:
    """Horovod, for the algorithm that is about it, where it is installed with TensorFlow in it."""
    if settings.algorithm != "allreduce" or problem.dim == 0:
        return None
    try:
        from cbdybw.learning.horovod import Horovod
    except ImportError:
        return None
    return Horovod()
