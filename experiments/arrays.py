"""An array of runs: every flag file with every seed, a task each.

    --flagfile=lrm.flags --array=seeds:0-4              five tasks
    --flagfile='cells/mpi/*.flags' --array=seeds:0,3    two for each flag file that there is

A flag given beside them holds for all tasks.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cbdybw.errors import BadInput
from cbdybw.storage import atomic
from experiments.settings import Settings, from_flagfile

_ARRAY = re.compile(r"seeds:(\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*)")
_KIND = re.compile(r"^# kind: (?!train$)(.+)$", re.MULTILINE)
_OURS = ("run_dir", "resume")
_MOST = 10_000  # seeds at once; Slurm as it is installed takes arrays of 1,000


@dataclass(frozen=True)
class Task:
    """A run of an array.

    Attributes:
        number: from 0, in the order of flag files and then of seeds.
        settings: those of experiments.train, in full.
    """

    number: int
    settings: Settings

    @property
    def run_dir(self) -> Path:
        """The folder of its run."""
        return Path(self.settings.run_dir)

    @property
    def name(self) -> str:
        """FLAGFILE-SEED."""
        return self.run_dir.name

    @property
    def ranks(self) -> int:
        """Processes that it needs."""
        return self.settings.ranks if self.settings.cluster == "mpi" else 1


def found(patterns: Iterable[str]) -> list[Path]:
    """The flag files that paths, or patterns as a shell has them, stand for."""
    files: dict[Path, None] = {}
    for pattern in patterns:
        paths = [pattern] if Path(pattern).exists() else sorted(glob.glob(pattern))
        if not paths:
            raise BadInput(f"--flagfile={pattern}: no such file; name one with a flag on each line")
        files |= dict.fromkeys(map(Path, paths))
    return list(files)


def seeds(array: str) -> list[int]:
    """The seeds that --array stands for, ascending: seeds:0-4, seeds:0,3,7 or seeds:0-2,7."""
    if not (whole := _ARRAY.fullmatch(array)):
        raise BadInput(f"--array={array}: not understood; write seeds:0-4, or seeds:0,3,7")
    numbers: set[int] = set()
    for part in whole[1].split(","):
        first, _, last = part.partition("-")
        if int(last or first) < int(first):
            raise BadInput(f"--array={array}: {part} is empty; write the smaller seed first")
        if int(last or first) - int(first) >= _MOST:
            raise BadInput(f"--array={array}: {part} is too much; name fewer than {_MOST:,} seeds")
        numbers |= set(range(int(first), int(last or first) + 1))
    return sorted(numbers)


def tasks(files: Sequence[Path], array: str, given: Mapping[str, Any], out: Path) -> list[Task]:
    """The tasks, with run folders below `out`; `given` are flags that hold for all of them.

    Without `array` each flag file has its own seed. BadInput names the flag file that cannot be
    used.
    """
    for name in (*_OURS, *(["seed"] if array else [])):
        if name in given:
            raise BadInput(f"--{name}: is chosen for each task; use --array=seeds:… and --out=…")
    each, made = array and seeds(array), dict[Path, Task]()
    for path in files:
        with atomic.readable(path):
            text = path.read_text(encoding="utf-8")
        try:
            settings = _settings(text, {**given, "run_dir": out, "resume": False})
            for seed in each or [settings.seed]:
                run_dir = out / "runs" / f"{path.stem}-{seed}"
                if run_dir in made:
                    raise BadInput("two flag files have this name; rename one")
                here = replace(settings, seed=seed, run_dir=str(run_dir))
                made[run_dir] = Task(len(made), here)
        except BadInput as error:
            raise BadInput(f"{path}: {error}") from None
    return list(made.values())


def _settings(text: str, given: Mapping[str, Any]) -> Settings:
    """Those of a flag file, but as given; together, for some flags need others."""
    if kind := _KIND.search(text):
        raise BadInput(f"its kind is {kind[1]}; submit flag files of experiments.train")
    lines = [f"--{k}={str(v).lower() if isinstance(v, bool) else v}" for k, v in given.items()]
    return from_flagfile("\n".join([text, *lines]))
