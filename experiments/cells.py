"""A cell of a paper's experiments is a flag file that says what it is for; its runs differ by seed.

    # figure: laws
    # kind: trials
    # scales: short seeds 0-2, paper seeds 0-4
    # expected: an iteration is 62.3 % shorter than cb-Full's
    # run time: 2 s
    --delay=exponential:mean=1
    …

It lies in experiments/PAPER/cells/GROUP/NAME.flags and names only the flags that differ from the
defaults. --seed is not among them. `python -m experiments.train --flagfile=… --seed=3` runs one
that has no kind; those of another have a binary of their own (see `experiments.kinds`).
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from cbdybw.errors import BadInput
from cbdybw.learning.workloads import needs_data
from cbdybw.storage import atomic
from experiments import kinds
from experiments.flagged import Flagged

PAPERS = sorted(folder.parent.name for folder in Path(__file__).parent.glob("*/cells"))
SCALES = ("smoke", "short", "paper", "rates")
"""A minute's try; what the repository reports; all of it; the search for learning rates."""

CLUSTERS = ("virtual", "mpi", "alone")
"""Where runs are done: in processes side by side, on MPI ranks, one at a time."""

NOT_IN_KEY = ("run_dir", "data_dir", "raw_dir", "resume")
"""Flags that say where files are, not what is run."""
WITHIN = ("digits", "generated")
"""Data sets that need no files."""

_SCALE = re.compile(r"(\w+) seeds? (\d+)(?:-(\d+))?")


@dataclass(frozen=True)
class Cell:
    """A flag file.

    Attributes:
        path: where it is: …/GROUP/NAME.flags.
        text: its content.
        kind: what its runs do, one of `experiments.kinds`.
        seeds: scale → the seeds of its runs there.
        seconds: how long a run takes, roughly, on one core.
    """

    path: Path
    text: str
    kind: str
    seeds: dict[str, tuple[int, ...]]
    seconds: float

    @property
    def name(self) -> str:
        """GROUP/NAME."""
        return f"{self.group}/{self.path.stem}"

    @property
    def group(self) -> str:
        """What its rows are collected under."""
        return self.path.parent.name

    @property
    def cluster(self) -> str:
        """One of CLUSTERS."""
        if self.kind != "train":
            return "alone" if kinds.module(self.kind).ALONE else "virtual"
        return "mpi" if "--cluster=mpi" in self.text.splitlines() else "virtual"


@dataclass(frozen=True)
class Run:
    """A cell with a seed. What its settings are is only found out when it is their turn: one that
    has flags which cannot be used keeps no other from running."""

    cell: Cell
    seed: int

    def __str__(self) -> str:
        return f"{self.cell.name}@{self.seed}"

    def settings(self, raw_dir: str = "") -> Flagged:
        """The settings, with the folder of the original files where they come from one."""
        flags = kinds.module(self.cell.kind).Settings.from_flagfile(self.cell.text)
        settings = replace(flags, seed=self.seed)
        if needs_data(settings.workload) and settings.dataset not in WITHIN:
            return replace(settings, raw_dir=raw_dir)
        return settings

    @cached_property
    def key(self) -> str:
        """Twelve hexadecimal digits that stand for all the flags."""
        try:
            lines = self.settings().flagfile().splitlines()
        except BadInput:
            lines = [*self.cell.text.splitlines(), f"--seed={self.seed}"]
        kept = [line for line in lines if _name(line) not in NOT_IN_KEY]
        if self.cell.kind != "train":
            kept.insert(0, self.cell.kind)
        return hashlib.sha256("\n".join(kept).encode()).hexdigest()[:12]


def load(paper: str) -> list[Cell]:
    """All cells of a paper, in the order of their names."""
    if paper not in PAPERS:
        raise BadInput(f"--paper={paper}: not known; use {' or '.join(PAPERS)}")
    return [read(path) for path in sorted(Path(__file__).parent.glob(f"{paper}/cells/*/*.flags"))]


def read(path: Path) -> Cell:
    """The cell in a flag file; BadInput when it cannot be read or lacks one of its first lines."""
    with atomic.readable(path):
        text = path.read_text(encoding="utf-8")
    head = dict(re.findall(r"^# ([\w ]+): (.+)$", text, re.MULTILINE))
    try:
        scales = map(_SCALE.fullmatch, head["scales"].split(", "))
        seeds = {m[1]: tuple(range(int(m[2]), int(m[3] or m[2]) + 1)) for m in scales}
        seconds = float(head["run time"].removesuffix(" s"))
    except (KeyError, TypeError, ValueError):
        raise BadInput(
            f"{path}: begins without lines such as '# scales: short seeds 0-4' and "
            "'# run time: 3 s'; make it again by the paper's cells.py"
        ) from None
    kind = head.get("kind", "train")
    if kind not in kinds.KINDS:
        raise BadInput(f"{path}: kind {kind} is not known; use {' or '.join(kinds.KINDS)}")
    return Cell(path, text, kind, seeds, seconds)


def runs_of(cells: list[Cell], scale: str) -> list[Run]:
    """All runs of a scale, the longest first: so jobs that share them end together."""
    if scale not in SCALES:
        raise BadInput(f"--scale={scale}: not known; use {' or '.join(SCALES)}")
    runs = [Run(cell, seed) for cell in cells for seed in cell.seeds.get(scale, ())]
    return sorted(runs, key=lambda run: -run.cell.seconds)


def _name(line: str) -> str:
    return line.removeprefix("--").partition("=")[0]
