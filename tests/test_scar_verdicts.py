"""Verdicts on SCAR's claims are what the numbers say: other numbers, other verdicts."""

import numpy as np
import pytest

from experiments import statistics
from experiments.scar import claims_bound, claims_overhead, claims_recovery, partial, policies
from experiments.scar.trial import FRACTIONS, HALF, SCAR, SHARES, TRADITIONAL
from experiments.scar.verdicts import judge
from tests.made_up_scar import HEADLINE, points, timed, trials

FOUR = [4.0, 2.0, 6.0, 4.0]


def recovery(*rows):
    return {"recovery": list(rows)}


def test_nothing_is_claimed_without_rows():
    judged = judge({})
    assert len(judged) == 16
    assert {v["verdict"] for v in judged} == {"cannot be tested"}
    assert all("no rows of" in v["why"] for v in judged)


@pytest.mark.parametrize(
    ("costs", "verdict"),
    [([0.5] * 4, "reproduced"), ([2.0, 1.0, 3.0, 2.0], "not reproduced")],
)
def test_the_headline_is_the_share_of_the_mean_cost_that_is_saved(costs, verdict):
    v = claims_recovery.headline(recovery(trials({TRADITIONAL: FOUR, SCAR: costs})))
    assert v["verdict"] == verdict
    saved = 100 * (1 - np.mean(costs) / np.mean(FOUR))
    assert f"QP, 64-D: {saved:.0f} [" in v["ours"]
    assert "QP, 64-D, to 0.001, 4 trials · C = 8" in v["setting"]


def test_rows_of_one_cell_are_one_setting():
    rows = [trials(HEADLINE, seed=s) for s in range(3)]
    v = claims_recovery.headline(recovery(*rows))
    assert "(n=12)" in v["ours"]
    assert "12 trials" in v["setting"]


def test_partial_recovery_is_held_against_the_range_of_its_share():
    costs = {TRADITIONAL: FOUR} | {
        partial.mode(p): [s * x for x in FOUR]
        for p, s in zip(SHARES, (0.3, 0.5, 0.95), strict=True)
    }
    v = claims_recovery.partial_alone(recovery(trials(costs)))
    assert v["verdict"] == "reproduced under QP, 64-D · ¼ and QP, 64-D · ½"
    assert "does not for QP, 64-D · ¾" in v["why"]


def test_priority_is_best_if_none_of_the_others_costs_less():
    mine = {policies.mode("priority", r): [1.0, 1.0, 2.0, 1.0] for r in FRACTIONS}
    v = claims_recovery.priority_is_best(recovery(trials({TRADITIONAL: FOUR} | mine)))
    assert v["verdict"] == "reproduced"
    worse = mine | {policies.mode("round", 0.25): [0.0, 0.0, 1.0, 0.0]}
    v = claims_recovery.priority_is_best(recovery(trials({TRADITIONAL: FOUR} | worse)))
    assert "does not for QP, 64-D · r=0.25 round" in v["why"]


def test_others_are_compared_with_partial_recovery_from_full_checkpoints():
    costs = {TRADITIONAL: FOUR, partial.mode(HALF): [2.0] * 4}
    v = claims_recovery.others_are_no_better(recovery(trials(costs)))  # all others cost FOUR
    assert "QP, 64-D · round r=0.125: 2.00 ± 2.60" in v["ours"]
    costs[partial.mode(HALF)] = [20.0] * 4
    v = claims_recovery.others_are_no_better(recovery(trials(costs)))
    assert v["verdict"] == "not reproduced"


def test_the_norm_is_held_against_the_blocks_that_were_lost():
    v = claims_recovery.norm(recovery(trials({TRADITIONAL: FOUR})))
    assert v["verdict"] == "reproduced"
    off = {TRADITIONAL: 1.0, partial.mode(HALF): 0.5}  # a quarter of the square for half
    v = claims_recovery.norm(recovery(trials({TRADITIONAL: FOUR}, changes=off)))
    assert "does not for QP, 64-D · ½" in v["why"]
    five = trials({TRADITIONAL: FOUR}, blocks=5, changes={partial.mode(HALF): 0.4**0.5})
    assert "does not for QP, 5-D · ½" not in claims_recovery.norm(recovery(five))["why"]


def test_more_bytes_than_all_in_a_period_are_noticed():
    v = claims_recovery.bytes_are_equal(recovery(trials({TRADITIONAL: FOUR})))
    assert v["verdict"] == "reproduced"
    v = claims_recovery.bytes_are_equal(recovery(trials({TRADITIONAL: FOUR}, values={SCAR: 2.3})))
    assert "does not for QP, 64-D · priority r=0.125" in v["why"]


def test_ages_are_held_against_what_is_expected_of_runs_of_this_length():
    old = {
        policies.mode("random", r): age for r, age in zip(FRACTIONS, (7.0, 6.5, 5.5), strict=True)
    }
    row = trials({TRADITIONAL: FOUR}, failures=[800] * 4, ages=old)
    assert claims_recovery.ages(recovery(row))["verdict"] == "reproduced"
    row = trials({TRADITIONAL: FOUR}, failures=[800] * 4)  # random as young as full
    assert "does not for QP, 64-D · random" in claims_recovery.ages(recovery(row))["why"]


def test_the_bound_holds_if_few_cost_a_whole_iteration_more():
    kept = [("random", 2.0, 2.9)] * 58 + [("random", 2.0, 3.0)]
    assert claims_bound.holds({"bound": [points(kept)]})["verdict"] == "reproduced"
    broken = [("random", 2.0, 3.0)] * 20 + [("random", 2.0, 1.0)] * 20
    v = claims_bound.holds({"bound": [points(broken, cautious=2.5)]})
    assert v["verdict"] == "not reproduced"
    assert "QP, 4-D · random: 50 [" in v["ours"]
    assert "Above the cautious bound: QP, 4-D 0; of QP, 4-D 40" in v["ours"]


def test_a_tight_case_may_be_beside_the_bound_by_rounding_only():
    def tight(costs):
        return {"bound": [points([("slowest", 1.7, c) for c in costs], tight=True)]}

    assert claims_bound.is_tight(tight([1, 2, 2, 2, 1, 2, 2, 2, 1, 2]))["verdict"] == "reproduced"
    assert claims_bound.is_tight(tight([2] * 10))["verdict"] == "not reproduced"
    assert claims_bound.is_tight(tight([1, 3] * 5 + [1] * 5))["verdict"] == "not reproduced"


LDA = {"workload": "lda", "dataset": "newsgroups"}
QUICK = {"running": [0.02, 0.03, 0.025, 0.02, 0.03, 0.025, 0.03, 0.02]}
WAYS = QUICK | {"tensorflow": [0.5] * 8, "numpy": [0.3] * 8}


def test_overhead_is_judged_by_lda_and_all_are_told():
    rows = {"overhead": [timed(WAYS, **LDA), timed(WAYS, cell="overhead/mlr")]}
    v = claims_overhead.small(rows)
    assert v["verdict"] == "reproduced"
    assert "MLR, digits: running 2.5 [" in v["ours"]
    slow = WAYS | {"running": [0.2] * 8}
    assert claims_overhead.small({"overhead": [timed(slow, **LDA)]})["verdict"] == "not reproduced"


def test_what_is_saved_has_to_outweigh_the_overhead_of_the_whole_run():
    cell = {"cell": "recovery/lda"} | LDA
    rows = {"recovery": [trials(HEADLINE, **cell)], "overhead": [timed(WAYS, **LDA)]}
    saved = statistics.mean(np.array(FOUR) - 0.5)
    v = claims_overhead.sooner(rows)
    assert f"LDA, 20 Newsgroups: {saved.mean:.2f} ± {saved.half:.2f}" in v["ours"]
    v = claims_overhead.pays(rows)
    assert f": {saved.mean - 70 * 0.025:.2f} ± " in v["ours"]
    slow = {"overhead": [timed(WAYS | {"running": [0.2] * 8}, **LDA)]}
    assert claims_overhead.pays(rows | slow)["verdict"] == "not reproduced"


# Statistics


def test_the_reduction_of_a_mean_counts_trials_that_cost_nothing():
    b = np.tile([0.0, 1.0, 2.0, 5.0], 25)
    got = statistics.mean_reduction(0.4 * b, b)
    assert (got.mean, got.low, got.high) == (pytest.approx(0.6),) * 3
    noisy = statistics.mean_reduction(0.4 * b + np.random.default_rng(0).normal(0, 0.5, 100), b)
    assert noisy.low < 0.6 < noisy.high
    assert noisy.high - noisy.low == pytest.approx(2 * 1.96 * 0.5 / 10 / b.mean(), rel=0.3)


def test_a_reduction_of_nothing_is_no_number():
    assert np.isnan(statistics.mean_reduction([1.0, 2.0], [0.0, 0.0]).mean)


def test_where_nothing_may_have_been_lost_the_reduction_is_open_below():
    got = statistics.mean_reduction([1.0, 1.0, 1.0, 1.0], [-3.0, 5.0, -2.0, 4.0])
    assert (got.mean, got.low) == (0.0, -np.inf)
    row = trials({TRADITIONAL: [-1.0, 0.0, -1.0, 0.0]})
    assert claims_recovery.headline(recovery(row))["verdict"] == "cannot be tested"


def test_intervals_of_shares_and_medians_cover_as_often_as_they_should():
    rng = np.random.default_rng(1)
    shares = [statistics.share(int(rng.binomial(60, 0.1)), 60) for _ in range(400)]
    medians = [statistics.median(rng.exponential(size=25)) for _ in range(400)]
    for found, truth in ((shares, 0.1), (medians, np.log(2))):
        covered = np.mean([i.low <= truth <= i.high for i in found])
        assert 0.92 < covered <= 1.0
    assert statistics.share(0, 40).high == pytest.approx(0.0876, abs=1e-3)
