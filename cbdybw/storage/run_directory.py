"""The folder of one run.

    flags.txt         the flags in full: `python -m experiments.train --flagfile=…` runs them again
    manifest.json     who ran it, with what, and how it ended
    metrics.jsonl     a line for every evaluation
    result.npz        final estimates, active edges, visits of connecting edges
    trace/            spans and events of every process
    checkpoints/K/    a consistent cut before iteration K; whole when complete.json is there

The root process owns all of it but `trace/` and `checkpoints/`, where each process has files of
its own. An existing folder is resumed or refused, never overwritten.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from cbdybw.errors import BadInput
from cbdybw.storage import atomic

KEPT = 2
"""Checkpoints that are kept: the last one and the one before it."""


class RunDirectory:
    """The folder `path`; every method but `create` expects it to exist."""

    def __init__(self, path: str | os.PathLike):
        self.path = Path(path)
        self.trace = self.path / "trace"

    def create(self, flags: str, manifest: dict[str, Any]) -> None:
        """Make the folder; BadInput when something is there already."""
        try:
            self.path.mkdir(parents=True)
        except FileExistsError:
            raise BadInput(
                f"--run_dir={self.path}: exists already; add --resume or name a new folder"
            ) from None
        except OSError as error:
            raise BadInput(f"--run_dir={self.path}: {error.strerror}; name another") from None
        self.trace.mkdir()
        atomic.write_text(self.path / "flags.txt", flags)
        atomic.write_json(self.path / "manifest.json", manifest)

    def read_flags(self, flag: str) -> str:
        """flags.txt; BadInput names `flag`, which gave the folder."""
        try:
            return atomic.read_bytes(self.path / "flags.txt").decode()
        except FileNotFoundError:
            raise BadInput(f"{flag}={self.path}: holds no run; name the folder of one") from None

    def update_manifest(self, **fields: Any) -> dict[str, Any]:
        """Set fields of the manifest."""
        manifest = atomic.read_json(self.path / "manifest.json") | fields
        atomic.write_json(self.path / "manifest.json", manifest)
        return manifest

    def add_metrics(self, row: dict[str, Any]) -> None:
        """Append a line; it is in the file when this returns."""
        with open(self.path / "metrics.jsonl", "a") as file:
            file.write(json.dumps(row, allow_nan=False) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def metrics(self) -> list[dict[str, Any]]:
        """The lines so far; a line cut short by a kill is left out."""
        try:
            text = atomic.read_bytes(self.path / "metrics.jsonl").decode()
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in text.splitlines(True) if line.endswith("\n")]

    def keep_metrics(self, until: int) -> None:
        """Drop the lines after iteration `until`, which a resumed run writes again."""
        rows = [row for row in self.metrics() if row["iteration"] <= until]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        atomic.write_text(self.path / "metrics.jsonl", text)

    def write_result(self, arrays: dict[str, np.ndarray]) -> None:
        """Write result.npz."""
        with atomic.replacing(self.path / "result.npz") as file:
            np.savez(file, **arrays)

    def save_part(self, k: int, name: str, arrays: dict[str, np.ndarray]) -> None:
        """Write one file of the cut before iteration k."""
        folder = self._checkpoint(k)
        folder.mkdir(parents=True, exist_ok=True)
        with atomic.replacing(folder / f"{name}.npz") as file:
            np.savez(file, **arrays)

    def complete_checkpoint(self, k: int, about: dict[str, Any]) -> None:
        """Every file of the cut is there: it counts from now on. Older cuts are removed."""
        atomic.write_json(self._checkpoint(k) / "complete.json", {"k": k, **about})
        for old in self._complete()[:-KEPT]:
            (self._checkpoint(old) / "complete.json").unlink()
            shutil.rmtree(self._checkpoint(old))

    def last_checkpoint(self) -> dict[str, Any] | None:
        """What `complete_checkpoint` was told of the last cut, with its k."""
        complete = self._complete()
        if not complete:
            return None
        return atomic.read_json(self._checkpoint(complete[-1]) / "complete.json")

    def load_part(self, k: int, name: str) -> dict[str, np.ndarray]:
        """Read back what `save_part` wrote."""
        path = self._checkpoint(k) / f"{name}.npz"
        try:
            with np.load(path, allow_pickle=False) as file:
                return dict(file)
        except (OSError, ValueError) as error:
            raise BadInput(f"{path}: cannot be read ({error}); remove the folder") from error

    def _checkpoint(self, k: int) -> Path:
        return self.path / "checkpoints" / f"{k:09d}"

    def _complete(self) -> list[int]:
        paths = (self.path / "checkpoints").glob("*/complete.json")
        return sorted(int(path.parent.name) for path in paths)
