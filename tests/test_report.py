"""The demo's table and report, from small runs."""

import json
import re
import shutil
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from cbdybw.errors import BadInput
from cbdybw.storage import atomic
from experiments import batch, demo, figures, report, trace, train
from experiments.checks import acceptance
from experiments.comparison import Cell, Run, notes, table
from experiments.progress import Steps
from experiments.settings import Settings

BASE = Settings(
    workload="quadratic", delay="exponential:mean=0.1", iterations=60, eval_every=5, target_loss=0.3
)


@pytest.fixture(scope="module")
def cells(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    found = []
    for n, (title, algorithm) in enumerate(demo.CELLS.items()):
        runs = [Run(folder / f"{n}-{seed}") for seed in (0, 1)]
        for seed, run in enumerate(runs):
            settings = replace(BASE, **algorithm, seed=seed, run_dir=str(run.folder))
            train.run(settings, log=lambda line: None)
        found.append(Cell(title, *runs))
    return found


def test_the_table_holds_what_the_runs_say(cells):
    sections = {section.quantity: section.rows for section in table(cells)}
    iteration = [row.measured for row in sections["Mean iteration"]]
    assert iteration == [
        f"{cell.measured.result['mean_iteration_seconds']:.4f} s" for cell in cells
    ]
    assert [row.exact for row in sections["Mean iteration"]] == ["0.2450 s", "–", "0.0923 s"]
    assert sections["Iteration shorter by"][-1].exact == "62.3 %"
    full, dybw = (c.predicted.result["mean_iteration_seconds"] for c in (cells[0], cells[-1]))
    assert sections["Iteration shorter by"][-1].predicted == f"{100 * (1 - dybw / full):.1f} %"
    assert sections["Gradients used"][0].measured == "360"


def test_the_table_fits_into_eighty_columns(cells, capsys):
    demo.show(cells, acceptance(cells[0], cells[-1]), "PAGE", Console(width=80, highlight=False))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert not any("…" in line for line in lines)
    assert any("wall clock" in line for line in lines)


def test_the_setting_stands_beneath_the_table(cells):
    assert "Exp(mean 0.1 s) · policy carry · event clock · ring of 6" in notes(cells)[0]


def test_stand_in_data_are_named_in_the_table_and_in_every_plot(cells, tmp_path):
    run = Run(shutil.copytree(cells[-1].measured.folder, tmp_path / "run"))
    notice = "no source had MNIST: digits stand in for it"
    atomic.write_json(run.folder / "manifest.json", run.manifest | {"notice": notice})
    stood_in = [Cell(cell.title, Run(run.folder), Run(run.folder)) for cell in cells]
    assert notes(stood_in)[0] == f"NOTE: {notice}"
    page = report.write(stood_in, [], tmp_path).read_text()
    captions = re.findall("<figcaption>.*?</figcaption>", page)
    assert len(captions) == 7
    assert all("digits instead of MNIST" in caption for caption in captions)
    assert "digits instead of MNIST" in (tmp_path / "ranks.svg").read_text()


def test_the_report_is_one_file_that_loads_nothing(cells, tmp_path):
    checks = acceptance(cells[0], cells[-1])
    page = report.write(cells, checks, tmp_path).read_text()
    assert not re.search(r'(?:src|href)="?http|@import|url\((?!#)', page.replace("xlink:href", ""))
    for check in checks:
        assert check.says in page
    assert page.count("<svg") == 7
    ElementTree.parse(tmp_path / "ranks.svg")


def test_the_headline_says_what_is_left_of_the_gain_at_equal_loss(cells):
    full, dybw = (cell.measured.result["time_to_target"] for cell in (cells[0], cells[-1]))
    words = f"after {dybw:.1f} s instead of {full:.1f} s: <b>{100 * (1 - dybw / full):.0f} % sooner"
    assert words in report.headline(cells)


def test_the_picture_shows_the_iterations_whose_length_is_nearest_to_the_mean():
    ends = np.cumsum([9.0, 1.0, 5.0, 3.1, 3.0, 10.0])  # mean 5.18; two in a row: 6, 8.1, 6.1, 13
    assert figures.typical_window(ends, 2) == 2


def test_a_trace_is_exported_into_its_run_folder(cells):
    run = cells[-1].measured
    path = trace.export("chrome", str(run.folder), "")
    assert path == run.folder / "trace.json"
    computed = [e for e in json.loads(path.read_text())["traceEvents"] if e["name"] == "compute"]
    used = run.result["gradients_used"]
    assert used <= len(computed) <= used + run.settings.workers  # some are never sent


@pytest.mark.parametrize(
    ("kind", "out", "words"),
    [("svg", "", "--export=svg: not known; use chrome"), ("chrome", "no/such", "--out=no/such")],
)
def test_an_export_that_cannot_be_written_is_refused(cells, kind, out, words):
    with pytest.raises(BadInput, match=words):
        trace.export(kind, str(cells[0].measured.folder), out)


@pytest.mark.mpi
def test_a_step_that_fails_says_what_the_ranks_said(cells, tmp_path):
    settings = replace(cells[0].measured.settings, cluster="mpi")  # its folder is there already
    with (
        Steps(Console(quiet=True)) as steps,
        pytest.raises(demo.StepFailed, match="exists already; add --resume"),
        steps.step("ranks", 1.0) as step,
    ):
        demo.on_mpi([settings], tmp_path, step)


def test_a_folder_with_other_files_is_not_touched(tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(BadInput, match="holds other files"):
        demo.claim(tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "mine"


def test_a_former_demo_is_replaced(tmp_path):
    demo.claim(tmp_path / "demo")
    (tmp_path / "demo" / "old").write_text("")
    demo.claim(tmp_path / "demo")
    assert [path.name for path in (tmp_path / "demo").iterdir()] == [demo.MARK]


def test_a_batch_prints_a_line_for_each_run(cells, tmp_path, capsys):
    files = []
    for cell in cells[1:]:
        settings = replace(cell.measured.settings, run_dir="")
        files.append(tmp_path / f"{settings.algorithm}.flags")
        files[-1].write_text(settings.flagfile())
    assert batch.main(["batch", *map(str, files)]) == 0
    lines = capsys.readouterr().out.splitlines()
    traces = [cell.measured.result["trace_sha256"] for cell in cells[1:]]
    assert [json.loads(line)["trace_sha256"] for line in lines] == traces


@pytest.mark.mpi
def test_the_whole_demo_on_two_ranks(tmp_path):
    base = replace(BASE, workers=2, iterations=12, delay="exponential:mean=0.01")
    with Steps(Console(quiet=True)) as steps:
        cells, checks, page = demo.run(base, tmp_path / "demo", steps)
    assert [cell.measured.settings.cluster for cell in cells] == ["mpi"] * 3
    assert [cell.measured.result["iterations"] for cell in cells] == [12] * 3
    assert checks[-1].says == "12 of 12 epochs connect all 2 workers"
    assert page.read_text().startswith("<!doctype html>")
