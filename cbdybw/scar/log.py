"""Saved blocks on disk: a folder of packed files, of which the last that has a block is right.

    000000017.blocks   what one save chose: members, the iteration of each copy, values, checksums
    manifest.json      which model this is, and which files up to which number have to be there

Each save is one new file with the next number, written by `cbdybw.storage.atomic`: durable under a
temporary name, then renamed. It describes itself, so the manifest, which would cost a save as much
again, is rewritten only when files go: what it lists, and every number after its last, must be
there. One process writes to a folder, any number read, over NFS too.

**At every instant** a reader finds, for each block ever reported durable, a copy at least that new:
files only go after the manifest has let go of them, and all that goes with them is in later files.

**Space.** When the files hold more than MOST times the values that are saved, those without a
current copy go and those of which less than half is current are merged into one; at most twice the
values are left, and never are there more than MOST + 1 times.

**Damage.** A file that cannot be read, or should be there and is not, is reported in `damage` as
long as every wanted block has another copy, which then stands in; else it is BadInput. The same
goes for the manifest: the files are found without it. A folder of another model or of a later
format is always BadInput. Who writes on in a damaged folder leaves what is damaged where it is, and
merges nothing that may be older than that: before it comes to this, the save fails.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

import numpy as np

from cbdybw.errors import BadInput, CheckpointFailed
from cbdybw.scar import block_file
from cbdybw.scar.block_file import FORMAT, Damaged
from cbdybw.scar.blocks import Blocks
from cbdybw.scar.checkpoint import NOWHERE, complain_if_missing
from cbdybw.storage import atomic

MOST = 3
"""Times the saved values that files may hold before they are tidied up."""

_MANIFEST = "manifest.json"
_NAME = re.compile(r"(\d{9,})\.blocks")


class Log:
    """The log in `folder`, a `Store`: of its one writer, or read only as long as nobody writes.

    Args:
        folder: made by the first write, with the folders above it.
        blocks: of the whole model, whichever of them are kept here.
        about: what tells the model from others, such as its name and the seed of its run.

    BadInput: the folder holds blocks of another model, or was written by a later version.

    A thread of its own writes one save while the next one is being chosen; `write` waits while the
    one before is not durable, so at most one save is held in memory. What went wrong is raised by
    the next `write` or `flush`: end with `flush`.
    """

    def __init__(self, folder: str | os.PathLike, blocks: Blocks, about: str):
        self.folder = Path(folder)
        self.damage: tuple[str, ...] = ()
        self.blocks = blocks
        sizes = zlib.crc32(blocks.sizes)
        self._about = f"{about} ({len(blocks)} blocks, {blocks.dim} values, {sizes:08x})"
        self._executor = ThreadPoolExecutor(1, "checkpoint")
        self._pending: Future | None = None
        self._index: Index | None = None  # nobody has written yet
        self._expected(self._manifest(), self._listed())  # is it of this model?

    def write(
        self,
        k: int | np.ndarray,
        members: np.ndarray,
        packed: np.ndarray,
        then: Callable[[], None] | None = None,
    ) -> None:
        self.flush()
        saved_at = np.broadcast_to(np.asarray(k, np.int64), len(members))
        self._pending = self._executor.submit(self._save, members, saved_at, packed, then)

    def flush(self) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def read(self, members: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        packed, saved_at = self.copies(members)
        complain_if_missing(members, saved_at, str(self.folder), self.damage)
        return packed, saved_at

    def copies(self, members: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if self._pending is not None:
            wait([self._pending])  # whether it went well is for the next write or flush to say
        while True:
            manifest = self._manifest()
            packed, saved_at, damage = self._gather(members, manifest)
            # A file that vanishes under a reader has been let go of by a new manifest.
            if not damage or self._manifest() == manifest:
                self.damage = tuple(damage)
                return packed, saved_at

    # Reading.

    def _gather(
        self, members: np.ndarray, manifest: bytes
    ) -> tuple[np.ndarray, np.ndarray, list[str]]:
        """The newest copies that can be read, and a line for each file that cannot be."""
        wanted = self.blocks.subset(members)
        packed = np.zeros(wanted.dim, np.float32)
        saved_at = np.full(len(members), NOWHERE)
        place = np.full(len(self.blocks), -1)
        place[members] = np.arange(len(members))
        listed = self._listed()
        expected, damage = self._expected(manifest, listed)
        for number in sorted(expected | listed, reverse=True):
            if (saved_at != NOWHERE).all():
                break
            try:
                header = block_file.read_header(self._path(number), self._about)
                at = place[header.members]
                new = np.flatnonzero((at >= 0) & (saved_at[at] == NOWHERE))
                if len(new):
                    values = block_file.read_values(self._path(number), header, self.blocks)
                    here = self.blocks.subset(header.members)
                    wanted.put(packed, at[new], here.take(values, new))
                    saved_at[at[new]] = header.saved_at[new]
            except Damaged as error:
                if number in expected:
                    damage.append(str(error))
        return packed, saved_at, damage

    def _manifest(self) -> bytes:
        """What manifest.json holds, nothing if it is not there."""
        with atomic.readable(self.folder):
            try:
                return atomic.read_bytes(self.folder / _MANIFEST)
            except FileNotFoundError:
                return b""

    def _expected(self, manifest: bytes, listed: set[int]) -> tuple[set[int], list[str]]:
        """Numbers of the files that have to be there, and a line if the manifest is damaged."""
        if not manifest and not listed:
            return set(), []
        path = self.folder / _MANIFEST
        try:
            said = json.loads(manifest)
            block_file.refuse_others(path, said["format"], said["about"], self._about)
            live, last = {int(number) for number in said["live"]}, said["last"]
            return live | set(range(last + 1, max(listed, default=0) + 1)), []
        except BadInput:
            raise
        except (ValueError, KeyError, TypeError):
            return listed, [f"{path}: is damaged; whether files are missing cannot be said"]

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:09d}.blocks"

    def _listed(self) -> set[int]:
        """Numbers of the files that are there."""
        with atomic.readable(self.folder):
            try:
                names = os.listdir(self.folder)
            except FileNotFoundError:
                return set()
        return {int(match[1]) for name in names if (match := _NAME.fullmatch(name))}

    # The thread that writes.

    def _save(
        self,
        members: np.ndarray,
        saved_at: np.ndarray,
        packed: np.ndarray,
        then: Callable[[], None] | None,
    ) -> None:
        try:
            if self._index is None:
                self._index = self._begin()
            self._append(members, saved_at, packed)
            if then:
                then()
            if self._index.values > MOST * self._index.current:
                self._tidy()
        except OSError as error:
            raise CheckpointFailed(
                f"{self.folder}: the checkpoint cannot be written ({error.strerror or error}); "
                "make room there, or name another folder"
            ) from error

    def _begin(self) -> Index:
        """Make the folder, or take in what an earlier writer left."""
        if not self.folder.exists():
            with atomic.publishing_folder(self.folder) as folder:
                self._write_manifest(folder, [])
        for partial in self.folder.glob(".*.partial"):  # of a writer that was killed
            partial.unlink()
        index = Index(self.blocks)
        manifest, listed = self._manifest(), self._listed()
        expected, damage = self._expected(manifest, listed)
        for number in sorted(expected | listed):
            try:
                members = block_file.read_header(self._path(number), self._about).members
            except Damaged:
                members = np.empty(0, np.int64)  # it stays, for those who look for its blocks
            index.add(number, members)
        if damage or not manifest:
            self._write_manifest(self.folder, list(index.files))
        return index

    def _append(self, members: np.ndarray, saved_at: np.ndarray, packed: np.ndarray) -> None:
        number = self._index.last + 1
        block_file.write(self._path(number), self._about, members, saved_at, packed)
        self._index.add(number, members)

    def _tidy(self) -> None:
        """Merge the files of which less than half is current, and let go of them."""
        gone, merged = self._index.tidied()
        if len(merged):
            packed, saved_at, damage = self._gather(merged, self._manifest())
            if damage:
                raise CheckpointFailed(f"{damage[0]}; start the run anew in another folder")
            self._append(merged, saved_at, packed)
        self._index.remove(gone)
        self._write_manifest(self.folder, list(self._index.files))
        for number in gone:
            self._path(number).unlink(missing_ok=True)

    def _write_manifest(self, folder: Path, live: list[int]) -> None:
        manifest = {
            "format": FORMAT,
            "about": self._about,
            "live": live,
            "last": max(live, default=0),
        }
        atomic.write_json(folder / _MANIFEST, manifest)


class Index:
    """Where the current copy of each block is, in the eyes of the one who writes.

    Attributes:
        files: number → the blocks in that file, ascending; in the order of numbers.
        values: in all files.
        current: values of which there is a copy.
    """

    def __init__(self, blocks: Blocks):
        self._sizes = blocks.sizes
        self._where = np.zeros(len(blocks), np.int64)
        self.files: dict[int, np.ndarray] = {}
        self.values = self.current = 0

    @property
    def last(self) -> int:
        """The highest number, 0 without files."""
        return max(self.files, default=0)

    def add(self, number: int, members: np.ndarray) -> None:
        """A new file has the current copies of `members`."""
        self.files[number] = members
        self.values += int(self._sizes[members].sum())
        self.current += int(self._sizes[members[self._where[members] == 0]].sum())
        self._where[members] = number

    def remove(self, numbers: list[int]) -> None:
        """These files are no more."""
        for number in numbers:
            self.values -= int(self._sizes[self.files.pop(number)].sum())

    def tidied(self) -> tuple[list[int], np.ndarray]:
        """Which files to let go of, and which blocks to save anew before that.

        Of the files that stay at least half is current, so they hold at most twice the values.
        """
        gone, anew = [], [np.empty(0, np.int64)]
        for number, members in self.files.items():
            current = members[self._where[members] == number]
            if 2 * self._sizes[current].sum() < self._sizes[members].sum():
                gone.append(number)
                anew.append(current)
        return gone, np.sort(np.concatenate(anew))
