"""Verdicts on ADSP's claims are what the numbers say: other numbers, other verdicts."""

import json

import numpy as np
import pytest

from cbdybw.commit_theory import heterogeneity
from experiments.adsp import claims_learning, claims_pace, claims_time, verdicts
from experiments.adsp.split import speeds
from experiments.settings import Settings
from tests.made_up_adsp import MACHINES, NEVER, run


def race(adsp, fixed, **others):
    """Rows of the race: algorithm → times to the target, by seed."""
    times = {"adsp": adsp, "fixed_adacomm": fixed} | others
    return {
        "race": [
            run("race", algorithm, at, seed)
            for algorithm, of_seeds in times.items()
            for seed, at in enumerate(of_seeds)
        ]
    }


def test_nothing_is_claimed_without_rows():
    judged = verdicts.judge({})
    assert len(judged) == 10
    for v in judged:
        assert list(v) == ["claim", "tag", "setting", "published", "ours", "verdict", "why"]
        assert v["verdict"] == "cannot be tested"
        assert "no rows of" in v["why"]


@pytest.mark.parametrize(
    ("fixed", "verdict"),
    [((100.0, 104.0), "reproduced"), ((50.0, 52.0), "not reproduced")],
)
def test_time_is_saved_at_the_first_and_at_the_tenth_look(fixed, verdict):
    v = claims_time.sooner_than_fixed_adacomm(race((38.0, 40.0), fixed))
    assert v["verdict"] == verdict
    if verdict == "reproduced":
        # the tenth look is 18 s after the first: 56/118 and 58/122
        first = [100 * (1 - a / b) for a, b in ((38, 100), (40, 104))]
        tenth = [100 * (1 - a / b) for a, b in ((56, 118), (58, 122))]
        assert f"first look: {np.mean(first):.1f} ±" in v["ours"]
        assert f"tenth look: {np.mean(tenth):.1f} ±" in v["ours"]


def test_a_method_that_never_arrives_has_no_time_to_save_from():
    v = claims_time.sooner_than_fixed_adacomm(race((38.0,), (NEVER,)))
    assert v["verdict"] == "not reproduced"
    assert "tenth look: not reached (n=1)" in v["ours"]


def test_who_never_arrives_is_behind_by_what_it_had_at_least():
    v = claims_time.fastest(race((82.0, 82.0), (NEVER, NEVER), asp=(62.0, 62.0)))
    assert v["verdict"].startswith("reproduced under")
    assert "Fixed ADACOMM: 0.5 [0.5, 0.5] (n=2)" in v["ours"]  # 100 of the 200 s of its run
    assert "ASP: 1.25 [1.25, 1.25] (n=2)" in v["ours"]
    assert "does not for" in v["why"]
    assert claims_time.fastest(race((NEVER,), (NEVER,)))["verdict"] == "not reproduced"


def levels(fixed):
    """H → Fixed ADACOMM's time; ADSP's tenth look is at 60 s."""
    rows = [run("heterogeneity", "adsp", 42.0, level=h) for h in fixed]
    rows += [run("heterogeneity", "fixed_adacomm", at, level=h) for h, at in fixed.items()]
    return {"heterogeneity": rows}


def test_the_gap_grows_if_more_is_saved_at_the_largest_level():
    v = claims_time.gap_grows(levels({1.45: 82.0, 2.0: 22.0, 3.2: 132.0}))  # 40 % and 60 %
    assert (v["verdict"], "H=1.45 to 3.2: 20.0 % (n=1)" in v["ours"]) == ("reproduced", True)
    assert "H=2: -50.0 %" in v["ours"]
    v = claims_time.gap_grows(levels({1.45: 132.0, 3.2: 82.0}))
    assert v["verdict"] == "not reproduced"
    v = claims_time.gap_grows(levels({1.45: 82.0, 3.2: NEVER}))  # 70 % at least
    assert "H=1.45 to 3.2: 30.0 % (n=1)" in v["ours"]
    v = claims_time.gap_grows(levels({1.45: NEVER, 3.2: 132.0}))
    assert v["verdict"] == "not reproduced"
    assert claims_time.gap_grows(levels({3.2: 82.0}))["verdict"] == "cannot be tested"


@pytest.mark.parametrize(("at", "verdict"), [(42.0, "reproduced"), (102.0, "not reproduced")])
def test_more_workers_must_not_be_slower_nor_behind(at, verdict):
    twice = MACHINES.format(3.2) + ",processes=2"
    rows = [run("scale", "adsp", 62.0), run("scale", "adsp", at, workers=36, delay=twice)]
    rows += [run("scale", "bsp", 30.0), run("scale", "bsp", 82.0, workers=36, delay=twice)]
    v = claims_time.scales({"scale": rows})
    assert v["verdict"] == verdict
    assert f"36/18 workers: {(at + 18) / 80:.3g} (n=1)" in v["ours"]
    assert f"36 workers · BSP: {(at + 18) / 100:.3g} (n=1)" in v["ours"]


def delayed(**times):
    """Algorithm → its times without and with 10 s more for a commit."""
    return {
        "delay": [
            run("delay", algorithm, at, latency=0.01 + extra / 2)
            for algorithm, pair in times.items()
            for extra, at in zip((0, 10), pair, strict=True)
        ]
    }


def test_delays_are_compared_by_what_they_multiply_times_with():
    v = claims_time.robust_to_delay(delayed(adsp=(32.0, 42.0), bsp=(82.0, 182.0)))
    assert v["verdict"] == "reproduced"
    assert "BSP: 0.6 (n=1)" in v["ours"]  # 60/50 over 200/100
    assert "10 s more for a commit / with 0 s: ADSP 1.2; BSP 2" in v["ours"]
    v = claims_time.robust_to_delay(delayed(adsp=(32.0, 182.0), bsp=(82.0, 102.0)))
    assert v["verdict"] == "not reproduced"
    never = delayed(adsp=(32.0, 42.0), bsp=(NEVER, NEVER))
    assert claims_time.robust_to_delay(never)["verdict"] == "cannot be tested"


@pytest.mark.parametrize(("share", "verdict"), [(0.05, "reproduced"), (0.3, "not reproduced")])
def test_waiting_is_what_is_not_computing(share, verdict):
    own, bsp = run("split", "adsp", 20.0, workers=3), run("split", "bsp", 20.0, workers=3)
    own["result"]["computing_seconds"] = [200 * (1 - share)] * 3
    own["result"]["waiting_seconds"] = [200 * share] * 3
    v = claims_pace.no_waiting({"split": [own, bsp]})
    assert v["verdict"] == verdict
    assert f"M=3 · 2NN, MNIST, iid: {100 * share:.1f} % (n=1)" in v["ours"]
    assert "BSP 50.0 % (published 95.3%)" in v["ours"]


@pytest.mark.parametrize(("off", "verdict"), [(-0.01, "reproduced"), (-0.05, "not reproduced")])
def test_steps_per_second_are_held_against_speeds_and_h(off, verdict):
    v = speeds(Settings(workers=18, delay=MACHINES.format(3.2)))
    assert heterogeneity(v) == pytest.approx(3.2)
    adsp, bsp = (run("heterogeneity", a, 20.0) for a in ("adsp", "bsp"))
    adsp["result"]["steps"] = (200 * v * (1 + off)).tolist()
    # a commit: there, and back to 18 workers, of 8,074 parameters
    overhead = 0.02 + 19 * 4 * 8074 / 1.25e7
    bsp["result"]["gradients_used"] = 200 * 18 / (1 / float(v.min()) + overhead)
    rows = {"heterogeneity": [adsp, bsp]}
    for claim in (claims_pace.all_speeds_add_up, claims_pace.faster_than_bsp_by_h):
        judged = claim(rows)
        assert judged["verdict"] == verdict
        assert f"{100 * off:.1f} % (n=1)" in judged["ours"]
    with_commits = 3.2 * (1 + off) * (1 + overhead * float(v.min()))
    assert f"with that time: {with_commits:.3f} where H = 3.200" in judged["ours"]


def test_commits_are_equal_if_they_are_in_every_seed():
    rows = [run("race", "adsp", 20.0, seed) for seed in (0, 1, 2)]
    restarting = run("variants", "adsp", 20.0, commit_timer="restart")
    restarting["result"]["check_points"][1] = [60.0, 9, 4, 9]
    found = {"race": rows, "variants": [restarting]}
    v = claims_learning.equal_commits(found)
    assert v["verdict"] == "reproduced"
    assert v["ours"].endswith("(H=3.2): 1 (n=3). With timers that restart: 5")
    rows[2]["result"]["check_points"][2] = [120.0, 6, 4, 6]
    assert claims_learning.equal_commits(found)["verdict"] == "not reproduced"


def test_a_single_seed_that_does_not_converge_speaks_against():
    rows = [run("race", "adsp", 20.0, seed) for seed in (0, 1)]
    v = claims_learning.converges({"race": rows})
    assert (v["verdict"], "-0.25 (n=2)" in v["ours"]) == ("reproduced", True)
    rows[1]["looks"]["held_out_loss"][-1] = 0.6  # it had been at the target
    assert claims_learning.converges({"race": rows})["verdict"] == "not reproduced"
    never = [*rows[:1], run("race", "adsp", NEVER, 1)]
    never[1]["cell"] = never[0]["cell"]
    assert claims_learning.converges({"race": never})["verdict"] == "not reproduced"


def test_verdicts_are_texts():
    judged = verdicts.judge(race((38.0,), (100.0,)) | levels({1.45: 82.0, 3.2: 132.0}))
    assert json.loads(json.dumps(judged)) == judged
    assert all(isinstance(text, str) and "|" not in text for v in judged for text in v.values())
