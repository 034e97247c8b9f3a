"""What trials, perturbations and timings iterate: their common flags, and problems by seed."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from absl import app, flags

from cbdybw import specs
from cbdybw.clusters.guard import guard
from cbdybw.errors import BadInput
from cbdybw.learning import workloads
from cbdybw.problem import Iterated
from experiments import building
from experiments.flagged import Flagged, flag, parse_flags
from experiments.settings import Settings

Log = Callable[[str], None]
FROM_DATA = ("workload", "dataset", "data_dir", "raw_dir", "pca", "batch_size", "eta0")


@dataclass(frozen=True)
class Iterating(Flagged):
    """Flags that choose an iterative-convergent problem; the same as those of training."""

    workload: str = flag("qp", f"what is iterated:\n{specs.help_text(workloads.ITERATED)}")
    dataset: str = flag("mnist", "the data set that it learns from, if it does")
    data_dir: str = flag("", "prepared data; made when missing; empty: a folder under data/")
    raw_dir: str = flag("", "folder of original files, where data has yet to be prepared")
    pca: int = flag(0, "principal components; 0: the features as they are")
    batch_size: int = flag(1024, "samples in a minibatch")
    eta0: float = flag(0.2, "the learning rate")
    period: int = flag(8, "C: iterations in which as many values are saved as there are")
    seed: int = flag(0, "of what is random")

    def __post_init__(self) -> None:
        self.check_texts()
        if self.period < 1:
            raise BadInput(f"--period={self.period}: use 1 iteration or more")
        _ = self.training  # which checks the rest

    @property
    def training(self) -> Settings:
        """The settings of a training run that learns the same, on data that all seeds share."""
        given = {name: getattr(self, name) for name in FROM_DATA}
        return Settings(algorithm="scar", workers=1, **given)


class Source:
    """The problems of the seeds of a run, on one data set.

    Attributes:
        notice: what has to be said of the data; empty where nothing.
    """

    def __init__(self, settings: Iterating, log: Log):
        self._settings = settings.training
        self._data, about = building.load_data(self._settings, log)
        self.notice = about["notice"] or ""

    def __call__(self, seed: int) -> Iterated:
        s = self._settings
        return workloads.build(s.workload, self._data, s.batch_size, seed, s.eta0)


def prepare_data(settings: Iterating, log: Log) -> None:
    """Make the data set where it is missing."""
    building.load_data(settings.training, log)


def main(kind: type[Iterating], outcome: Callable[[Iterating, Log], dict[str, Any]]) -> None:
    """The binary of a kind: its flags in, one JSON line out."""

    def run(argv: list[str]) -> None:
        del argv
        with guard():
            kept = outcome(kind.from_flags(), lambda line: print(line, file=sys.stderr))
        print(json.dumps(kept, allow_nan=False), flush=True)

    def parse(argv: list[str]) -> list[str]:
        with guard():
            return parse_flags(argv)

    kind.define_flags()
    for field in dataclasses.fields(kind):  # --help lists those of the script
        flags.FLAGS.register_key_flag_for_module(sys.argv[0], flags.FLAGS[field.name])
    app.run(run, flags_parser=parse)
