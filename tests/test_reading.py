"""Rows are read as they were written, and settings are named by what has a meaning for them."""

import math

import numpy as np

from cbdybw.algorithms import ALGORITHMS
from experiments.look import LINES
from experiments.reading import CheckPoint, Result
from experiments.settings import Settings
from experiments.words import TITLES, law, model, setting, title
from tests.made_up import row

MACHINES = "machines:path=some/where/eighteen.toml,heterogeneity=3.2"


def searched() -> Result:
    r = row("race/adsp", algorithm="adsp", workers=2)
    r["looks"] = {"seconds": [0, 5, 10], "steps": [0, 7, 15], "held_out_loss": [2.5, None, 1.5]}
    r["result"] |= {
        "steps": [10, 5],
        "commits": [4, 3],
        "computing_seconds": [9.5, 9.0],
        "waiting_seconds": [0.5, 1.0],
        "held_out_time_to_target": 10.0,
        "held_out_tenth_time": None,
        "check_points": [[5.0, 2.0, 1.0, 2.0], [10.0, 4.0, 3.0, 4.0]],
        "probes": [[1, 0, 0.0, 1, None, 0.0, 2.5, 5.0, 2.0], [2, 0, 0.0, 1, 0.1, 5.0, 2, 10, 1.5]],
        "search_seconds": 0.0,
    }
    return Result(r)


def test_what_a_run_that_commits_tells_is_read_as_numbers():
    r = searched()
    assert r.steps.sum() == 15
    assert r.commits.tolist() == [4, 3]
    assert (r.computing + r.waiting).tolist() == [10, 10]
    assert (r.held_out_time, r.search_seconds) == (10.0, 0.0)
    assert math.isnan(r.held_out_tenth)
    np.testing.assert_equal(r.looks["held_out_loss"], [2.5, math.nan, 1.5])
    assert r.check_points[1] == CheckPoint(seconds=10, target=4, least=3, most=4)
    first, second = r.probes
    assert (math.isnan(first.reward), second.reward, second.rate) == (True, 0.1, 2)
    assert (second.seconds, second.losses) == ((5, 10), (2, 1.5))


def test_a_run_that_tells_nothing_of_this_has_none_of_it():
    r = Result(row("laws/x"))
    assert [len(x) for x in (r.steps, r.commits, r.computing, r.check_points, r.probes)] == [0] * 5
    assert [len(column) for column in r.looks.values()] == [0, 0, 0]
    assert math.isnan(r.held_out_time)
    assert math.isnan(r.search_seconds)


def test_every_algorithm_has_a_title_and_a_line():
    assert set(TITLES) == set(LINES) == set(ALGORITHMS)


def test_an_algorithm_s_title_tells_what_sets_it_apart():
    assert title(Settings(algorithm="adsp")) == "ADSP"
    assert title(Settings(algorithm="adsp", commit_rate=5, commit_timer="restart")) == (
        "ADSP ΔC=5 restart timers"
    )
    assert title(Settings(algorithm="fixed_adacomm", batch_tune=True)) == (
        "Fixed ADACOMM tuned batches"
    )
    assert title(Settings(algorithm="adsp", server_momentum=0.3)) == "ADSP μ=0.3"
    assert title(Settings(algorithm="ps_backup", straggler_policy="drop")) == "PS, fixed b drop"


def test_machines_and_models_have_words():
    assert law(MACHINES) == "eighteen machines (H=3.2)"
    assert law("machines:path=three.toml") == "three machines"
    assert law(f"{MACHINES},processes=2") == "eighteen machines (H=3.2; 2 workers on each)"
    assert model(Settings(workload="cnn", dataset="cifar10")) == "CNN, CIFAR10, iid"
    assert model(Settings(workload="timing:parameters=9")) == "timing:parameters=9"


def test_where_nobody_has_neighbours_no_graph_is_named_and_where_some_commit_the_period_is():
    common = {"workers": 18, "delay": MACHINES, "workload": "timing"}
    adsp = Result(row("a", algorithm="adsp", time_factor=0.1, **common))
    bsp = Result(row("b", algorithm="bsp", **common))
    cb_adsp = Result(row("c", algorithm="cb_adsp", graph="grid", commit_rate=4, **common))
    assert setting([bsp]) == (
        "eighteen machines (H=3.2) · 18 workers · virtual cluster, instant network · seed 0"
    )
    assert "18 workers · Γ = 6 s · virtual" in setting([bsp, adsp])
    assert "grid of 18 · policy carry · event clock · Γ = 6 s, 60 s · virtual" in setting(
        [bsp, adsp, cb_adsp]
    )


def test_data_that_are_not_the_original_are_told_of_beside_every_number():
    made = row("race/x", algorithm="adsp")
    made["result"]["notice"] = "the series is generated"
    assert setting([Result(made), Result(row("race/y"))]).endswith("NOT the original data")
