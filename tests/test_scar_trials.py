"""Trials of recovery, perturbations and timings: what is counted is what happens."""

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cbdybw.errors import BadInput
from cbdybw.learning.qp import QuadraticProgram
from cbdybw.problem import iterate
from cbdybw.scar.blocks import Blocks
from cbdybw.scar.checkpoint import POLICIES
from experiments import cells, kinds, rows, sweep
from experiments.cells import Run
from experiments.scar import overhead, perturbed, problems, staleness, trials
from experiments.scar.reading import Trials
from experiments.scar.space import place
from experiments.scar.trial import (
    FRACTIONS,
    MODES,
    SHARES,
    TRADITIONAL,
    Kept,
    Mode,
    Rules,
    clean_run,
    failure,
    finish,
    lost_blocks,
    trial,
)
from experiments.sweep import Place

RULES = Rules(target=1e-3, about=70, most=400, period=8)


def problem(seed, dim=64):
    return QuadraticProgram(dim, 0.1, seed)


def silent(line):
    """What a run says is of no interest."""


# One trial


def test_full_recovery_of_a_deterministic_problem_costs_what_it_goes_back_by():
    for seed in range(40):
        got = trial(problem(seed), seed, RULES, (TRADITIONAL,))
        cost = got.outcomes[TRADITIONAL].cost
        assert cost == got.failure % RULES.period, f"seed {seed}"


def test_a_clean_run_ends_at_the_first_iterate_that_is_at_the_target():
    states = clean_run(problem(3), 3, RULES)
    errors = [float(np.linalg.norm(x)) for x in states]
    assert min(errors[:-1]) > RULES.target >= errors[-1]
    np.testing.assert_array_equal(states[1], iterate(problem(3), states[0], 0))


def test_losing_all_blocks_is_full_recovery():
    for policy, r in (("priority", 0.125), ("random", 0.25), ("full", 1.0)):
        modes = [Mode(how, policy, r, 1.0) for how in ("partial", "full")]
        for seed in range(5):
            got = trial(problem(seed), seed, RULES, tuple(modes)).outcomes
            assert got[modes[0]] == got[modes[1]]


def test_every_policy_with_r_1_is_the_classical_scheme():
    modes = tuple(Mode("partial", policy, 1.0, 0.5) for policy in POLICIES)
    for seed in range(5):
        assert len(set(trial(problem(seed), seed, RULES, modes).outcomes.values())) == 1


def test_the_checkpoint_that_is_due_at_the_failure_has_been_made():
    p = problem(0)
    states = clean_run(p, 0, RULES)
    kept = Kept(p, states, 16, TRADITIONAL, RULES, 0)
    np.testing.assert_array_equal(kept.recovered(states[16], np.arange(3), "full"), states[16])
    before = Kept(p, states, 15, TRADITIONAL, RULES, 0)
    np.testing.assert_array_equal(before.recovered(states[15], np.arange(3), "full"), states[8])


def test_partial_recovery_touches_lost_blocks_only():
    p = problem(0)
    states = clean_run(p, 0, RULES)
    kept = Kept(p, states, 20, TRADITIONAL, RULES, 0)
    lost = np.array([1, 5, 63])
    got = kept.recovered(states[20], lost, "partial")
    np.testing.assert_array_equal(got[lost], states[16][lost])
    others = np.setdiff1d(np.arange(64), lost)
    np.testing.assert_array_equal(got[others], states[20][others])


def test_more_lost_blocks_hold_the_fewer():
    order = np.random.default_rng(0).permutation(101)
    quarter, half, most = (lost_blocks(order, p) for p in SHARES)
    assert [len(quarter), len(half), len(most)] == [25, 50, 76]
    assert set(quarter) < set(half) < set(most)


def test_failures_are_geometric_between_a_period_and_the_end():
    drawn = np.array([failure(seed, RULES, 80) for seed in range(4000)])
    t = np.arange(RULES.period, 80)
    law = (1 - 2 / RULES.about) ** t
    law /= law.sum()
    assert (drawn.min(), drawn.max()) == (8, 79)
    mean, deviation = (law * t).sum(), math.sqrt((law * t**2).sum() - (law * t).sum() ** 2)
    assert drawn.mean() == pytest.approx(mean, abs=3.5 * deviation / math.sqrt(len(drawn)))


def test_a_run_that_does_not_come_to_the_target_is_given_up_and_said_so():
    assert finish(problem(0), np.ones(64, np.float32), 10, RULES._replace(most=15)) == (15, False)


@pytest.mark.parametrize(
    ("rules", "why"),
    [
        (RULES._replace(most=20), "--target=0.001: the failure-free run of trial 0 is at "),
        (RULES._replace(target=9.0), "--target=9: trial 0 is there after 1 iterations"),
    ],
)
def test_a_target_that_no_failure_can_come_before_is_refused(rules, why):
    with pytest.raises(BadInput, match=why):
        trial(problem(0), 0, rules)


def test_the_square_of_the_perturbation_is_p_times_the_full_one_on_average():
    partial = [Mode("partial", "full", 1.0, p) for p in SHARES]
    found = [trial(problem(s), s, RULES, (TRADITIONAL, *partial)).outcomes for s in range(60)]
    for mode in partial:
        ratios = [
            (o[mode].change / o[TRADITIONAL].change) ** 2 for o in found if o[TRADITIONAL].change
        ]
        error = np.std(ratios) / math.sqrt(len(ratios))
        assert np.mean(ratios) == pytest.approx(mode.lost, abs=4 * error)


def test_copies_are_as_old_as_theory_says_and_as_many_values_are_saved():
    done = [trial(problem(s), s, RULES) for s in range(60)]
    row = _row(done)
    for mode in MODES:
        values = [t.outcomes[mode].values for t in done]
        assert values == [1.0] * len(done)
        if mode.policy == "priority":
            continue
        found = [t.outcomes[mode].age for t in done]
        exact = staleness.expected(Trials((row,)), mode)
        slack = 0.25 if mode.policy == "random" else 1e-9
        assert np.mean(found) == pytest.approx(exact, abs=slack), mode


def test_after_many_periods_ages_are_those_of_the_steady_state():
    def mean(policy, r):
        every = round(8 * r)
        return np.mean([staleness.age(policy, k, every, r) for k in range(4000, 4008)])

    for r in FRACTIONS:
        assert mean("round", r) == pytest.approx(3.5)
        assert mean("random", r) == pytest.approx(8 - 8 * r / 2 - 0.5)


def _row(done):
    return {
        "kind": "trials",
        "seed": 0,
        "flags": {"workload": "qp:dim=64", "target": 1e-3},
        "result": {"blocks": 64},
        "trials": {"failure": [t.failure for t in done]},
    }


class Topical:
    """As much of a topic model as a place needs."""

    topics, blocks = 3, Blocks([2, 4])


def test_states_of_a_topic_model_lie_where_their_counts_are():
    where = place(Topical())
    x, y = (np.array(z, np.float32) for z in ([0, 1, 2, 2, 0, 0], [1, 0, 2, 2, 0, 1]))
    np.testing.assert_array_equal(where.of(x), [1, 1, 0, 2, 0, 2])
    assert where.norm(x, y) == pytest.approx(math.sqrt(2))  # the first document's counts are equal


# Runs of each kind


def test_trials_have_seeds_of_their_own_whatever_runs_they_are_in():
    flags = {"workload": "qp:dim=64", "target": 1e-3, "about": 70}
    four = trials.outcome(trials.Settings(**flags, trials=4), silent)
    pairs = [trials.outcome(trials.Settings(**flags, trials=2, seed=s), silent) for s in (0, 1)]
    assert four["trials"]["seed"] == [0, 1, 2, 3]
    for name, column in four["trials"].items():
        assert column == [x for pair in pairs for x in pair["trials"][name]]
    for i, mode in enumerate(four["modes"]):
        assert mode["cost"] == [x for pair in pairs for x in pair["modes"][i]["cost"]]
    assert len(set(four["trials"]["clean"])) > 1
    assert [Mode(*(m[f] for f in Mode._fields)) for m in four["modes"]] == list(MODES)


def test_perturbations_are_as_large_as_they_say_and_bounded_where_nothing_is_faster():
    settings = perturbed.Settings(workload="qp", target=1e-3, trials=20)
    points = perturbed.outcome(settings, silent)["points"]
    assert points["kind"][:3] == ["random", "adversarial", "reset"]
    norms = np.array(points["norm"]).reshape(-1, 3)
    np.testing.assert_allclose(norms[:, 0], norms[:, 1], rtol=1e-4)
    for c, r0, at, norm, bound in zip(
        *(points[name] for name in ("c", "r0", "at", "norm", "bound")), strict=True
    ):
        expected = math.log1p(c**-at * norm / r0) / -math.log(c)
        assert (c, bound) == (pytest.approx(0.9), pytest.approx(expected, rel=1e-4))
    cautious = np.array(points["cost"]) >= np.array(points["cautious"]) + 1
    assert cautious.mean() < 0.05


def test_the_tight_cases_cost_the_bound_rounded_up_or_down():
    settings = perturbed.Settings(workload="qp", target=1e-3, trials=1, most=200, tight=True)
    points = perturbed.outcome(settings, silent)["points"]
    costs = {}
    for norm, cost, bound in zip(points["norm"], points["cost"], points["bound"], strict=True):
        costs.setdefault((norm, bound), []).append(cost)
    assert [set(found) for found in costs.values()] == [{1, 2}, {10, 11}]
    for (_, bound), found in costs.items():
        assert np.mean(found) == pytest.approx(bound, abs=0.01)
    assert [round(bound, 3) for _, bound in costs] == [1.683, 10.236]


def test_the_slowest_direction_is_asked_of_a_quadratic_program_only():
    with pytest.raises(BadInput, match="--tight: --workload=mlr has no eigenvectors; use qp"):
        perturbed.Settings(workload="mlr", tight=True)


def test_an_adversary_goes_straight_away_from_the_end():
    rng = np.random.default_rng(0)
    p, end = problem(0, 4), np.ones(4, np.float32)
    how = perturbed.Perturbation(p, place(p), np.zeros(4, np.float32), end, rng)
    x = np.array([2, 1, 1, 1], np.float32)
    moved = how.kinds["adversarial"](x)
    size = moved[0] - 2
    np.testing.assert_allclose(moved, [2 + size, 1, 1, 1])
    assert np.linalg.norm(how.kinds["random"](x) - x) == pytest.approx(size, rel=1e-5)
    reset = how.kinds["reset"](x)
    assert set(reset[reset != x]) <= {0.0}
    assert (reset != x).any()


def test_tokens_are_misplaced_where_their_document_has_none():
    topical, x = Topical(), np.array([0, 1, 2, 2, 0, 0], np.float32)
    how = perturbed.Perturbation(topical, place(topical), x, x, np.random.default_rng(0))
    how._share = 1.0
    np.testing.assert_array_equal(how.kinds["adversarial"](x), [2, 2, 1, 1, 1, 1])


def test_all_variants_are_timed_and_none_saves_more_than_asked(tmp_path):
    settings = overhead.Settings(workload="qp:dim=64", rounds=2, run_dir=str(tmp_path))
    kept = overhead.outcome(settings, silent)
    assert list(kept["seconds"]) == ["none", "running", "tensorflow", "numpy"]
    assert all(len(s) == 2 and min(s) > 0 for s in kept["seconds"].values())
    assert kept["result"]["bytes"] == 256
    assert list(tmp_path.iterdir()) == []  # its own folder is gone


def test_the_binary_prints_one_line_of_json():
    flags = ["--workload=qp:dim=64", "--target=0.001", "--trials=1", "--seed=5"]
    done = subprocess.run(
        [sys.executable, "-m", "experiments.scar.trials", *flags],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    assert json.loads(line)["trials"]["seed"] == [5]


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        ({"trials": 0}, "--trials=0: use 1 or more"),
        ({"period": 0}, "--period=0: use 1 iteration or more"),
        ({"about": 2}, "--about=2: use 3 iterations or more"),
        ({"workload": "2nn"}, "--workload=2nn"),
        ({"workload": "qp:alpha=1"}, None),
    ],
)
def test_settings_that_make_no_trials_are_refused(flags, why):
    if why is None:
        with pytest.raises(BadInput, match="alpha=1 does not converge"):
            trials.outcome(trials.Settings(**flags), silent)
    else:
        with pytest.raises(BadInput, match=why):
            trials.Settings(**flags)


# Cells of these kinds


HEAD = "# figure: try\n{kind}# scales: smoke seed 0\n# expected: nothing\n# run time: 1 s\n"


def cell(folder, name, kind, *flags):
    path = folder / "try" / f"{name}.flags"
    path.parent.mkdir(exist_ok=True)
    lines = "".join(f"--{flag}\n" for flag in flags)
    path.write_text(HEAD.format(kind=f"# kind: {kind}\n" if kind else "") + lines)
    return cells.read(path)


def test_a_cell_of_a_kind_leaves_its_row(tmp_path):
    made = cell(tmp_path, "a", "trials", "workload=qp:dim=64", "target=0.001", "trials=2")
    assert (made.kind, made.cluster) == ("trials", "virtual")
    run, place_ = Run(made, 3), Place(tmp_path / "out")
    ((_, row),) = sweep.each([run], place_, 1, lambda run: None)
    assert (row["kind"], row["status"], row["seed"]) == ("trials", "finished", 3)
    assert row["flags"] == {"workload": "qp:dim=64", "target": 0.001, "trials": 2}
    assert row["trials"]["seed"] == [6, 7]
    rows.collect([place_.store.read(run)], tmp_path)
    assert rows.collected(tmp_path)["try"][0]["modes"] == row["modes"]


def test_a_kind_is_part_of_the_key_and_training_has_none(tmp_path):
    flags = ("workload=qp", "target=0.001")
    keys = {Run(cell(tmp_path, "a", kind, *flags), 0).key for kind in ("trials", "perturbed")}
    assert len(keys) == 2
    plain = Run(cell(tmp_path, "b", "", "workload=timing"), 0)
    said = Run(cell(tmp_path, "c", "train", "workload=timing"), 0)
    assert plain.key == said.key
    assert "kind" not in rows.failed(plain, "why")


def test_what_is_timed_is_done_alone(tmp_path):
    assert cell(tmp_path, "a", "overhead", "workload=qp").cluster == "alone"
    assert {name for name in kinds.KINDS if kinds.module(name).ALONE} == {"overhead"}


def test_an_unknown_kind_is_refused_by_name(tmp_path):
    with pytest.raises(BadInput, match=r"try/a\.flags: kind magic is not known; use train or "):
        cell(tmp_path, "a", "magic")


def test_a_bad_flag_of_a_kind_fails_that_run_alone(tmp_path):
    bad = Run(cell(tmp_path, "bad", "trials", "workload=qp", "trials=0"), 0)
    good = Run(cell(tmp_path, "good", "trials", "workload=qp:dim=64", "target=0.001"), 0)
    place_ = Place(tmp_path / "out")
    assert sweep.prepare_data([bad, good], place_, silent) == [good]
    assert place_.store.read(bad)["reason"] == "--trials=0: use 1 or more"


def test_problems_of_a_source_differ_by_seed_on_the_same_data():
    source = problems.Source(trials.Settings(workload="qp:dim=8"), silent)
    first, again, other = source(1), source(1), source(2)
    np.testing.assert_array_equal(first.eigenvectors, again.eigenvectors)
    assert (first.eigenvectors != other.eigenvectors).any()
    assert source.notice == ""
