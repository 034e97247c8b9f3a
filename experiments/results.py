"""What a run comes to: the JSON object of its last line, and the arrays of result.npz."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cbdybw.algorithms import ALGORITHMS
from cbdybw.algorithms.plan import Plan, State
from cbdybw.clusters.watch import KILL
from cbdybw.recorder import Recorder
from experiments import environment
from experiments.building import FAULT_NOTES
from experiments.evaluation import Metrics, finite
from experiments.settings import Settings

States = Mapping[int, State]


def summary(
    settings: Settings, plan: Plan, recorder: Recorder, metrics: Metrics, states: States
) -> dict[str, Any]:
    """The JSON object, without what only `train.run` knows (fingerprint of the trace, wall time).

    Units: seconds on the cluster's clock. None where nothing is learnt or a number is not finite,
    such as the mean of no iteration.
    """
    last = metrics.rows[-1] if metrics.rows else {}
    mean_seconds = recorder.mean_iteration_seconds()
    return {
        "algorithm": settings.algorithm,
        "cluster": settings.cluster,
        "workers": settings.workers,
        "ranks": settings.ranks,
        "seed": settings.seed,
        "graph": settings.graph,
        "delay": settings.delay,
        "straggler_policy": settings.policy,
        "clock": settings.clock,
        "barrier": settings.barrier,
        "iterations": recorder.iterations,
        "clock_seconds": finite(mean_seconds * recorder.iterations),
        "mean_iteration_seconds": finite(mean_seconds),
        "train_loss": last.get("train_loss"),
        "test_error": last.get("test_error"),
        "consensus_distance": last.get("consensus_distance"),
        "gradients_used": int(recorder.used.sum()),
        "mean_backup_workers": _mean(backup_workers(settings, plan, recorder)),
        "time_to_target": metrics.time_to(settings.target_loss),
        **_held_out(settings, recorder),
        "computing_seconds": _of_workers(settings, recorder, 0),
        "waiting_seconds": _of_workers(settings, recorder, 1),
        **_commits(settings, states),
        "iterations_to_target": metrics.iterations_to(settings.target_loss),
        "recoveries": _recoveries(settings, recorder),
        "parameters_sha256": environment.sha256(final_estimates(settings, states).values()),
        "status": "diverged" if metrics.diverged else "finished",
        "run_dir": settings.run_dir or None,
    }


def _held_out(settings: Settings, recorder: Recorder) -> dict[str, Any]:
    """The held-out loss at the last look, and when it had come to the target: at the first look
    that finds it there, and at the tenth, as the authors of ADSP count."""
    if recorder.looks is None:
        return {}
    seconds, _, loss = recorder.looks.table().T
    there = seconds[loss <= settings.target_loss].tolist()
    return {
        "held_out_loss": finite(loss[-1]) if len(loss) else None,
        "held_out_time_to_target": there[0] if there else None,
        "held_out_tenth_time": there[9] if len(there) > 9 else None,
    }


def _recoveries(settings: Settings, recorder: Recorder) -> list[dict[str, Any]]:
    """What was lost and made good; on MPI, where ranks note in the run's folder that they die, with
    `killed_seconds`: the clock of the first that was not lost before, None if it had no time to."""
    if settings.cluster != "mpi" or not settings.run_dir:
        return recorder.recoveries
    clocks: dict[int, float] = {}
    for path in Path(settings.run_dir, FAULT_NOTES).glob("*.jsonl"):
        for note in map(json.loads, path.read_text().splitlines()):
            if note["kind"] == KILL:
                clocks[note["rank"]] = note["clock"]
    found, known = [], set()
    for recovery in recorder.recoveries:
        died = [clocks[rank] for rank in recovery["lost"] if rank in clocks and rank not in known]
        known.update(recovery["lost"])
        found.append(recovery | {"killed_seconds": min(died, default=None)})
    return found


def _of_workers(settings: Settings, recorder: Recorder, which: int) -> list[float]:
    return [recorder.busy.get(rank, (0.0, 0.0))[which] for rank in range(settings.workers)]


def _commits(settings: Settings, states: States) -> dict[str, Any]:
    """What workers that commit say of themselves: steps taken and commits made, each worker's,
    None of one that was lost; and their server: the search's end in seconds, where it came before
    training, C_target and the range of commits at its check points, its probes (see
    `commits.table`)."""
    if ALGORITHMS[settings.algorithm].root_holds:
        return _choices(settings, states)
    last = states.get(settings.ranks - 1)
    server = last.memory if last else {}
    workers = [states[r].memory if r in states else None for r in range(settings.workers)]
    if settings.algorithm == "cb_adsp":
        return {"steps": [int(memory["steps"]) for memory in workers]}
    if not any(memory and "counts" in memory for memory in workers):
        return {}
    return {
        "steps": [memory and int(memory["counts"][0]) for memory in workers],
        "commits": [memory and int(memory["counts"][2]) for memory in workers],
        "search_seconds": float(server.get("restarted", 0.0)),
        "check_points": server["checks"].tolist() if "checks" in server else None,
        "probes": [list(map(finite, row)) for row in server.get("probes", np.empty(0))],
    }


def _choices(settings: Settings, states: States) -> dict[str, Any]:
    """What each living server has chosen by itself: [k, r, C], the last of them at the end."""
    servers = range(settings.workers, settings.ranks)
    chosen = {
        str(rank): states[rank].memory["choices"].tolist() for rank in servers if rank in states
    }
    return {"checkpoint_choices": chosen} if any(chosen.values()) else {}


def final_estimates(settings: Settings, states: States) -> dict[int, np.ndarray]:
    """The last estimates, or shards, of those who hold one and were not lost."""
    return {rank: states[rank].w for rank in holders(settings) if rank in states}


def holders(settings: Settings) -> range:
    """The ranks that hold an estimate, or a shard of it: workers, or parameter servers."""
    if ALGORITHMS[settings.algorithm].root_holds:
        return range(1)
    served = settings.ranks > settings.workers
    return range(settings.workers if served else 0, settings.ranks)


def models(settings: Settings, estimates: Mapping[int, np.ndarray]) -> dict[int, np.ndarray]:
    """The models there are: each worker's, or the one whose shards the servers hold."""
    if settings.ranks == settings.workers:
        return dict(estimates)
    shards = [estimates[rank] for rank in sorted(estimates)]
    return {0: np.concatenate(shards)}


def backup_workers(settings: Settings, plan: Plan, recorder: Recorder) -> np.ndarray | None:
    """How many were not waited for in iteration k, shape (K,): the mean over workers of
    b_j(k) = |N_j| - p_j(k), at a server of all N workers; None where nobody waits anyway, and
    where some were lost."""
    n, omits = recorder.iterations, ALGORITHMS[settings.algorithm].omits
    if recorder.recoveries:
        return None  # there were not always as many
    if omits == "neighbours":
        degrees = sum(map(len, plan.neighbours))
        return (degrees - recorder.active[:n]) / settings.workers
    return settings.workers - recorder.finishers[:n] if omits == "workers" else None


def _mean(values: np.ndarray | None) -> float | None:
    return float(values.mean()) if values is not None and len(values) else None


def arrays(
    settings: Settings, plan: Plan, recorder: Recorder, states: States
) -> dict[str, np.ndarray]:
    """The arrays of result.npz.

    edges: active edges (k, i, j), i < j, ascending, (n, 3).
    visits: (k, number of the edge) as in `State`, ascending, (v, 2).
    connecting: DTUR's edges, (N-1, 2).
    last_close, finishers, active, used: as in `Recorder`, (K,).
    backup_workers: see above, (K,); absent where it has no meaning.
    looks: seconds, gradients used and held-out loss of each look at the clock, (n, 3); absent
        where there was none.
    estimates: the last ones of the workers, (N, dim), or the servers' one, (1, dim); absent where
        nothing is learnt.
    """
    n = recorder.iterations
    result = {
        "edges": sorted_edges(recorder),
        "visits": states[0].visits,
        "connecting": np.array(plan.connecting, np.int64).reshape(-1, 2),
        "last_close": recorder.last_close[:n],
        "finishers": recorder.finishers[:n],
        "active": recorder.active[:n],
        "used": recorder.used[:n],
    }
    b = backup_workers(settings, plan, recorder)
    if b is not None:
        result["backup_workers"] = b
    if recorder.looks is not None:
        result["looks"] = recorder.looks.table()
    final = final_estimates(settings, states)
    if all(isinstance(w, np.ndarray) for w in final.values()):
        result["estimates"] = np.array(list(models(settings, final).values()))
    return result


def sorted_edges(recorder: Recorder) -> np.ndarray:
    """The recorder's active edges in ascending order, whoever told of them first."""
    return recorder.edges[np.lexsort(recorder.edges.T[::-1])]
