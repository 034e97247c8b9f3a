"""The run folder before the first iteration: a new one, or one whose run goes on.

All of this is the root's. A folder is looked at before the data is prepared and written to after.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from cbdybw.clusters.guard import say
from cbdybw.errors import BadInput, Unwritable
from cbdybw.storage import ownership
from cbdybw.storage.run_directory import RunDirectory
from experiments import environment
from experiments.settings import Settings, from_flagfile

LIMITS = ("iterations", "max_time")
FREE_TO_CHANGE = ("resume", "run_dir", "target_loss", *LIMITS)
"""Settings that a resumed run may have otherwise than the run it continues."""


class Opened(NamedTuple):
    """A run folder that is ours: its owner's number, and what its last checkpoint says of itself if
    the run goes on from there."""

    number: int
    cut: dict[str, Any] | None


def check(settings: Settings) -> None:
    """Refuse a folder that can neither be made nor resumed."""
    if not settings.run_dir:
        return
    directory, given = RunDirectory(settings.run_dir), f"--run_dir={settings.run_dir}"
    try:
        if settings.resume:
            _check_resumable(settings, directory)
            return
        if directory.path.is_dir():
            ownership.check_is_free(directory.path, environment.job(), given)
        directory.check_is_new()
    except Unwritable:
        raise
    except OSError as error:
        raise BadInput(f"{given}: {error.strerror}; name another") from None


def _check_resumable(settings: Settings, directory: RunDirectory) -> None:
    given = f"--resume: --run_dir={directory.path}"
    before = _begun_with(directory)
    ownership.check_is_free(directory.path, environment.job(), given)
    directory.check_links(given)  # only now: under a run at work folders come and go
    if others := settings.differing(before, besides=FREE_TO_CHANGE):
        raise BadInput(
            f"{given} was begun with other flags than {' '.join(others)}; "
            f"use --flagfile={directory.path}/flags.txt --resume"
        )
    cut = directory.last_checkpoint()
    done = cut["k"] if cut else 0
    if done >= settings.iterations:
        raise BadInput(f"--iterations={settings.iterations}: {done} are done already; use more")
    ended = directory.manifest().get("status") in ("finished", "diverged")
    if ended and not (cut and _goes_further(settings, before)):
        raise BadInput(
            f"{given} has ended; "
            + ("give more --iterations" if cut else "it has no checkpoints; name a new folder")
        )


def _begun_with(directory: RunDirectory) -> Settings:
    return from_flagfile(directory.read_flags("--resume: --run_dir"))


def limits(settings: Settings) -> str:
    """When the run ends; a checkpoint says under which limits it was made."""
    return f"{settings.iterations} iterations, {settings.max_time} s"


def _goes_further(settings: Settings, before: Settings) -> bool:
    return any(getattr(settings, name) > getattr(before, name) for name in LIMITS)


def open_run(settings: Settings, data: dict[str, Any]) -> Opened | None:
    """Make the folder, or lead it back to its last checkpoint; None where there is to be none.

    A resumed run that has no checkpoint yet begins again.
    """
    if not settings.run_dir:
        return None
    directory, job = RunDirectory(settings.run_dir), environment.job()
    about = {"status": "running", "notice": data["notice"], "data_sha256": data["sha256"]}
    if not settings.resume:
        manifest = environment.manifest() | about
        return Opened(directory.create(settings.flagfile(), manifest, job), None)
    _check_data(directory, data)
    given = f"--resume: --run_dir={directory.path}"
    number = ownership.take(directory.path, job, given, say)
    cut = directory.last_checkpoint()
    done = cut["k"] if cut else 0
    directory.rewind(done, replace(settings, resume=False).flagfile())
    before, now = directory.manifest(), environment.manifest()
    earlier = [*before.get("earlier", ()), {name: before.get(name) for name in now}]
    directory.update_manifest(
        **now, status="running", resumed_from=done, failure=None, earlier=earlier
    )
    return Opened(number, cut)


def _check_data(directory: RunDirectory, data: dict[str, Any]) -> None:
    if directory.manifest().get("data_sha256") != data["sha256"]:
        raise BadInput(
            f"--resume: --run_dir={directory.path} was begun on other data than this; "
            "give the same --data_dir"
        )
