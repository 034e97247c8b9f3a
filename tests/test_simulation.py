"""Deterministic simulation: many whole runs, every invariant at every iteration."""

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from tests.drawn import check_resumed, shown
from tests.simulation import check, draw, run


@pytest.mark.parametrize("seed", range(600))
def test_every_invariant_holds_at_every_iteration(seed):
    scenario = draw(seed)
    with shown(scenario):
        check(scenario, run(scenario))


@pytest.mark.parametrize("seed", range(1000, 1150))
def test_a_resumed_run_equals_the_uninterrupted_one_bit_for_bit(seed):
    scenario = draw(seed)
    with shown(scenario):
        check_resumed(run, scenario, run(scenario))


def test_the_seeds_reach_everything_that_can_be_drawn():
    scenarios = [draw(seed) for seed in range(600)]
    assert {s.workers for s in scenarios} == set(range(1, 10))
    for drawn in (
        {(s.algorithm, s.plan.policy, s.plan.edge_rule) for s in scenarios},
        {(s.algorithm, s.plan.policy, s.plan.combine) for s in scenarios},
        {(s.algorithm, s.plan.policy, s.plan.local_steps) for s in scenarios},
    ):
        assert len(drawn) == 2 * (4 + 4 + 3 + 1)  # the policies of each algorithm
    static = [s for s in scenarios if s.algorithm == "cb_static"]
    assert {s.plan.backup_workers for s in static} >= {0, 1, 2}
    assert len({(s.law, bool(s.network)) for s in scenarios}) == 9 * 2


@pytest.mark.parametrize("seed", [3, 41])
def test_a_seed_gives_the_same_trace_and_parameters_in_another_process(seed):
    here = run(draw(seed)).sha256()
    assert run(draw(seed)).sha256() == here
    there = subprocess.run(
        [sys.executable, "-m", "tests.simulation", f"--seed={seed}"],
        env=os.environ | {"PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert there.stdout.splitlines()[-1] == f"fine: trace_sha256 {here}"


def test_other_draws_of_the_same_scenario_give_another_trace():
    scenario = draw(41)
    assert run(replace(scenario, seed=42)).sha256() != run(scenario).sha256()
