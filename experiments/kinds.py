"""Kinds of runs: which flags a cell's lines are, and what does them.

A kind is a module with

    Settings                      its flags (see `experiments.flagged`); workload, dataset, raw_dir
                                  and seed are among them
    ALONE                         whether it is timed by the wall clock, with nothing beside it
    prepare_data(settings, log)   makes the data set where it is missing; BadInput if it cannot
    outcome(settings, log)        does the run: of training see `experiments.train`; any other gives
                                  what its row keeps, of which `result` has a `status`
"""

from __future__ import annotations

import importlib
from types import ModuleType

KINDS = {
    "train": "train",
    "trials": "scar.trials",
    "perturbed": "scar.perturbed",
    "overhead": "scar.overhead",
}
"""What a cell's head may say → module of `experiments`; a cell that says nothing trains."""


def module(kind: str) -> ModuleType:
    """The module of a kind; imported when it is needed."""
    return importlib.import_module(f"experiments.{KINDS[kind]}")
