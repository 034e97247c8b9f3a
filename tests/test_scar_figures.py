"""Figures, tables and the page of SCAR show what the rows say."""

import matplotlib.pyplot as plt
import numpy as np
import pytest

from experiments import cell_files, cells, drawing
from experiments.rows import collect
from experiments.scar import bound, cost_table, partial, policies, reading, recovery, timing
from experiments.scar import cells as table
from experiments.scar.cells import LEARNT, _seconds
from experiments.scar.trial import HALF, MODES, SCAR, SHARES, TRADITIONAL
from tests.made_up_scar import HEADLINE, points, timed, trials

MLR = {"workload": "mlr", "dataset": "mnist", "pca": 0}
LDA = {"workload": "lda:documents=600", "dataset": "newsgroups"}


def rows():
    return [
        trials(HEADLINE),
        trials(HEADLINE | {partial.mode(HALF): [9.0] * 4}, cell="recovery/mlr", **MLR),
    ]


def bars(axes):
    return [patch.get_width() for patch in axes.patches if patch.get_width()]


def texts(axes):
    return [text.get_text() for text in axes.texts]


def test_cells_are_named_by_what_is_learnt_from_what():
    lda, qp = reading.cells([trials(HEADLINE, cell="r/a", **LDA), trials(HEADLINE)], "trials")
    assert (lda.name, lda.cut) == ("LDA, 20 Newsgroups", "LDA, 20 Newsgroups (documents=600)")
    assert (qp.name, qp.cut) == ("QP, 64-D", "QP, 64-D")
    (cnn,) = reading.cells([trials(HEADLINE, **MLR | {"workload": "cnn:blocks=layer"})], "trials")
    assert cnn.name == "CNN, MNIST, by layer"


def test_rows_of_other_kinds_are_no_trials():
    mixed = [*rows(), points([("random", 1, 1)]), timed({"running": [0.1]})]
    assert len(reading.cells(mixed, "trials")) == 2
    assert len(reading.cells(mixed, "perturbed")) == len(reading.cells(mixed, "overhead")) == 1


def test_the_headline_figure_shows_what_is_saved_and_from_what():
    figure = recovery.draw(rows())["recovery-1-headline"]
    assert [t for t in texts(figure.axes[0]) if "%" in t] == ["88 %: 0.50 against 4.00"] * 2


def test_the_partial_figure_has_a_bar_for_each_share_and_cell():
    figure = recovery.draw(rows())["recovery-2-partial"]
    heights = [p.get_height() for p in figure.axes[0].patches]
    shown = [h for h in heights if h == pytest.approx(0) or h == pytest.approx(-125)]
    assert len(shown) == 2 * len(SHARES)  # all cost as much as TRADITIONAL but one, 9 for 4
    assert sorted(shown)[0] == pytest.approx(-125)


def test_the_norms_are_those_of_the_rows():
    (cell,) = reading.cells([trials(HEADLINE, changes={partial.mode(0.25): 0.6})], "trials")
    assert partial.norm_share(cell, 0.25).mean == pytest.approx(0.36)
    assert partial.norm_share(cell, 0.75).mean == pytest.approx(0.75)
    unmoved = trials(HEADLINE, changes={TRADITIONAL: 0.0})
    (cell,) = reading.cells([unmoved], "trials")
    assert partial.norm_share(cell, 0.5).n == 0


def test_policies_have_a_panel_a_cell():
    figure = recovery.draw(rows())["recovery-3-policies"]
    assert [axes.get_title(loc="left") for axes in figure.axes[:2]] == ["MLR, MNIST", "QP, 64-D"]
    lines = {line.get_label(): line for line in figure.axes[1].lines}
    assert lines["everything restored from full checkpoints"].get_ydata()[0] == 4.0


def test_the_table_has_a_line_for_each_scheme_with_ages_and_values():
    lines = cost_table.table([trials(HEADLINE, values={SCAR: 2.3}, reached={SCAR: False})])
    assert len(lines) == 1 + len(MODES)
    by_scheme = {tuple(line[1:5]): line for line in lines[1:]}
    mine = by_scheme["the lost", "priority", "0.125", "0.5"]
    assert [*mine[5:6], *mine[7:]] == ["0.50 ± 0.00", "3.50 ± 0.00", "–", "2.3", "4", "4"]
    assert mine[6].startswith("88 [")
    assert by_scheme["everything", "full", "1", "any"][6] == "–"
    assert by_scheme["the lost", "round", "0.125", "0.5"][8] == "3.50"


def test_costs_above_the_bound_are_ringed_and_counted():
    found = [("random", 5.0, 4.0), ("adversarial", 5.0, 5.9), ("reset", 5.0, 6.0)]
    figure = bound.draw([points(found)])["bound-1-costs"]
    assert figure.axes[0].get_title(loc="left") == "QP, 4-D: 1 of 3 above"
    rings = figure.axes[0].collections[-1]
    np.testing.assert_array_equal(rings.get_offsets(), [[5.0, 6.0]])


def test_tight_cases_have_a_figure_of_their_own():
    figures = bound.draw([points([("slowest", 1.7, 1), ("slowest", 1.7, 2)], tight=True)])
    assert list(figures) == ["bound-2-tight"]
    assert "bound 1.700" in texts(figures["bound-2-tight"].axes[0])


def test_overhead_is_the_median_over_rounds_of_their_own_shares():
    shares = {"running": [0.1, 0.2, 0.9], "tensorflow": [0.5] * 3, "numpy": [-0.01] * 3}
    (cell,) = reading.cells([timed(shares)], "overhead")
    assert cell.share("running").mean == pytest.approx(0.2)
    (figure,) = timing.draw([timed(shares)]).values()
    assert {"+20 %", "+50 %", "-1.0 %"} <= set(texts(figure.axes[0]))


def test_the_page_has_every_group_and_its_table(tmp_path):
    shares = {name: [0.1, 0.2] for name in timing.VARIANTS}
    found = [*rows(), points([("random", 1.0, 1.0)]), timed(shares)]
    collect(found, tmp_path)
    from experiments import rows as kept

    groups = kept.collected(tmp_path)
    drawing.figures("scar", groups, tmp_path)
    assert drawing.verdicts("scar", groups, tmp_path) == 16
    text = drawing.page("scar", tmp_path).read_text()
    for module in (recovery, bound, timing):
        assert module.TITLE in text
    assert text.count("<svg") == 6
    assert "age of copies" in text
    assert "python -m experiments.scar.KIND" in text
    plt.close("all")


# The table of cells


def test_the_flag_files_are_those_of_the_table():
    groups = {"recovery": table.recovery, "bound": table.bound, "overhead": table.overhead}
    made = [(group, row) for group, make in groups.items() for row in make()]
    wanted = cell_files.texts([*made, *table.smoke()], _seconds)
    folder = table.HERE / "cells"
    there = {str(p.relative_to(folder)): p.read_text() for p in folder.glob("*/*.flags")}
    assert {n: t for n, t in there.items() if n in wanted} == wanted


def test_the_short_scale_has_as_many_trials_as_it_should():
    n = {
        cell.path.stem: len(cell.seeds["short"]) * run.settings().trials
        for cell in cells.load("scar")
        if cell.group == "recovery" and "short" in cell.seeds
        for run in [cells.Run(cell, 0)]
    }
    again = [f"{name}-c16" for name in ("qp", "mlr", "mf")]
    assert n == {name: 10 if name.startswith("cnn") else 100 for name in [*LEARNT, *again]}


def test_schemes_and_policies_have_styles():
    assert set(policies.STYLES) == {m.policy for m in MODES} - {"full"}
