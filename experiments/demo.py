"""The paper's main claim, measured and predicted: `python -m experiments.demo` (`make demo`)

cb-DyBW against cb-Full on six workers whose gradients take Exp(mean 0.1 s): each on the virtual
cluster, then on six MPI ranks, one run after the other so that none disturbs another. Ends with a
table, three checks and runs/demo/report.html; about 150 s on two quiet cores. Expected: an
iteration of cb-DyBW is 62.3 % shorter than one of cb-Full with the global barrier (exact theory).
Exit codes: 0 all checks hold, 1 one does not or a step failed, 2 unusable input.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from absl import app
from rich import box
from rich.console import Console
from rich.table import Table

from cbdybw.clusters.guard import guard
from cbdybw.clusters.launch import mpirun
from cbdybw.errors import BadInput
from cbdybw.learning import workloads
from cbdybw.storage import atomic, datasets
from experiments import report, train
from experiments.checks import Check, acceptance
from experiments.comparison import COLUMNS, Cell, Run, notes, table
from experiments.progress import Step, Steps, stderr
from experiments.settings import Settings, parse_flags

FOLDER = Path("runs/demo")
MARK = "demo.json"  # by this file a former demo's folder is known

BASE = Settings(
    dataset="auto",
    data_dir="data/demo",
    delay="exponential:mean=0.1",
    eta0=1.0,
    eta_decay=0.99,
    iterations=200,
    target_loss=0.40,  # [choice] cb-Full reaches it after 60, cb-DyBW after 100 iterations
    eval_every=2,
)
CELLS = {
    "cb-Full, global": {"algorithm": "cb_full", "barrier": "global"},
    "cb-Full, neighbours": {"algorithm": "cb_full", "barrier": "neighbours"},
    "cb-DyBW": {"algorithm": "cb_dybw"},
}
"""What is compared, by title (which says whom cb-Full waits for); all else is the same for all."""

START = 20.0  # seconds in which six ranks start on two cores, and end
POLL = 0.1  # seconds


class StepFailed(RuntimeError):
    """A step ended badly; the message is all that it said."""


def measure(base: Settings, folder: Path, steps: Steps) -> list[Cell]:
    """Run every cell on both clusters, in subfolders of `folder`."""
    cells = []
    for number, (title, algorithm) in enumerate(CELLS.items(), 1):
        settings = replace(base, **algorithm)
        name = f"{number}-{settings.algorithm}"
        cells.append(Cell(title, Run(folder / f"{name}-mpi"), Run(folder / f"{name}-virtual")))
        with steps.step(f"{title}: virtual clock") as step:
            on_virtual(replace(settings, run_dir=str(cells[-1].predicted.folder)), step)
    measured = [
        replace(cell.predicted.settings, cluster="mpi", run_dir=str(cell.measured.folder))
        for cell in cells
    ]
    seconds = START + sum(cell.predicted.result["clock_seconds"] for cell in cells)
    with steps.step(f"All three, in turn: {base.workers} MPI ranks", seconds) as step:
        on_mpi(measured, folder, step)
        step.note(f"{sum(cell.measured.result['clock_seconds'] for cell in cells):.1f} wall s")
    return cells


def on_virtual(settings: Settings, step: Step) -> None:
    """Run in this process, where TensorFlow starts once for all."""
    result = train.run(settings, log=step.note)
    if result["status"] != "finished":
        raise StepFailed(f"{settings.run_dir}: {result['status']}")
    step.note(f"{result['clock_seconds']:.1f} virtual s")


def on_mpi(runs: list[Settings], folder: Path, step: Step) -> None:
    """Run one after the other under one mpirun, so that TensorFlow starts once; `step` follows."""
    files = [folder / f"{Path(settings.run_dir).name}.flags" for settings in runs]
    for file, settings in zip(files, runs, strict=True):
        atomic.write_text(file, settings.flagfile())
    command = [sys.executable, "-m", "experiments.batch", *map(str, files)]
    argv, environment = mpirun(runs[0].workers, command)
    start = time.perf_counter()
    with (
        tempfile.TemporaryFile("w+") as said,
        subprocess.Popen(argv, env=environment, stdout=said, stderr=subprocess.STDOUT) as process,
    ):
        try:
            while process.poll() is None:
                time.sleep(POLL)
                begun = sum(Path(settings.run_dir).exists() for settings in runs)
                step.note(f"{begun} of {len(runs)} begun")
                step.at(time.perf_counter() - start)
        finally:
            process.terminate()  # where we were interrupted; a finished one does not mind
        # With ULFM mpirun's exit code is 0 when all ranks were killed.
        if process.returncode or not all(map(_finished, runs)):
            said.seek(0)
            raise StepFailed(f"{said.read()}\nexit code {process.returncode}: {' '.join(argv)}")


def _finished(settings: Settings) -> bool:
    path = Path(settings.run_dir) / "manifest.json"
    return path.exists() and atomic.read_json(path)["status"] == "finished"


def prepare(base: Settings, steps: Steps) -> None:
    """The data set, where the workload learns from one."""
    if not workloads.needs_data(base.workload):
        return
    from data_prep.prepare import Preparation, summary
    from data_prep.prepare import prepare as prepare_data

    spec = Preparation(**{name: getattr(base, name) for name in Preparation.__annotations__})
    folder = Path(base.data_dir)
    if (folder / datasets.MANIFEST).exists() and datasets.read_manifest(folder)["notice"]:
        shutil.rmtree(folder)  # a stand-in: what was missing then may be there now
    with steps.step("Data") as step:
        manifest = prepare_data(spec, folder, log=step.note)
        step.note(summary(manifest, folder).partition(": ")[2].partition(",")[0])


def claim(folder: Path) -> None:
    """Make `folder` empty: it is new, or a former demo's."""
    if (folder / MARK).exists():
        shutil.rmtree(folder)
    elif folder.exists() and any(folder.iterdir()):
        raise BadInput(f"{folder}: holds other files than a demo's; move them elsewhere")
    folder.mkdir(parents=True, exist_ok=True)
    atomic.write_json(folder / MARK, {"made_by": "experiments.demo"})


def show(cells: list[Cell], checks: list[Check], page: Path, console: Console) -> None:
    """The table and what belongs under it; 80 columns are enough."""
    console.print(terminal_table(cells))
    console.print()
    for line in notes(cells):
        console.print(line, style="bold red" if line.startswith("NOTE") else "dim")
    console.print()
    for check in checks:
        console.print(f"[{'green' if check.passed else 'red'}]{check.mark}[/] {check.says}")
    console.print(f"\nReport: {page}")


def terminal_table(cells: list[Cell]) -> Table:
    """A section for each quantity; a column has one clock only."""
    heads = ["\n".join(column) for column in COLUMNS]
    view = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    view.add_column("\n\n", no_wrap=True, style="bold")
    view.add_column("", no_wrap=True)
    for head in heads:
        view.add_column(head, no_wrap=True, justify="right")
    for section in table(cells):
        for n, row in enumerate(section.rows):
            view.add_row("" if n else section.quantity, *row)
        view.add_section()
    return view


def run(base: Settings, folder: Path, steps: Steps) -> tuple[list[Cell], list[Check], Path]:
    """All steps: cells, checks and where the report is."""
    claim(folder)
    prepare(base, steps)
    cells = measure(base, folder, steps)
    checks = acceptance(full=cells[0], dybw=cells[-1])
    with steps.step("Report"):
        page = report.write(cells, checks, folder)
    return cells, checks, page


def main(argv: list[str]) -> int:
    """The binary."""
    del argv
    with guard():
        try:
            with Steps(stderr()) as steps:
                cells, checks, page = run(BASE, FOLDER, steps)
        except StepFailed as failure:
            print(failure, file=sys.stderr)
            return 1
        show(cells, checks, page, Console(highlight=False))
        return 0 if all(check.passed for check in checks) else 1


def _parse(argv: list[str]) -> list[str]:
    with guard():
        return parse_flags(argv)


if __name__ == "__main__":
    app.run(main, flags_parser=_parse)
