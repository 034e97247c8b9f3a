"""What a reader of files under change counts, with writers that do it right and wrong."""

import threading
import time
from pathlib import Path

import pytest

from nfs_setup import changes


@pytest.fixture
def put(tmp_path, monkeypatch):
    """Replace the file of versions by a content, and wait until that has been read."""
    read, original = [], Path.read_bytes

    def noted(path):
        read.append(original(path))
        return read[-1]

    def replace(content):
        Path(tmp_path, "new").write_bytes(content)
        Path(tmp_path, "new").rename(tmp_path / "versions")
        end = time.monotonic() + 20
        while not read or read[-1] != content:
            assert time.monotonic() < end
            time.sleep(0.001)

    monkeypatch.setattr(Path, "read_bytes", noted)
    return replace


def counted(folder, write):
    """What `reread` returns of a file that `write` writes beside it."""
    changes.begin(folder)
    reading = changes.reread(folder, 20.0)
    assert next(reading) == "reading"
    thread = threading.Thread(target=write)
    thread.start()
    try:
        next(reading)
    except StopIteration as end:
        return end.value
    finally:
        thread.join()


def version(number, mark=b","):
    return changes._version(number, mark)


def test_versions_that_replace_each_other_are_whole_and_in_order(tmp_path):
    found = counted(tmp_path, lambda: changes.rewrite(tmp_path, 0.3))
    assert (found["torn"], found["back"], found["last"]) == (0, 0, True)
    assert 1 < found["versions"] <= found["reads"]


def test_a_file_that_is_written_in_place_is_seen_torn(tmp_path, put):
    whole = [version(1), version(2)]
    half = len(whole[0]) // 2
    bad = [b"", bytes(100), whole[0][:half] + whole[1][half:], whole[0][:-1], b"x" + whole[0][1:]]

    def write():
        for content in bad:
            put(content)
        changes.rewrite(tmp_path, 0.0)

    found = counted(tmp_path, write)
    assert found["torn"] >= len(bad)
    assert (found["back"], found["last"]) == (0, True)


def test_an_older_version_after_a_newer_one_is_counted(tmp_path, put):
    def write():
        for number in (1, 5, 3, 4):
            put(version(number))
        put(version(6, b"."))

    found = counted(tmp_path, write)
    assert (found["torn"], found["back"], found["last"]) == (0, 1, True)
    assert found["versions"] == 4  # 1, 5, 4 after 3, and 6


def test_a_last_version_that_never_comes_is_told(tmp_path):
    changes.begin(tmp_path)
    reading = changes.reread(tmp_path, 0.2)
    next(reading)
    with pytest.raises(StopIteration) as end:
        next(reading)
    assert (end.value.value["last"], end.value.value["versions"]) == (False, 0)


def test_a_watcher_sees_each_change_once_and_what_never_comes_not_at_all(tmp_path):
    changes.prepare(tmp_path)
    watching = changes.watch(tmp_path, 20.0)
    assert next(watching) == "watching"
    changing = changes.change(tmp_path)
    for name in changes.CHANGES:
        assert next(changing) == name
        assert next(watching) == name
    assert list(watching) == []
    other = tmp_path / "other"
    other.mkdir()
    changes.prepare(other)
    nothing = changes.watch(other, 0.1)
    assert list(nothing) == ["watching"]
