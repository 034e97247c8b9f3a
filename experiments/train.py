"""One run: `python -m experiments.train --algorithm=cb_dybw --delay=exponential:mean=0.1 …`

On the virtual cluster as it stands; on MPI the same line under mpirun with --cluster=mpi. The last
line on stdout is one JSON object. Exit codes: 0 finished, 1 failed (also a replay that did not come
out as recorded), 2 unusable input, 3 diverged, 75 stopped after a checkpoint (SIGUSR2) and to be
started again with --resume, 143 ended by SIGTERM, 130 by SIGINT.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from absl import app, flags

from cbdybw.algorithms import ALGORITHMS
from cbdybw.algorithms.plan import State, shards
from cbdybw.clusters import signals
from cbdybw.clusters.guard import guard
from cbdybw.clusters.launch import is_root, placement
from cbdybw.clusters.root import on_root
from cbdybw.clusters.trace import Event, Trace
from cbdybw.clusters.worker import keyed_rng
from cbdybw.errors import BadInput, Cancelled, Evicted, Interrupted
from cbdybw.looks import Looks
from cbdybw.problem import Timing
from cbdybw.recorder import Recorder
from cbdybw.storage.ownership import Owner
from cbdybw.storage.run_directory import RunDirectory
from experiments import building, environment, evaluation, opening, replaying, results
from experiments.building import Pieces
from experiments.checkpoints import Checkpoints
from experiments.evaluation import Metrics, Qualities
from experiments.opening import Opened
from experiments.settings import Settings, define_flags, from_flags, parse_flags

Log = Callable[[str], None]
ALONE = False
"""Training on the virtual cluster takes no notice of what else this machine does."""
_FINAL = -1  # the key of the last estimates among those kept at iterations


class Outcome(NamedTuple):
    """What a run comes to.

    `result`: the JSON object of the last line. `metrics`: the evaluations, as in metrics.jsonl.
    `arrays`: those of result.npz, see `results.arrays`.
    """

    result: dict[str, Any]
    metrics: list[dict[str, Any]]
    arrays: dict[str, np.ndarray]


def run(settings: Settings, log: Log) -> dict[str, Any] | None:
    """Train as `settings` say; the result on the root, None on other ranks. Raises as `outcome`."""
    done = outcome(settings, log)
    return done and done.result


def prepare_data(settings: Settings, log: Log) -> None:
    """Make the data set where it is missing, in this process alone."""
    building.prepare_data(replace(settings, cluster="virtual"), log)


def outcome(settings: Settings, log: Log) -> Outcome | None:
    """Train as `settings` say; what it comes to on the root, None on other ranks.

    Raises BadInput before anything is written, except for data that had to be prepared.
    """
    began = time.perf_counter()
    if settings.replay:
        settings = replaying.recorded_settings(settings)
    mpi = settings.cluster == "mpi"
    building.check_ranks(settings)
    on_root(lambda: opening.check(settings), mpi)
    pieces = building.build(settings, log)
    opened = on_root(lambda: opening.open_run(settings, pieces.data), mpi)
    with _owned(settings, opened) as owner:
        session = _Session(settings, pieces, owner)
        states = session.train(opened and opened.cut)
        return session.close(states, began)


@contextlib.contextmanager
def _owned(settings: Settings, opened: Opened | None) -> Iterator[Owner | None]:
    """On the root: meanwhile nobody else writes to the run folder, and whatever ends the run before
    its time stands in its manifest."""
    if opened is None or not is_root():
        yield None
        return
    directory = RunDirectory(settings.run_dir)
    with Owner(directory.path, opened.number, lose=signals.end) as owner:
        try:
            yield owner
        except BaseException as error:
            with contextlib.suppress(OSError, BadInput, Evicted):  # gone, or another run's by now
                owner.check()
                why = f"{type(error).__name__}: {error}"
                directory.ended(status=_status(error), failure=why)
            raise


class _Session:
    """One process's part in a run, from the first iteration on."""

    def __init__(self, settings: Settings, pieces: Pieces, owner: Owner | None):
        self.settings, self.pieces, self._owner = settings, pieces, owner
        self.mpi = settings.cluster == "mpi"
        self.process = (placement() or (0, 1))[0] if self.mpi else 0
        self.ranks = (self.process,) if self.mpi else range(settings.ranks)
        self.learns = not isinstance(pieces.problem, Timing)
        self.directory = RunDirectory(settings.run_dir) if settings.run_dir else None
        self.trace = Trace()
        self.recorder = Recorder(
            settings.iterations,
            settings.eval_every if self.learns else 0,
            len(results.holders(settings)),
            # A process that has all workers need not keep their estimates until the end.
            complete=None if self.mpi else self._evaluate,
            keep_edges=bool(settings.run_dir or settings.replay),
            looks=self._looks(),
        )
        self.metrics = Metrics(
            pieces.problem, self.recorder, self.directory if self.process == 0 else None
        )
        self.saver = self.directory and Checkpoints(
            self.directory,
            self.process,
            self.ranks,
            self.recorder,
            self.trace,
            about={"limits": opening.limits(settings)},
            owner=owner,
        )
        self.cluster = building.build_cluster(
            settings, pieces, trace=self.trace, recorder=self.recorder, saver=self.saver
        )

    def train(self, cut: dict[str, Any] | None) -> dict[int, State]:
        """The loop, from the checkpoint `cut` on if there is one; the last states of our ranks."""
        problem, plan = self.pieces.problem, self.pieces.plan
        algorithm = ALGORITHMS[self.settings.algorithm].run
        states = self._first_states() if cut is None else self._restored(cut)
        first = self.ranks[0]
        if self.learns and first < self.settings.workers:
            # TensorFlow, or numba, compiles at the first gradient: not in iteration 0
            if hasattr(problem, "part"):
                problem.part(states[first].w, 0, self.settings.workers, 0)
            else:
                problem.gradient(states[first].w, problem.batch(first, 0))
        with evaluation.overflowing():
            return self.cluster.run(
                lambda worker: algorithm(worker, problem, plan, states[worker.rank]),
                start=cut["clock"] if cut else 0.0,
            )

    def _first_states(self) -> dict[int, State]:
        """[choice] All workers start from the same estimate."""
        w = self.pieces.problem.initial(keyed_rng(self.settings.seed, "initial", 0, 0))
        states = {rank: State(0, w) for rank in self.ranks}
        servers = range(self.settings.workers, self.settings.ranks)
        if ALGORITHMS[self.settings.algorithm].root_holds:
            servers = range(0)  # each takes what it holds by itself
        for server, shard in zip(servers, shards(w, len(servers)), strict=True):
            if server in states:
                states[server].w = shard
        if self.learns:
            for rank in self._holders:
                self.recorder.copy(0, rank, states[rank].w)
        return self._held(states)

    def _held(self, states: dict[int, State]) -> dict[int, State]:
        """`states`, whose estimates are what there is to look at."""
        if self.recorder.looks is not None:
            for rank in self._holders:
                self.recorder.looks.hold(rank, states[rank].w)
        return states

    def _restored(self, cut: dict[str, Any]) -> dict[int, State]:
        states = self.saver.restore(cut["k"])
        if self.mpi:  # a rank saves before its cut is complete, and a replay needs that event
            self.trace.event(self.process, cut["clock"], Event.COLLECTED, 0, self.process)
        if cut["limits"] != opening.limits(self.settings):
            for state in states.values():
                state.stop = None  # agreed on under other limits
        return self._held(states)

    def _looks(self) -> Looks | None:
        """Looks at the clock, evaluated at once where this process has all estimates."""
        settings = self.settings
        if not (self.learns and settings.eval_seconds):
            return None
        loss = None if self.mpi else self._held_out_loss
        return Looks(settings.eval_seconds, len(results.holders(settings)), loss)

    def _held_out_loss(self, estimates: dict[int, np.ndarray]) -> float:
        models = results.models(self.settings, estimates)
        return self.pieces.problem.held_out_loss(evaluation.mean_model(models))

    @property
    def _holders(self) -> list[int]:
        """The ranks of this process that hold an estimate."""
        return [rank for rank in results.holders(self.settings) if rank in self.ranks]

    def _evaluate(self, done: int, estimates: dict[int, np.ndarray]) -> None:
        self.metrics.add(done, results.models(self.settings, estimates))

    def close(self, states: dict[int, State], began: float) -> Outcome | None:
        """Evaluate what has not been, write what is left, and sum up on the root."""
        final = {rank: states[rank].w for rank in self._holders if rank in states}
        if self.directory is not None:
            self.trace.flush(self.directory.trace, self.process, self.settings.iterations)
        self.recorder.busy = self.trace.busy()
        if self.recorder.looks is not None:
            self.recorder.looks.finish(self.cluster.time)
        own = self._own_qualities(final) if self.mpi and self.learns else {}
        digest = self.trace.sha256(states[rank].w for rank in self.ranks if rank in states)
        parts = self.cluster.gather((states, self.recorder, own, digest))
        if parts is None:
            return None
        lost = sorted({*self.cluster.lost, *(r for r, part in enumerate(parts) if part is None)})
        all_states, recorders, owns, digests = zip(*filter(None, parts), strict=True)
        states = {rank: state for some in all_states for rank, state in some.items()}
        self.recorder.merge(recorders[1:])
        if self.learns:
            self._evaluate_rest(results.final_estimates(self.settings, states), owns)
        return self._result(states, lost, environment.combined(digests), began)

    def _own_qualities(self, final: dict[int, np.ndarray]) -> dict[int, Qualities]:
        """On MPI each worker evaluates its own estimates, all at the same time."""
        if self.settings.ranks > self.settings.workers:
            return {}  # a server may have no more than a shard
        kept = self.recorder.copies | {_FINAL: final}
        problem = self.pieces.problem
        return {done: evaluation.qualities(problem, estimates) for done, estimates in kept.items()}

    def _evaluate_rest(
        self, final: dict[int, np.ndarray], owns: Sequence[dict[int, Qualities]]
    ) -> None:
        """The iterations of which estimates were kept, and the last one. An iteration that ended
        before a loss is seen by those who have survived."""
        own = evaluation.merged(owns)
        for done, estimates in sorted(self.recorder.copies.items()):
            if estimates.keys() >= final.keys():  # else they stopped before
                models = results.models(self.settings, estimates)
                self.metrics.add(done, models, own.get(done))
        models = results.models(self.settings, final)
        self.metrics.add(self.recorder.iterations, models, own.get(_FINAL))
        self.metrics.rows.sort(key=lambda row: row["iteration"])
        if self.recorder.looks is not None:
            self.recorder.looks.evaluate(self._held_out_loss)

    def _result(
        self, states: dict[int, State], lost: list[int], trace_sha256: str, began: float
    ) -> Outcome:
        settings, plan = self.settings, self.pieces.plan
        result = results.summary(settings, plan, self.recorder, self.metrics, states)
        result |= {"lost": lost, "trace_sha256": trace_sha256}
        result["notice"] = self.pieces.data["notice"]
        if settings.algorithm == "allreduce":
            result["allreduce"] = self.cluster.allreduce_by
        arrays = results.arrays(settings, plan, self.recorder, states)
        if settings.replay:
            result |= replaying.comparison(settings, result, arrays)
        result["wall_seconds"] = time.perf_counter() - began
        if self.directory is not None:
            self._owner.check()
            self.directory.write_result(arrays)
            self.directory.ended(status=result["status"], result=result)
        return Outcome(result, self.metrics.rows, arrays)


def _status(end: BaseException) -> str:
    """What the manifest calls a run that `end` has ended."""
    if isinstance(end, Interrupted):
        return "interrupted"
    return "cancelled" if isinstance(end, Cancelled | KeyboardInterrupt) else "failed"


def main(argv: list[str]) -> int:
    """The binary."""
    del argv
    with guard():
        signals.listen()
        result = run(from_flags(), log=_say)
    if result is None:
        return 0
    print(json.dumps(result, allow_nan=False), flush=True)
    if result.get("replay_identical") is False:
        _say(f"--replay={flags.FLAGS.replay}: did not come out as recorded")
        return 1
    return 3 if result["status"] == "diverged" else 0


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _parse(argv: list[str]) -> list[str]:
    with guard():
        return parse_flags(argv)


if __name__ == "__main__":
    define_flags()
    flags.adopt_module_key_flags(sys.modules[define_flags.__module__])  # --help lists them
    app.run(main, flags_parser=_parse)
