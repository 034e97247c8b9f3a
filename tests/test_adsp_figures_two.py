"""Figures of ADSP's race, of what grows, of variants and of a graph show what the rows say."""

import math

import numpy as np
import pytest

from experiments.adsp import (
    bandwidth,
    graph,
    race,
    search_figure,
    sweeps,
    target_table,
    targets,
    variants,
)
from experiments.adsp.published import SOONER_THAN_FIXED_ADACOMM
from experiments.adsp.split import commits, parameters
from experiments.drawing import modules
from experiments.reading import Probe, Result
from experiments.rows import Row
from experiments.settings import Settings
from tests.made_up import row
from tests.made_up_adsp import MACHINES, NEVER, run

METHODS = ("bsp", "ssp", "adsp", "fixed_adacomm")


def probe(rate, seconds, losses):
    return Probe(rate, 1, 0.0, 1, math.nan, tuple(seconds), tuple(losses))


def kept(probes: list[Probe]) -> list[list[float]]:
    """As a row keeps them."""
    pairs = [np.ravel(list(zip(p.seconds, p.losses, strict=True))).tolist() for p in probes]
    return [[*p[:4], None, *pair] for p, pair in zip(probes, pairs, strict=True)]


def texts(figure, panel=0) -> list[str]:
    return [text.get_text() for text in figure.axes[panel].texts]


def lines(figure, panel: int):
    """Label → the data of each labelled line of a panel."""
    axes = figure.axes[panel]
    drawn = [c.lines[0] for c in axes.containers if hasattr(c, "lines")] + list(axes.lines)
    names = [c.get_label() for c in axes.containers if hasattr(c, "lines")]
    names += [line.get_label() for line in axes.lines]
    return {
        name: line.get_xydata() for name, line in zip(names, drawn, strict=True) if name[0] != "_"
    }


def test_the_tenth_look_is_18_seconds_after_the_first_and_none_counts_in_a_search():
    r = Result(run("race", "adsp", 40.0))
    assert (targets.arrival(r, 1), targets.arrival(r)) == (40.0, 58.0)
    searching = Result(run("race", "adacomm", 40.0, search=100.0))
    assert (targets.arrival(searching, 1), targets.arrival(searching)) == (100.0, 118.0)
    late = Result(run("race", "adsp", 190.0))  # six looks are left
    assert targets.arrival(late, 1) == 190.0
    assert math.isnan(targets.arrival(late))
    assert targets.at_least([late]) == {0: 200.0}
    assert targets.said(targets.arrivals([late, r])) == "58 s"  # of one seed: the later row counts
    both = {0: 50.0, 1: math.nan}
    assert targets.said(both) == "reached by 1 of 2"
    assert targets.said({0: math.nan}) == "never"


def test_a_curve_is_the_mean_over_seeds_at_the_looks():
    rows = [run("race", "adsp", at, seed) for seed, at in enumerate((40.0, 60.0))]
    drawn = race.draw(rows)
    curve = lines(drawn["race-1-seconds"], 0)["ADSP"]
    loss = dict(map(tuple, curve))
    assert (loss[0], loss[38], loss[50], loss[60]) == (2, 2, 1.125, 0.25)
    steps = lines(drawn["race-2-steps"], 0)["ADSP"]
    assert steps[-1].tolist() == [18 * 200, 0.25]


def test_a_curve_ends_where_the_first_seed_ends():
    rows = [run("race", "bsp", 40.0, 0), run("race", "bsp", 40.0, 1, seconds=150.0)]
    rows[1]["cell"] = rows[0]["cell"]
    assert lines(race.draw(rows)["race-1-seconds"], 0)["BSP"][-1, 0] == 150.0


def test_bars_say_the_time_with_its_interval_or_that_there_is_none():
    rows = [run("race", "adsp", at, seed) for seed, at in enumerate((40.0, 44.0))]
    rows += [run("race", "bsp", at, seed) for seed, at in enumerate((90.0, NEVER))]
    rows += [run("race", "fixed_adacomm", NEVER, seed) for seed in (0, 1)]
    found = race.draw(rows)["race-3-target"]
    assert texts(found) == [
        "reached by 1 of 2", "reached by 1 of 2",
        "42 ± 25 s", "60 ± 25 s",
        "never in 200 s", "never in 200 s",
    ]  # fmt: skip
    assert [label.get_text() for label in found.axes[0].get_yticklabels()] == [
        "BSP", "ADSP", "Fixed ADACOMM",
    ]  # fmt: skip
    assert [patch.get_width() for patch in found.axes[0].patches] == [42.0, 60.0]


def test_a_search_is_a_part_of_its_bar_and_left_out_in_words():
    rows = [run("variants", "adsp_plus", 40.0, search=100.0)]
    figure = variants.draw(rows)["variants-1-target"]
    assert texts(figure) == [
        "100 s; 0 s without its search", "118 s; 18 s without its search",
    ]  # fmt: skip
    assert [patch.get_width() for patch in figure.axes[0].patches] == [100, 100, 118, 100]


def test_workloads_and_targets_have_panels_of_their_own():
    rows = [run("race", "adsp", 40.0), run("race", "bsp", 40.0)]
    rows += [run("race", "adsp", 40.0, target_loss=1.0, eta0=0.1)]
    rows += [run("race", "adsp", 40.0, eta0=0.5, workload="cnn", dataset="cifar10", pca=0)]
    drawn = race.draw(rows)
    titles = [axes.get_title(loc="left") for axes in drawn["race-1-seconds"].axes]
    assert "CNN, CIFAR10, iid, η' = 0.5, to 0.5" in titles
    assert "2NN, MNIST, iid, η' = 0.1, to 1" in titles
    assert len([t for t in titles if t]) == 3


def decided(*probes):
    return search_figure.decisions(list(probes))


def test_what_a_search_decided_is_named_with_its_rewards_and_failures():
    t = np.linspace(0, 60, 17)
    slow = probe(1, t, 1 / (0.002 * t + 0.3) + 0.5)
    fast = probe(2, t + 60, 1 / (0.02 * t + 0.45) + 0.5)
    flat = probe(3, t + 120, [1.0] * 17)
    found = decided(slow, fast, flat)
    assert found[0] == "search begins\na curve"
    assert found[1].startswith("better\nr ")
    assert found[2] == "ΔC=2 stays\nno fit: all losses are equal"
    # the first would have come at 66 s where the second, ten times as slow, comes at 120 s
    first = probe(1, t, 1 / (0.02 * t + 0.3) + 0.5)
    second = probe(2, t + 60, 1 / (0.002 * t + 1.5) + 0.5)
    assert decided(first, second)[1] == "ΔC=1 stays\nr 0.015 → 0.0083"
    assert decided(probe(1, t, [1.0] * 17), fast)[1].startswith("better\nr no reward → ")
    assert decided(slow, fast, flat, fast)[3] == "search begins\na curve"


def test_the_search_s_windows_are_drawn_with_the_spread_of_every_seed():
    t = np.linspace(0, 60, 17)
    rows = [run("race", "adsp", 40.0, seed) for seed in (0, 1)]
    losses = 1 / (0.002 * t + 0.3) + 0.5
    for r in rows:
        r["result"]["probes"] = kept([probe(1, t, losses), probe(2, t + 60, losses)])
    figure = race.draw(rows)["race-4-search-1"]
    first = figure.axes[0]
    assert first.get_title(loc="left") == "ΔC=1: search begins\na curve"
    seen, curve = (line.get_ydata() for line in first.lines)
    assert seen == pytest.approx(losses)
    assert (curve[0], curve[-1]) == pytest.approx((losses[0], losses[-1]))
    spread = figure.axes[-1]
    assert [line.get_ydata().tolist() for line in spread.lines[:2]] == [[0, 1, 1]] * 2


def test_nothing_is_drawn_of_a_search_that_is_not_there():
    assert not any("search" in name for name in race.draw([run("race", "bsp", 40.0)]))
    assert race.draw([row("race/x", algorithm="adsp", workers=18, delay=MACHINES.format(2))]) == {}


def test_saved_time_is_drawn_against_h_with_the_published_point():
    rows = [
        run("heterogeneity", algorithm, at, level=h)
        for algorithm, times in (("adsp", (42.0, 42.0)), ("fixed_adacomm", (82.0, NEVER)))
        for h, at in zip((1.45, 3.2), times, strict=True)
    ]
    figures = sweeps.draw(rows)
    assert figures.keys() == {"heterogeneity-1-target", "heterogeneity-2-machines"}
    figure = figures["heterogeneity-1-target"]
    assert lines(figure, 1)["ADSP"] == pytest.approx(np.array([[1.45, 60], [3.2, 60]]), abs=0.02)
    saved = lines(figure, 2)
    assert saved["Fixed ADACOMM"][0] == pytest.approx((1.45, 40.0), abs=0.02)
    assert math.isnan(saved["Fixed ADACOMM"][1, 1])
    assert saved["paper, Fixed ADACOMM, its CNN"].tolist() == [
        [3.2, 100 * SOONER_THAN_FIXED_ADACOMM]
    ]
    crosses = [line for line in figure.axes[1].lines if line.get_marker() == "x"]
    assert [line.get_xdata()[0] for line in crosses] == [3.2]


def test_delays_and_sizes_are_read_from_the_settings():
    assert sweeps.extra_seconds(Settings(network="latency=2.51,bandwidth=1e7")) == 5.0
    assert sweeps.level(Settings(delay=MACHINES.format(2.6))) == 2.6
    rows = [run("delay", "adsp", 32.0), run("delay", "adsp", 82.0, latency=5.01)]
    figure = sweeps.draw(rows)["delay-1-target"]
    assert lines(figure, 2)["ADSP"] == pytest.approx(np.array([[0, 1], [10, 2]]))


def test_bandwidth_is_what_pushes_and_pulls_come_to():
    r = Result(run("scale", "adsp", 40.0))
    assert parameters(r.settings) == 51 * 64 + 65 * 64 + 65 * 10 == 8074
    assert commits(r) == 20  # of each of 18 workers in 200 s
    assert bandwidth.megabits_per_second(r) == pytest.approx(18 * 20 * 2 * 8074 * 4 * 8 / 200 / 1e6)
    bsp = Result(run("scale", "bsp", 40.0))  # each of its 200 steps is one
    assert bandwidth.megabits_per_second(bsp) == pytest.approx(
        10 * bandwidth.megabits_per_second(r)
    )
    twice = MACHINES.format(3.2) + ",processes=2"
    rows = [run("scale", "adsp", 40.0), run("scale", "adsp", 40.0, workers=36, delay=twice)]
    figure = sweeps.draw(rows)["scale-2-bandwidth"]
    assert texts(figure) == ["18 workers: 0.93", "36 workers: 1.86"]


def test_a_graph_has_curves_beside_the_server_s():
    rows = [run("graph", a, 40.0, graph="ring") for a in ("cb_full", "cb_dybw")]
    rows += [run("graph", "cb_adsp", 60.0, graph="ring", commit_rate=10), run("graph", "adsp", 30)]
    drawn = graph.draw(rows)
    assert list(drawn) == ["graph-1-loss", "graph-2-target"]
    assert set(lines(drawn["graph-1-loss"], 1)) == {"cb-Full", "cb-DyBW", "cb-ADSP ΔC=10", "ADSP"}
    assert texts(drawn["graph-2-target"])[-2:] == ["60 s", "78 s"]


def test_the_table_has_a_line_for_each_cell():
    rows = [run("race", "adsp", at, seed) for seed, at in enumerate((40.0, 44.0))]
    rows += [run("race", "adacomm", 40.0, search=100.0), run("race", "bsp", NEVER)]
    heads, *found = target_table.table(rows)
    cells = [dict(zip(heads, line, strict=True)) for line in found]
    assert [c["method"] for c in cells] == ["BSP", "ADSP", "ADACOMM"]
    assert [c["tenth look, virtual s"] for c in cells] == ["never", "60 ± 25", "118"]
    assert [c["of that its search, s"] for c in cells] == ["–", "–", "100"]
    assert (cells[1]["not computing"], cells[1]["n"]) == ("50.0 ± 0.0 %", "2")
    assert cells[0]["steps per virtual s"] == "18.00"


@pytest.mark.parametrize("group", ["heterogeneity", "scale", "delay", "variants", "graph", "race"])
def test_what_a_group_has_not_is_not_drawn(group):
    module = modules("adsp")[group]
    nothing: list[Row] = [row(f"{group}/x", algorithm="adsp", delay=MACHINES.format(2))]
    assert module.draw(nothing) == {}
    lone = module.draw([run(group, "bsp", NEVER)])
    assert lone
    assert all(name.startswith(group) for name in lone)
