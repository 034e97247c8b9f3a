"""What the simulations have in common: runs drawn from a seed, their cuts, and going on from these.

A simulation is a module with `draw(seed)`, `run(scenario, cut=None)` and `check(scenario, run)`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cbdybw.algorithms.plan import Plan, State
from cbdybw.clusters.trace import Trace
from cbdybw.clusters.virtual import VirtualCluster


@dataclass(frozen=True)
class Served:
    """All that a run with parameter servers depends on, beside the algorithm's code."""

    seed: int
    algorithm: str
    plan: Plan
    servers: int
    law: str
    network: dict[str, Any]

    @property
    def workers(self) -> int:
        """Those that learn."""
        return self.plan.workers


@dataclass
class Cut:
    """A consistent cut, kept in memory."""

    time: float
    states: dict[int, State]
    spans: int  # in the trace by then
    events: int


@dataclass
class Saved:
    """A finished run: its trace, its last states, and its cuts. It is the cluster's saver."""

    trace: Trace = field(default_factory=Trace)
    states: dict[int, State] = field(default_factory=dict)
    cuts: dict[int, Cut] = field(default_factory=dict)
    _saved: dict[int, State] = field(default_factory=dict)

    def save(self, rank: int, state: State) -> None:
        self._saved[rank] = state

    def commit(self, cluster: VirtualCluster) -> None:
        (k,) = {state.k for state in self._saved.values()}
        spans, events = len(self.trace.spans), len(self.trace.events)
        self.cuts[k] = Cut(cluster.time, self._saved, spans, events)
        self._saved = {}

    def sha256(self) -> str:
        return self.trace.sha256(self.states[rank].w for rank in sorted(self.states))


@contextmanager
def shown(scenario: Any) -> Iterator[None]:
    """Print the one command that runs a failing seed alone."""
    try:
        yield
    except BaseException:
        print(f"\n{scenario}\nrun it alone: {scenario.command}")
        raise


def check_resumed(run: Callable[..., Saved], scenario: Any, whole: Saved) -> None:
    """Assert that going on from each cut equals the uninterrupted run, bit for bit."""
    for cut in whole.cuts.values():
        rest = run(scenario, cut)
        assert np.array_equal(rest.trace.spans, whole.trace.spans[cut.spans :])
        assert np.array_equal(rest.trace.events, whole.trace.events[cut.events :])
        for rank, state in whole.states.items():
            assert_same_state(rest.states[rank], state)


def assert_same_state(one: State, other: State) -> None:
    assert (one.k, one.stop) == (other.k, other.stop)
    for mine, theirs in ((one.w, other.w), (one.gradient, other.gradient)):
        assert (mine is None) == (theirs is None)
        assert mine is None or mine.tobytes() == theirs.tobytes()
    assert np.array_equal(one.visits, other.visits)
    assert one.memory.keys() == other.memory.keys()
    for name, array in other.memory.items():
        assert one.memory[name].tobytes() == array.tobytes(), name


def alone(
    draw: Callable[[int], Any],
    run: Callable[..., Saved],
    check: Callable[[Any, Any], None],
) -> None:
    """The binary of a simulation: --seed=N runs and checks that seed alone."""
    parser = argparse.ArgumentParser(description="Run and check the scenario of one seed.")
    parser.add_argument("--seed", type=int, required=True)
    scenario = draw(parser.parse_args().seed)
    print(scenario)
    result = run(scenario)
    check(scenario, result)
    check_resumed(run, scenario, result)
    print(f"fine: trace_sha256 {result.sha256()}")
