"""The figures of cb-DyBW show what the rows say; exact numbers are held against real runs."""

import json
import math
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

from cbdybw.errors import BadInput
from experiments import drawing, page, rows, train
from experiments.cb_dybw import expected, law_table, laws, learning, prediction, speedup
from experiments.cb_dybw import topology as many
from experiments.cb_dybw.page import PAGE
from experiments.cells import Cell, Run
from experiments.reading import Result, read
from experiments.settings import Settings
from experiments.words import TITLES, law, setting
from tests.made_up import learnt, row, waited

EXP = "exponential:mean=0.1"
COMPARED = tuple(chain.from_iterable(learning.FAMILIES.values()))


def ran(name: str, settings: Settings):
    """The row of a real run."""
    cell = Cell(Path(f"{name}.flags"), settings.flagfile(), seeds={}, seconds=1.0, kind="train")
    outcome = train.outcome(settings, log=lambda line: None)
    return json.loads(json.dumps(rows.ended(Run(cell, settings.seed), outcome)))


def workload(seeds=(0, 1, 2), algorithms=COMPARED, **flags):
    """Rows of one workload in which every algorithm learns a little slower than the one before."""
    found = []
    for at, algorithm in enumerate(algorithms):
        for seed in seeds:
            r = row(f"learning/{algorithm}", seed, algorithm=algorithm, delay=EXP, **flags)
            learnt(r, 20.0 + at + seed, seconds=0.1 + 0.01 * at)
            found.append(waited(r, [0.1, 0.3] * 100, [0.5, 1.5] * 100))
    return found


def lines(figure, panel: int):
    """Label → the data of each labelled line of a panel."""
    axes = figure.axes[panel]
    return {h.get_label(): h.get_xydata() for h in axes.lines if h.get_label()[0] != "_"}


def test_a_line_is_the_mean_over_seeds_and_its_shade_the_interval():
    drawn = learning.draw(workload(algorithms=("cb_full", "cb_dybw")))
    figure = drawn["learning-n6-mnist-lrm-iid-1-iteration"]
    losses = [2 * 0.5 ** (10 / halving) for halving in (21.0, 22.0, 23.0)]
    at_ten = lines(figure, 0)["cb-DyBW"][1]
    assert at_ten == pytest.approx((10.0, np.mean(losses)))
    shade = figure.axes[0].collections[1].get_paths()[0].vertices
    half = 4.302653 * np.std(losses, ddof=1) / math.sqrt(3)
    ends = sorted({y for x, y in shade.tolist() if x == 10.0})
    assert ends == pytest.approx([np.mean(losses) - half, np.mean(losses) + half])


def test_every_algorithm_has_its_family_and_the_pair_is_in_all_of_them():
    figure = learning.draw(workload())["learning-n6-mnist-lrm-iid-1-iteration"]
    shown = [set(lines(figure, panel)) for panel in range(3)]
    assert set.union(*shown) == {TITLES[algorithm] for algorithm in COMPARED}
    assert set.intersection(*shown) == {"cb-Full", "cb-DyBW"}
    assert [axes.get_title(loc="left") for axes in figure.axes[:3]] == [
        "Consensus",
        "Asynchronous",
        "Synchronous, servers",
    ]


def test_each_workload_has_figures_of_its_own():
    found = workload(algorithms=("cb_full", "cb_dybw"))
    found += workload(algorithms=("cb_full", "cb_dybw"), partition="shards:2", workers=10)
    names = list(learning.draw(found))
    kinds = ("1-iteration", "2-seconds", "3-durations", "4-backup-workers")
    assert names == [
        f"learning-{w}-{k}" for w in ("n6-mnist-lrm-iid", "n10-mnist-lrm-shards2") for k in kinds
    ]


def test_a_run_that_diverged_is_drawn_as_far_as_it_goes():
    found = workload(seeds=(0,), algorithms=("cb_full", "cb_dybw"))
    found[1]["status"] = "diverged"
    found[1]["curve"]["train_loss"][5:] = [1e30] * 3 + [None] * 13
    figure = learning.draw(found)["learning-n6-mnist-lrm-iid-1-iteration"]
    assert figure.axes[0].get_ylim()[1] < 3


@pytest.mark.parametrize(("group", "module"), drawing.modules("cb_dybw").items())
def test_what_rows_do_not_contain_is_not_drawn(group, module):
    assert module.draw([]) == {}
    failed = {"cell": f"{group}/x", "seed": 0, "flags": {}, "status": "failed", "reason": "no"}
    assert module.draw([failed]) == {}


def test_every_figure_names_law_policy_clock_and_seeds():
    found = workload(seeds=(0, 3), algorithms=("cb_full", "cb_dybw"))
    assert setting(read(found)) == (
        "LRM, MNIST, iid · batch 1024 · Exp(mean 0.1 s) · ring of 6 · policy carry · event clock · "
        "virtual cluster, instant network · seeds 0, 3"
    )
    for figure in learning.draw(found).values():
        note = figure.get_supxlabel().replace("\n", " ")
        for words in ("Exp(mean 0.1 s)", "policy carry", "event clock", "seeds 0, 3"):
            assert words in note


def test_every_law_has_words():
    assert law("pareto:scale=1,alpha=2") == "Pareto(α=2, from 1 s)"
    assert law("persistent:ranks=0,slowdown=6,jitter=0.05") == "rank 0 always 6× slower"
    assert law("random_straggler:slowdown=6") == "a random rank 6× slower"
    assert law("none") == "no delay"


# Exact numbers


def test_the_places_of_pareto_times_are_those_of_drawn_ones():
    exact = expected.pareto_places(6, scale=1.0, alpha=2.0)
    assert exact[-1] == pytest.approx(4.4329, abs=1e-4)
    assert np.mean(exact) == pytest.approx(2.0)  # E t = scale·alpha/(alpha-1)
    draws = np.sort(1 + np.random.default_rng(0).pareto(3.0, (200_000, 4)), axis=1)
    assert expected.pareto_places(4, 1.0, 3.0) == pytest.approx(draws.mean(axis=0), rel=0.01)


@pytest.mark.parametrize(
    ("flags", "seconds"),
    [
        ({"algorithm": "cb_full"}, 0.245),
        ({}, 0.0923),
        ({"straggler_policy": "drop"}, 0.0923),
        ({"clock": "paper"}, 0.0923),
        ({"straggler_policy": "late"}, None),
        ({"algorithm": "cb_full", "barrier": "neighbours"}, None),
        ({"graph": "complete"}, None),
        ({"delay": "shifted_exponential:base=0.5,mean=0.5"}, None),
        ({"delay": "persistent:ranks=0,slowdown=6", "straggler_policy": "drop"}, 2.0),
        ({"delay": "persistent:ranks=2,slowdown=6", "clock": "paper"}, 3.0),
    ],
)
def test_exact_iteration_times_are_given_where_they_hold(flags, seconds):
    settings = Settings(**({"delay": EXP, "graph": "path"} | flags))
    assert expected.iteration(settings) == (
        None if seconds is None else pytest.approx(seconds, abs=5e-5)
    )


def test_the_recursion_of_the_quadratic_problem_ends_in_its_closed_form():
    q = expected.Quadratic(eta=0.1, lam=1.0, sigma=1.0, dim=1, workers=6)
    assert q.stationary == pytest.approx(0.0087719, abs=1e-7)
    error = 4.0
    for _ in range(7):
        error = (1 - 0.1) ** 2 * error + 0.1**2 / 6
    assert q.error(np.array([7]), 4.0) == pytest.approx([error])


def test_a_real_run_settles_at_the_closed_form():
    settings = Settings(
        algorithm="cb_full", workload="quadratic:dim=40", workers=4, graph="ring", delay=EXP,
        eta0=0.1, eta_decay=1.0, iterations=2000, eval_every=10,
    )  # fmt: skip
    r = Result(ran("speedup/x", settings))
    assert speedup.is_stationary(r)
    closed = expected.quadratic(r).stationary
    assert closed == pytest.approx(0.1 * 40 / (4 * 1.9))
    assert speedup.stationary_error(r) == pytest.approx(closed, rel=0.05)
    apart = np.mean(r.curve["consensus_distance"][100:] ** 2)
    assert speedup.worker_error(r) == pytest.approx(closed + apart, rel=0.05)


def test_the_table_of_laws_agrees_with_theory_on_real_runs():
    timing = Settings(workload="timing", graph="path", delay="exponential:mean=1", iterations=8000)
    found = [
        ran("laws/full", replace(timing, algorithm="cb_full")),
        ran("laws/carry", timing),
        ran("laws/drop", replace(timing, straggler_policy="drop")),
    ]
    full, carry, drop = law_table.entries(found)
    assert full.exact == pytest.approx(2.45)
    for entry in (carry, drop):
        assert entry.exact_shorter == pytest.approx(0.6232, abs=1e-4)
        assert entry.shorter.mean == pytest.approx(entry.exact_shorter, abs=0.01)
        assert entry.used == pytest.approx(0.598, abs=0.01)
    assert law_table.table(found)[2][:3] == ["6", "Exp(mean 1 s)", "cb-DyBW"]


def test_cells_of_the_table_within_the_published_band_are_framed():
    found = []
    for way, seconds in (({"algorithm": "cb_full"}, 1.0), ({}, 0.33), ({"clock": "paper"}, 0.2)):
        found.append(row(f"laws/{way}", workload="timing", graph="path", delay=EXP, **way))
        found[-1]["result"]["mean_iteration_seconds"] = seconds
    axes = laws.draw(found)["laws-n6-1-iteration"].axes[0]
    assert [text.get_text().split("\n")[0] for text in axes.texts] == ["67.0 %", "80.0 %"]
    assert [patch.get_x() for patch in axes.patches] == [pytest.approx(-0.47)]


def test_losses_are_compared_when_the_first_run_ends():
    found = []
    for algorithm, seconds in (("cb_full", 1.0), ("cb_dybw", 0.25)):
        r = row(f"topology/{algorithm}", algorithm=algorithm, workers=16, delay=EXP)
        found.append(learnt(r, 50.0, seconds))
    shown = many.rows_of(read(found))
    runs, loss = shown["training loss\nat equal time"]
    assert [loss(r) for r in runs] == pytest.approx([2 * 0.5 ** (50 / 50), 2 * 0.5 ** (200 / 50)])


def test_the_error_of_a_prediction_stands_beside_its_point():
    found = []
    for cluster, seconds in (("mpi", 0.2), ("virtual", 0.19)):
        found.append(row(f"mpi/{cluster}", algorithm="bsp", cluster=cluster, delay=EXP))
        found[-1]["result"]["mean_iteration_seconds"] = seconds
    found.append(row("mpi/alone", algorithm="asp", cluster="mpi", delay=EXP))
    axes = prediction.draw(found)["prediction"].axes[0]
    assert [text.get_text() for text in axes.texts] == ["BSP -5.0 %"]
    assert "virtual" in axes.get_xlabel()
    assert "MPI" in axes.get_ylabel()


# Files


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """A folder as `experiments.reproduce` leaves it, with some of the groups."""
    out = tmp_path_factory.mktemp("results")
    timing = [row(f"laws/{a}", workload="timing", graph="path", delay=EXP, algorithm=a)
              for a in ("cb_full", "cb_dybw")]  # fmt: skip
    rates = [
        learnt(row(f"rates/mnist-lrm-cb_dybw-{eta:g}", 100, eta0=eta), halving)
        for eta, halving in ((0.3, 40.0), (1.0, 20.0), (3.0, 30.0))
    ]
    rows.collect([*workload(algorithms=("cb_full", "cb_dybw")), *timing, *rates], out)
    groups = rows.collected(out)
    drawing.figures("cb_dybw", groups, out)
    drawing.verdicts("cb_dybw", groups, out)
    return out


def test_the_page_holds_verdicts_figures_and_tables_and_loads_nothing(results):
    text = PAGE.write(results).read_text(encoding="utf-8")
    for verdict in json.loads((results / "verdicts.json").read_text()):
        assert page.escape(verdict["ours"]) in text
    drawn = list((results / "figures").glob("*.svg"))
    assert text.count("<svg") == len(drawn) == 7
    assert not re.search(r'(?:src|href)="?http|@import|url\((?!#)', text.replace("xlink:href", ""))
    assert '<td class="word">mnist-lrm</td><td >1</td>' in text
    assert text.index("Verdicts") < text.index("<svg")


def test_an_inlined_figure_is_still_svg(results):
    for path in (results / "figures").glob("*.svg"):
        element, inches = page.inline(path)
        ElementTree.fromstring(element)
        assert inches in (4.6, 6.0, 9.2)


def test_a_page_needs_verdicts(tmp_path):
    with pytest.raises(BadInput, match=r"holds no verdicts\.json; name the folder"):
        PAGE.write(tmp_path)


def test_a_figure_has_a_script_of_its_own(results):
    command = [sys.executable, "-m", "experiments.cb_dybw.laws"]
    done = subprocess.run([*command, str(results)], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert done.stdout.split() == [
        str(results / "figures" / f"laws-n6-{name}.svg") for name in ("1-iteration", "3-gradients")
    ]
    refused = subprocess.run([*command, str(results / "gone")], capture_output=True, text=True)
    assert refused.returncode == 2
    assert "laws.jsonl: not there; give the folder of a sweep's rows" in refused.stderr
