"""--replay: a recorded run again, and whether it came out the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from cbdybw.clusters.trace import load_run
from cbdybw.errors import BadInput
from cbdybw.recorder import Recorder
from cbdybw.storage.run_directory import RunDirectory
from experiments.results import sorted_edges
from experiments.settings import Settings, from_flagfile

OF_ITS_OWN = ("replay", "run_dir", "data_dir")
"""Flags of a replay; all others are those of the recorded run."""


def recorded_settings(settings: Settings) -> Settings:
    """The settings of the run that `settings.replay` names, for the virtual cluster."""
    given = f"--replay={settings.replay}"
    directory = RunDirectory(settings.replay)
    recorded = from_flagfile(directory.read_flags("--replay"))
    status = directory.manifest()["status"]
    if status not in ("finished", "diverged"):
        raise BadInput(f"{given}: that run is {status}; only one that has ended can be replayed")
    load_run(directory.path, given)  # refuses a folder without a trace before one is made for this
    asked = set(settings.differing(recorded, OF_ITS_OWN))
    if others := asked.intersection(settings.differing(Settings(), OF_ITS_OWN)):
        raise BadInput(f"{given} was recorded otherwise; leave out {' '.join(sorted(others))}")
    return replace(
        recorded,
        cluster="virtual",
        replay=settings.replay,
        run_dir=settings.run_dir,
        data_dir=settings.data_dir or recorded.data_dir,
    )


def is_identical(settings: Settings, result: dict[str, Any], recorder: Recorder) -> bool:
    """Whether a replay had the active edges of the recorded run, in every iteration, and its
    parameters, bit for bit."""
    directory = RunDirectory(settings.replay)
    recorded = directory.manifest()["result"]
    return (
        result["parameters_sha256"] == recorded["parameters_sha256"]
        and result["gradients_used"] == recorded["gradients_used"]
        and np.array_equal(sorted_edges(recorder), directory.read_result()["edges"])
    )
