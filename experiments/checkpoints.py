"""Consistent cuts of a run in its folder: the workers' states, the recorder, the trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cbdybw.algorithms.plan import State
from cbdybw.clusters.trace import Trace
from cbdybw.problem import Weightless
from cbdybw.recorder import Recorder
from cbdybw.storage.ownership import Owner
from cbdybw.storage.run_directory import RunDirectory

_COUNTS = ("last_close", "finishers", "active", "used")


class Checkpoints:
    """One process's side of the checkpoints in a run folder; the cluster's saver.

    Each process writes one file a cut; the root's `commit` makes the cut count.
    """

    def __init__(
        self,
        directory: RunDirectory,
        process: int,
        ranks: Sequence[int],
        recorder: Recorder,
        trace: Trace,
        about: Mapping[str, Any],
        owner: Owner | None,
    ):
        """`about`: what every checkpoint says of itself, beside its k and its clock. `owner` is
        asked, on the root, whether the folder is still ours."""
        self._directory, self._process, self._ranks = directory, process, ranks
        self._recorder, self._trace, self._about = recorder, trace, about
        self._owner = owner
        self._arrays: dict[str, np.ndarray] = {}
        self._k = 0

    def save(self, rank: int, state: State) -> None:
        """Take the state of `rank`; with the last of this process's ranks, write the file."""
        self._k = state.k
        self._arrays |= {f"state/{rank}/{key}": a for key, a in _to_arrays(state).items()}
        if rank == self._ranks[-1]:
            if self._owner is not None:
                self._owner.check()
            self._arrays |= _recorder_to_arrays(self._recorder)
            self._directory.save_part(self._k, self._name, self._arrays)
            self._trace.flush(self._directory.trace, self._process, self._k)
            self._arrays = {}

    def commit(self, cluster: Any) -> None:
        """All processes have saved: the cut counts from now on."""
        about = {"clock": cluster.time, **self._about}
        self._directory.complete_checkpoint(self._k, about)

    def restore(self, k: int) -> dict[int, State]:
        """The states of this process's ranks at cut k; the recorder and the trace go back to it."""
        arrays = self._directory.load_part(k, self._name)
        _recorder_from_arrays(self._recorder, arrays)
        self._trace.restore(self._directory.trace, self._process, k)
        return {rank: _to_state(arrays, f"state/{rank}/") for rank in self._ranks}

    @property
    def _name(self) -> str:
        return f"process-{self._process:05d}"


def _to_arrays(state: State) -> dict[str, Any]:
    arrays = {"k": state.k, "visits": state.visits}
    if state.stop is not None:
        arrays["stop"] = state.stop
    for key in ("w", "gradient"):
        vector = getattr(state, key)
        if isinstance(vector, Weightless):
            arrays[key + "_nbytes"] = vector.nbytes
        elif vector is not None:
            arrays[key] = vector
    return arrays | {f"memory/{name}": array for name, array in state.memory.items()}


def _to_state(arrays: dict[str, np.ndarray], prefix: str) -> State:
    fields = {
        key.removeprefix(prefix): array for key, array in arrays.items() if key.startswith(prefix)
    }
    for key in ("w", "gradient"):
        if f"{key}_nbytes" in fields:
            fields[key] = Weightless(int(fields.pop(f"{key}_nbytes")))
    return State(
        k=int(fields["k"]),
        w=fields["w"],
        gradient=fields.get("gradient"),
        visits=fields["visits"],
        stop=int(fields["stop"]) if "stop" in fields else None,
        memory={
            name.removeprefix("memory/"): array
            for name, array in fields.items()
            if name.startswith("memory/")
        },
    )


def _recorder_to_arrays(recorder: Recorder) -> dict[str, np.ndarray]:
    arrays = {name: getattr(recorder, name) for name in _COUNTS}
    arrays["resumed"] = np.array(sorted(recorder.resumed.items()), float).reshape(-1, 2)
    arrays["edges"] = recorder.edges
    for done, estimates in recorder.copies.items():
        arrays |= {f"copy/{done}/{rank}": w for rank, w in estimates.items()}
    return arrays | (recorder.looks.to_arrays() if recorder.looks else {})


def _recorder_from_arrays(recorder: Recorder, arrays: dict[str, np.ndarray]) -> None:
    for name in _COUNTS:
        mine, saved = getattr(recorder, name), arrays[name]
        n = min(len(mine), len(saved))
        mine[:n] = saved[:n]
    recorder.resumed = {int(k): float(time) for k, time in arrays["resumed"]}
    recorder.edges = arrays["edges"]
    for key, w in arrays.items():
        if key.startswith("copy/"):
            _, done, rank = key.split("/")
            recorder.copies.setdefault(int(done), {})[int(rank)] = w
    if recorder.looks:
        recorder.looks.from_arrays(arrays)
