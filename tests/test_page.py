"""What every paper's page has: a module for each group of cells, notices, paragraphs, one head."""

import importlib

import pytest

from experiments import cells, drawing, rows
from experiments.page import Page
from tests.made_up import row


@pytest.mark.parametrize("paper", cells.PAPERS)
def test_every_group_of_cells_has_a_module_that_draws_it(paper):
    groups = importlib.import_module(f"experiments.{paper}").FIGURES
    assert set(groups) >= {cell.group for cell in cells.load(paper)}
    for module in drawing.modules(paper).values():
        assert module.TITLE
        assert module.SAYS
        assert callable(module.draw)


def written(page: Page, out, *found) -> str:
    rows.collect(found, out)
    (out / "verdicts.json").write_text("[]")
    return page.write(out).read_text(encoding="utf-8")


def test_a_page_says_once_that_data_are_not_the_original(tmp_path):
    made = row("topology/a"), row("topology/b")
    for r in made:
        r["result"]["notice"] = "the series is generated & ours"
    text = written(Page("cb_dybw", "X", example="laws", says=("One.", "Two.")), tmp_path, *made)
    assert text.count('<p class="notice">the series is generated &amp; ours</p>') == 1
    assert text.index("<p>One.</p><p>Two.</p>") < text.index('class="notice"')


def test_groups_that_one_module_draws_have_one_head_with_the_figures_of_all(tmp_path):
    page = Page("adsp", "ADSP", "race", body=lambda group, found, _: f"[{group}: {len(found)}]")
    text = written(page, tmp_path, row("delay/a"), row("scale/a"), row("scale/b"), row("mpi/a"))
    sweeps = drawing.modules("adsp")["scale"]
    assert text.count(f"<h2>{sweeps.TITLE}</h2>") == 1
    assert "[scale: 2][delay: 1]" in text
    assert "[mpi: 1]" in text
