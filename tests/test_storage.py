"""Files over NFS: whole or not there at all; and what a prepared data set vouches for."""

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from cbdybw.errors import BadInput
from cbdybw.storage import atomic, datasets


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_what_is_written_is_read_back(tmp_path):
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    atomic.write_bytes(tmp_path / "b", b"\x00\xff")
    atomic.write_text(tmp_path / "t", "w̃\n")
    atomic.write_json(tmp_path / "j", {"θ": [1, None]})
    atomic.write_array(tmp_path / "a.npy", array)
    assert atomic.read_bytes(tmp_path / "b") == b"\x00\xff"
    assert (tmp_path / "t").read_text(encoding="utf-8") == "w̃\n"
    assert atomic.read_json(tmp_path / "j") == {"θ": [1, None]}
    mapped = atomic.open_array(tmp_path / "a.npy")
    assert isinstance(mapped, np.memmap)
    np.testing.assert_array_equal(mapped, array)
    assert names(tmp_path) == ["a.npy", "b", "j", "t"]


def test_json_that_no_reader_would_understand_is_refused_and_the_old_file_stays(tmp_path):
    atomic.write_json(tmp_path / "j", 1)
    with pytest.raises(ValueError, match="JSON"):
        atomic.write_json(tmp_path / "j", float("nan"))
    assert atomic.read_json(tmp_path / "j") == 1


def test_a_file_is_replaced_only_when_the_block_ends_well(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(b"old")

    def interrupted():
        with atomic.replacing(path) as file:
            file.write(b"half of the ne")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_bytes() == b"old"
    with atomic.replacing(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert names(tmp_path) == ["f"]


def test_a_reader_never_sees_a_mixture_of_two_writes(tmp_path):
    path, done = tmp_path / "f", threading.Event()
    atomic.write_bytes(path, b"0" * 100_000)

    def write():
        for round_ in range(100):
            atomic.write_bytes(path, (b"0", b"1")[round_ % 2] * 100_000)
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    seen = set()
    while not done.is_set():
        seen.add(atomic.read_bytes(path))
    writer.join()
    assert seen <= {b"0" * 100_000, b"1" * 100_000}


def test_a_missing_file_is_reported_without_waiting(tmp_path, monkeypatch):
    monkeypatch.setattr(atomic, "PAUSES", (3600,))
    with pytest.raises(FileNotFoundError):
        atomic.read_bytes(tmp_path / "no" / "such" / "file")


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EREMOTEIO, errno.ENOENT])
def test_a_reader_tries_again_while_the_name_cache_may_be_stale(tmp_path, number):
    """A local disk has no stale cache, so the error is raised by the reading function itself."""
    path, attempts = tmp_path / "f", []
    path.write_bytes(b"there")

    def read(path):
        attempts.append(path)
        if len(attempts) < 3:
            raise OSError(number, os.strerror(number))
        return path.read_bytes()

    assert atomic.patiently(read, path) == b"there"
    assert len(attempts) == 3


def test_a_folder_appears_as_a_whole(tmp_path):
    with atomic.publishing_folder(tmp_path / "new" / "set") as folder:
        (folder / "f").write_text("x")
        assert not (tmp_path / "new" / "set").exists()
    assert names(tmp_path / "new") == ["set"]
    assert names(tmp_path / "new" / "set") == ["f"]


def test_a_folder_that_fails_leaves_nothing(tmp_path):
    def failing():
        with atomic.publishing_folder(tmp_path / "set") as folder:
            (folder / "f").write_text("x")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        failing()
    assert names(tmp_path) == []


def test_an_error_inside_the_block_is_never_taken_for_a_lost_race(tmp_path):
    with pytest.raises(OSError, match="mine"), atomic.publishing_folder(tmp_path / "set"):
        raise OSError(errno.ENOTEMPTY, "mine")
    assert names(tmp_path) == []


def test_who_publishes_first_stays(tmp_path):
    with atomic.publishing_folder(tmp_path / "set") as ours:
        (ours / "f").write_text("ours")
        with atomic.publishing_folder(tmp_path / "set") as theirs:
            (theirs / "f").write_text("theirs")
    assert (tmp_path / "set" / "f").read_text() == "theirs"
    assert names(tmp_path) == ["set"]


def test_an_empty_folder_may_be_published_over(tmp_path):
    (tmp_path / "set").mkdir()
    with atomic.publishing_folder(tmp_path / "set") as folder:
        (folder / "f").write_text("x")
    assert names(tmp_path / "set") == ["f"]


def test_what_the_dead_left_is_removed_and_what_the_living_write_is_not(tmp_path):
    here, day = socket.gethostname(), 24 * 3600
    dead = tmp_path / f".set.{here}.{dead_pid()}.aa.partial"
    living = tmp_path / f".set.{here}.{os.getpid()}.bb.partial"
    elsewhere = tmp_path / ".set.other.host.7.cc.partial"
    forgotten = tmp_path / ".set.other.host.8.dd.partial"
    foreign = tmp_path / f".other.{here}.{dead_pid()}.ee.partial"
    for folder in (dead, living, elsewhere, forgotten, foreign):
        folder.mkdir()
        (folder / "f").write_text("x")
    os.utime(forgotten, times=(time.time() - 2 * day,) * 2)
    with atomic.publishing_folder(tmp_path / "set"):
        pass
    assert names(tmp_path) == sorted([elsewhere.name, foreign.name, living.name, "set"])


def test_kill_9_in_the_middle_of_a_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(b"old")
    script = """
import os, signal, sys
from cbdybw.storage.atomic import replacing
with replacing(sys.argv[1]) as file:
    file.write(b"half of the ne")
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", script, str(path)])
    assert done.returncode == -signal.SIGKILL
    assert path.read_bytes() == b"old"


@pytest.fixture
def folder(tmp_path) -> Path:
    """A data set of ten training and four test samples for two workers."""
    rng = np.random.default_rng(0)
    arrays = {
        "train_x.npy": rng.normal(size=(10, 3)).astype(np.float32),
        "train_y.npy": np.arange(10),
        "test_x.npy": rng.normal(size=(4, 3)).astype(np.float32),
        "test_y.npy": np.array([3, 1, 4, 1]),
    }
    parts = [np.array([0, 2, 4]), np.array([1, 3, 5, 6, 7, 8, 9])]
    with atomic.publishing_folder(tmp_path / "set") as partial:
        datasets.write(partial, arrays, parts, {"dataset": "tiny", "classes": 10})
    return tmp_path / "set"


def test_a_data_set_is_loaded_as_it_was_written(folder):
    data = datasets.load(folder)
    assert (data.name, data.classes) == ("tiny", 10)
    assert isinstance(data.train_x, np.memmap)
    assert not data.train_x.flags.writeable
    assert data.train_x.dtype == data.test_x.dtype == np.float32
    assert (data.train_x.shape, data.test_x.shape) == ((10, 3), (4, 3))
    np.testing.assert_array_equal(data.train_y, np.arange(10))
    np.testing.assert_array_equal(data.test_y, [3, 1, 4, 1])
    assert [part.tolist() for part in data.parts] == [[0, 2, 4], [1, 3, 5, 6, 7, 8, 9]]
    assert data.manifest["files"]["train_x.npy"]["shape"] == [10, 3]
    datasets.verify(folder)


@pytest.mark.parametrize(
    "name", ["train_x.npy", "train_y.npy", "test_x.npy", "test_y.npy", "partition.npy"]
)
def test_a_file_that_is_missing_truncated_or_altered_is_named(folder, name):
    path = folder / name
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    with pytest.raises(BadInput, match=f"{name} has {len(content) - 1} bytes"):
        datasets.load(folder)
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(BadInput, match=f"{name} is damaged"):
        datasets.load(folder)
    path.unlink()
    with pytest.raises(BadInput, match=f"{name} is missing"):
        datasets.load(folder)


def test_a_large_file_is_hashed_by_verify_alone(folder, monkeypatch):
    path = folder / "train_x.npy"
    monkeypatch.setattr(datasets, "HASHED_AT_LOADING", path.stat().st_size - 1)
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    datasets.load(folder)
    with pytest.raises(BadInput, match=r"train_x\.npy is damaged"):
        datasets.verify(folder)


def test_an_array_of_another_shape_than_announced_is_refused(folder):
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"]["train_x.npy"]["shape"] = [5, 6]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(BadInput, match=r"train_x\.npy holds float32 \(10, 3\)"):
        datasets.load(folder)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [("{", "cannot be read"), ("[]", "format 1"), ('{"format": 2}', "format 1")],
)
def test_a_manifest_that_is_none_is_refused(folder, text, complaint):
    (folder / "manifest.json").write_text(text)
    with pytest.raises(BadInput, match=f"manifest.json.*{complaint}"):
        datasets.load(folder)


def test_a_folder_without_a_manifest_is_no_data_set(tmp_path):
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(BadInput, match=r"manifest\.json is missing.*data_prep\.prepare"):
            datasets.load(folder)
