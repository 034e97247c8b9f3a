"""--replay: a recorded run again, and whether it came out the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from cbdybw.clusters.trace import load_run
from cbdybw.errors import BadInput
from cbdybw.storage.run_directory import RunDirectory
from experiments.settings import Settings, from_flagfile

OF_ITS_OWN = ("replay", "run_dir", "data_dir")
"""Flags of a replay; all others are those of the recorded run."""

TOLERANCE = 1e-3
"""[choice] Of the parameters, where the order of summation was another."""


def recorded_settings(settings: Settings) -> Settings:
    """The settings of the run that `settings.replay` names, for the virtual cluster."""
    given = f"--replay={settings.replay}"
    directory = RunDirectory(settings.replay)
    recorded = from_flagfile(directory.read_flags("--replay"))
    manifest = directory.manifest()
    status = manifest["status"]
    if status not in ("finished", "diverged"):
        raise BadInput(f"{given}: that run is {status}; only one that has ended can be replayed")
    if lost := manifest["result"].get("lost"):
        raise BadInput(
            f"{given}: rank {lost[0]} was lost in that run, and with it its part of the trace; "
            "only a run that all ranks finished can be replayed"
        )
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


def comparison(
    settings: Settings, result: dict[str, Any], arrays: dict[str, np.ndarray]
) -> dict[str, Any]:
    """What the JSON object says of a replay whose other results are `result` and `arrays`.

    replay_identical: whether it had the active edges of the recorded run, in every iteration, and
        its parameters.
    replay_tolerance: ‖w - recorded w‖ / ‖recorded w‖ that still counts as the same; 0: bit for bit.
        Horovod sums in an order of its own, so only rounding need agree then.
    """
    directory = RunDirectory(settings.replay)
    recorded, there = directory.manifest()["result"], directory.read_result()
    rounded = recorded.get("allreduce", "").startswith("horovod")
    same_parameters = result["parameters_sha256"] == recorded["parameters_sha256"]
    if rounded:
        distances = np.linalg.norm(arrays["estimates"] - there["estimates"], axis=1)
        lengths = np.linalg.norm(there["estimates"], axis=1)
        same_parameters |= bool((distances <= TOLERANCE * lengths).all())
    return {
        "replay_identical": same_parameters
        and result["gradients_used"] == recorded["gradients_used"]
        and np.array_equal(arrays["edges"], there["edges"]),
        "replay_tolerance": TOLERANCE if rounded else 0.0,
    }
