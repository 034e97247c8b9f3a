"""The folder of one run.

    flags.txt         the flags in full: `python -m experiments.train --flagfile=…` runs them again
    manifest.json     who ran it, with what, and how it ended
    metrics.jsonl     a line for every evaluation
    result.npz        final estimates, active edges, visits of connecting edges
    trace/            spans and events of every process
    checkpoints/K/    a consistent cut before iteration K; whole when complete.json is there
    owner.N.json      who is at work here; see `ownership`
    reserve           room that a run gives back when the disk is full, so that it can say so

The root process owns all of it but `trace/` and `checkpoints/`, where each process has files of
its own. An existing folder is resumed or refused, never overwritten. A kill at any moment leaves
either no folder or one that can be resumed.
"""

from __future__ import annotations

import io
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from cbdybw.errors import BadInput
from cbdybw.storage import atomic, ownership
from cbdybw.storage.ownership import Job

_COMPLETE = "complete.json"
KEPT = 2
"""Checkpoints that are kept: the last one and the one before it."""
_RESERVED = 64 * 2**10  # bytes: a manifest with its result has some 10,000


class RunDirectory:
    """The folder `path`; every method but `create` expects it to exist."""

    def __init__(self, path: str | os.PathLike):
        self.path = Path(path)
        self.trace = self.path / "trace"
        self._metrics = self.path / "metrics.jsonl"
        self._result = self.path / "result.npz"
        self._checkpoints = self.path / "checkpoints"
        self._reserve = self.path / "reserve"

    def check_is_new(self) -> None:
        """BadInput when something is there already."""
        if os.path.lexists(self.path):
            raise BadInput(
                f"--run_dir={self.path}: exists already; add --resume or name a new folder"
            )

    def create(self, flags: str, manifest: dict[str, Any], job: Job | None = None) -> int:
        """Make the folder, owned by this process in batch job `job`; its number for `Owner`.

        BadInput when something is there already, or comes in at this moment. `manifest` must be
        like no other's: by it a process knows its own folder.
        """
        self.check_is_new()
        try:
            with atomic.publishing_folder(self.path) as folder:
                (folder / "trace").mkdir()
                atomic.write_text(folder / "flags.txt", flags)
                atomic.write_json(folder / "manifest.json", manifest)
                _fill(folder / "reserve")
                number = ownership.new(folder, job)
        except OSError as error:
            raise BadInput(f"--run_dir={self.path}: {error.strerror}; name another") from None
        if self.manifest() != manifest:
            self.check_is_new()
        return number

    def check_links(self, given: str) -> None:
        """BadInput, which begins with `given`, where a link leads out of the folder."""
        root = self.path.resolve()
        for path in self.path.rglob("*"):
            if path.is_symlink() and not path.resolve().is_relative_to(root):
                raise BadInput(
                    f"{given}: {path.relative_to(self.path)} is a symbolic link to "
                    f"{path.resolve()}, out of the folder; remove it"
                )

    def read_flags(self, flag: str) -> str:
        """flags.txt; BadInput names `flag`, which gave the folder."""
        try:
            return atomic.read_bytes(self.path / "flags.txt").decode()
        except OSError as error:
            raise BadInput(
                f"{flag}={self.path}: holds no run ({error.strerror}); name the folder of one"
            ) from None
        except UnicodeDecodeError:
            raise BadInput(f"{flag}={self.path}: its flags.txt is damaged; run it again") from None

    def manifest(self) -> dict[str, Any]:
        """manifest.json."""
        return _read_object(self.path / "manifest.json")

    def update_manifest(self, **fields: Any) -> None:
        """Set fields of the manifest."""
        atomic.write_json(self.path / "manifest.json", self.manifest() | fields)

    def ended(self, **fields: Any) -> None:
        """The last update of the manifest, for which room is kept on a full disk."""
        self._reserve.unlink(missing_ok=True)
        self.update_manifest(**fields)

    def add_metrics(self, row: dict[str, Any]) -> None:
        """Append a line; it is in the file when this returns."""
        atomic.append_text(self._metrics, json.dumps(row, allow_nan=False) + "\n")

    def metrics(self) -> list[dict[str, Any]]:
        """The lines so far; a line cut short by a kill is left out."""
        with atomic.readable(self._metrics):
            try:
                text = atomic.read_bytes(self._metrics).decode()
            except FileNotFoundError:
                return []
            return [json.loads(line) for line in text.splitlines(True) if line.endswith("\n")]

    def rewind(self, done: int, flags: str) -> None:
        """Drop what a run left behind after its first `done` iterations, which it does again."""
        if not self._reserve.exists():
            _fill(self._reserve)
        for partial in list(self.path.rglob(".*.partial")):
            partial.unlink()
        for folder in self._checkpoints.glob("*"):
            if not (folder / _COMPLETE).exists():
                shutil.rmtree(folder)
        for segment in self.trace.glob("*.npy"):
            if int(segment.stem.rpartition("-")[2]) > done:
                segment.unlink()
        rows = [row for row in self.metrics() if row["iteration"] <= done] if done else []
        text = "".join(json.dumps(row) + "\n" for row in rows)
        atomic.write_text(self._metrics, text)
        atomic.write_text(self.path / "flags.txt", flags)

    def write_result(self, arrays: dict[str, np.ndarray]) -> None:
        """Write result.npz."""
        with atomic.replacing(self._result) as file:
            np.savez(file, **arrays)

    def read_result(self) -> dict[str, np.ndarray]:
        """What `write_result` wrote."""
        return _read_arrays(self._result)

    def save_part(self, k: int, name: str, arrays: dict[str, np.ndarray]) -> None:
        """Write one file of the cut before iteration k."""
        folder = self._checkpoint(k)
        with atomic.writing(folder, self._checkpoints):  # a run folder that is gone stays gone
            self._checkpoints.mkdir(exist_ok=True)
            folder.mkdir(exist_ok=True)
        with atomic.replacing(folder / f"{name}.npz") as file:
            np.savez(file, **arrays)

    def complete_checkpoint(self, k: int, about: dict[str, Any]) -> None:
        """Every file of the cut is there: it counts from now on. Older cuts are removed."""
        atomic.write_json(self._checkpoint(k) / _COMPLETE, {"k": k, **about})
        for old in self._complete()[:-KEPT]:
            (self._checkpoint(old) / _COMPLETE).unlink()
            shutil.rmtree(self._checkpoint(old))

    def last_checkpoint(self) -> dict[str, Any] | None:
        """What `complete_checkpoint` was told of the last cut, with its k."""
        complete = self._complete()
        return _read_object(self._checkpoint(complete[-1]) / _COMPLETE) if complete else None

    def load_part(self, k: int, name: str) -> dict[str, np.ndarray]:
        """Read back what `save_part` wrote."""
        return _read_arrays(self._checkpoint(k) / f"{name}.npz")

    def _checkpoint(self, k: int) -> Path:
        return self._checkpoints / f"{k:09d}"

    def _complete(self) -> list[int]:
        return sorted(int(path.parent.name) for path in self._checkpoints.glob(f"*/{_COMPLETE}"))


def _fill(path: Path) -> None:
    atomic.write_bytes(path, os.urandom(_RESERVED))  # some file systems have no room for zeros


def _read_object(path: Path) -> dict[str, Any]:
    with atomic.readable(path):
        found = atomic.read_json(path)
        if not isinstance(found, dict):
            raise ValueError("no JSON object")
        return found


def _read_arrays(path: Path) -> dict[str, np.ndarray]:
    with (
        atomic.readable(path),
        np.load(io.BytesIO(atomic.read_bytes(path)), allow_pickle=False) as file,
    ):
        return dict(file)
