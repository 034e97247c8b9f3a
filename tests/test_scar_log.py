"""The log of saved blocks: whole at every instant, bounded, and never silently wrong."""

import errno
import json
import os
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from pathlib import Path

import numpy as np
import pytest

from cbdybw.errors import BadInput, CheckpointFailed
from cbdybw.scar import block_file
from cbdybw.scar.blocks import Blocks, euclidean
from cbdybw.scar.checkpoint import NOWHERE, RunningCheckpoint
from cbdybw.scar.log import MOST, Log
from tests.programs import checkpoint_writer
from tests.programs.checkpoint_writer import values

BLOCKS = checkpoint_writer.BLOCKS
ALL = np.arange(len(BLOCKS))


def write(log, k, members, **more):
    log.write(k, np.array(members), values(np.array(members), k), **more)


def check(log, saved_at, members=ALL):
    """Assert that these are the iterations of the copies, and that the values are of these."""
    packed, at = log.read(members)
    assert at.tolist() == list(saved_at)
    expected = [values(members[i : i + 1], k) for i, k in enumerate(saved_at)]
    np.testing.assert_array_equal(packed, np.concatenate([[], *expected]))


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def folder(tmp_path):
    """Everything saved at 0 (first file), blocks 0 and 3 at 4 (second), block 6 at 5 (third)."""
    log = Log(tmp_path / "log", BLOCKS, "model")
    write(log, 0, ALL)
    write(log, 4, [0, 3])
    write(log, 5, [6])
    log.flush()
    return tmp_path / "log"


NOW = [4, 0, 0, 4, 0, 0, 5, 0, 0, 0]
WITHOUT_SECOND = [0, 0, 0, 0, 0, 0, 5, 0, 0, 0]
FIRST, SECOND, THIRD = (f"{n:09d}.blocks" for n in (1, 2, 3))


def reader(folder, **other):
    return Log(folder, **{"blocks": BLOCKS, "about": "model"} | other)


def test_the_newest_copy_of_each_block_is_read(folder):
    log = reader(folder)
    check(log, NOW)
    check(log, [0, 4, 5], np.array([2, 3, 6]))
    assert log.damage == ()
    assert names(folder) == [FIRST, SECOND, THIRD, "manifest.json"]


def test_nothing_is_made_by_who_only_reads(tmp_path):
    log = reader(tmp_path / "log")
    assert log.copies(ALL)[1].tolist() == [NOWHERE] * len(ALL)
    with pytest.raises(BadInput, match=r"log: has no copy of block 0 and 9 others"):
        log.read(ALL)
    assert names(tmp_path) == []


def test_a_writer_goes_on_where_another_one_was(folder):
    (folder / f".{THIRD}.host.1.abc.partial").write_bytes(b"killed while it wrote")
    log = reader(folder)
    write(log, 7, [1])
    log.flush()
    check(reader(folder), [4, 7, 0, 4, 0, 0, 5, 0, 0, 0])
    assert names(folder) == [FIRST, SECOND, THIRD, "000000004.blocks", "manifest.json"]


def test_an_empty_folder_is_as_good_as_none(tmp_path):
    log = reader(tmp_path)
    write(log, 0, ALL)
    log.flush()
    check(log, [0] * 10)
    assert reader(tmp_path).copies(ALL)[1].tolist() == [0] * 10
    assert log.damage == ()


def test_each_block_of_a_save_may_be_of_its_own_iteration(tmp_path):
    log = reader(tmp_path / "log")
    members = np.array([2, 5])
    packed = np.concatenate([values(members[:1], 3), values(members[1:], 9)])
    log.write(np.array([3, 9]), members, packed)
    log.flush()
    check(log, [3, 9], members)


def test_reading_waits_for_what_is_being_written_and_says_when_it_is_durable(tmp_path):
    log = reader(tmp_path / "log")
    done = []
    write(log, 0, ALL, then=lambda: done.append(sorted(os.listdir(tmp_path / "log"))))
    check(log, [0] * 10)
    log.flush()
    assert done == [[FIRST, "manifest.json"]]


# Space.


@pytest.mark.parametrize(
    ("policy", "sizes"),
    [("priority", [40] * 50), ("random", list(range(1, 51))), ("round", [40] * 50)],
)
def test_the_files_hold_at_most_four_times_the_model(tmp_path, policy, sizes):
    blocks, rng = Blocks(sizes), np.random.default_rng(0)
    speed = np.repeat(rng.random(50) ** 6, sizes)  # some blocks hardly ever move
    x = np.zeros(blocks.dim, np.float32)
    log = Log(tmp_path / "log", blocks, "model")
    running = RunningCheckpoint(
        blocks, np.arange(50), x, fraction=1 / 10, period=10, policy=policy, distance=euclidean,
        rng=np.random.default_rng, store=log,
    )  # fmt: skip
    most = files = 0
    for k in range(1, 81):
        x += (rng.standard_normal(blocks.dim) * speed).astype(np.float32)
        running.save(x, k)
        log.flush()
        held = [path.stat().st_size for path in (tmp_path / "log").glob("*.blocks")]
        heads = 16 * sum(len(block_file.read_header(path, log._about).members)
                         for path in (tmp_path / "log").glob("*.blocks"))  # fmt: skip
        most = max(most, (sum(held) - heads - 100 * len(held)) / (4 * blocks.dim))
        files = max(files, len(held))
    assert 2 < most <= MOST + 1
    assert files < 60
    packed, saved_at = reader(tmp_path / "log", blocks=blocks).read(np.arange(50))
    np.testing.assert_array_equal(packed, running.cached)
    np.testing.assert_array_equal(saved_at, running.saved_at)


# Kills.


@pytest.fixture
def in_memory(tmp_path):
    """A folder where files cost no disk: more of what is not fsync is then met by a kill."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


def test_after_a_kill_at_any_moment_all_that_was_durable_is_there(in_memory):
    """200 kills of 10 logs: each goes on after a kill, so that they come to all that a log does."""
    seed = int.from_bytes(os.urandom(4), "little")
    print(f"{seed=}")
    rng = np.random.default_rng(seed)
    least = np.full((10, len(BLOCKS)), NOWHERE)  # iterations of which copies are known to be there
    reported = half_written = 0
    with subprocess.Popen(
        [sys.executable, "-m", "tests.programs.checkpoint_writer"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
    ) as writer:  # fmt: skip
        for life in range(200):
            generation, number = divmod(life, 10)
            folder = in_memory / str(number)
            writer.stdin.write(f"{folder} {1000 * generation} {seed + life}\n")
            saves = rng.integers(8)  # after so many, and a little later, it is killed
            for line in iter(writer.stdout.readline, "dead\n"):
                k, *members = map(int, line.split())
                if members:
                    least[number, members] = k
                    reported += 1
                else:
                    pid = k
                if saves == 0:
                    time.sleep(rng.uniform(0, 0.001))
                    os.kill(pid, signal.SIGKILL)
                saves -= 1
            half_written += len(list(folder.glob(".*.partial")))
            log = Log(folder, BLOCKS, "killed")
            _, saved_at = log.copies(ALL)
            assert log.damage == (), life
            assert (saved_at >= least[number]).all(), life
            check(log, saved_at[saved_at != NOWHERE], ALL[saved_at != NOWHERE])
            least[number] = saved_at
        writer.stdin.close()
    manifests = [json.loads((in_memory / f"{n}/manifest.json").read_bytes()) for n in range(10)]
    print(f"{reported} saves, {half_written} half-written files")
    assert all(manifest["last"] > 10 for manifest in manifests)  # all were tidied up


def test_who_reads_while_files_come_and_go_finds_each_block_whole_and_never_older(in_memory):
    log = reader(in_memory / "log")
    write(log, 0, ALL)
    log.flush()
    finished = threading.Event()

    def save_on() -> None:
        rng = np.random.default_rng(0)
        for k in range(1, 400):
            write(log, k, np.sort(rng.choice(len(ALL), 3, replace=False)))
        log.flush()
        finished.set()

    thread = threading.Thread(target=save_on)
    thread.start()
    other, before, reads = reader(in_memory / "log"), np.zeros(len(ALL)), 0
    while not finished.is_set() and thread.is_alive():
        packed, saved_at = other.read(ALL)
        whole = [values(ALL[i : i + 1], k) for i, k in enumerate(saved_at)]
        np.testing.assert_array_equal(packed, np.concatenate(whole))
        assert other.damage == ()
        assert (saved_at >= before).all()
        before, reads = saved_at, reads + 1
    thread.join()
    assert finished.is_set()
    assert reads > 10


# Damage.


def flip(path, place):
    data = bytearray(path.read_bytes())
    data[place] ^= 0x10
    path.write_bytes(data)


def test_whatever_byte_of_a_file_flips_the_copies_before_it_stand_in_and_it_is_said(folder):
    path = folder / SECOND
    whole = path.read_bytes()
    for place in range(len(whole)):
        flip(path, place)
        log = reader(folder)
        check(log, WITHOUT_SECOND)
        (line,) = log.damage
        assert SECOND in line
        assert "damaged" in line or "cut short" in line
        path.write_bytes(whole)


def test_wherever_a_file_is_cut_short_the_copies_before_it_stand_in_and_it_is_said(folder):
    path = folder / SECOND
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        log = reader(folder)
        check(log, WITHOUT_SECOND)
        (line,) = log.damage
        assert f"{path}: is cut short" in line


DAMAGE = {
    "its header is damaged": lambda path: flip(path, 60),
    "its values are damaged": lambda path: flip(path, -1),
    "is cut short": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "is missing": lambda path: path.unlink(),
    "cannot be read": lambda path: (path.unlink(), path.mkdir()),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_a_file_that_cannot_be_used_is_named_and_others_do_not_suffer(folder, what):
    DAMAGE[what](folder / SECOND)
    log = reader(folder)
    check(log, WITHOUT_SECOND)
    (line,) = log.damage
    assert f"{folder / SECOND}: {what}" in line
    check(log, [5], np.array([6]))  # in a later file, so nothing is wrong with it
    assert log.damage == ()


@pytest.mark.parametrize("what", DAMAGE)
def test_blocks_without_another_copy_are_refused_with_the_file_that_had_them(folder, what):
    DAMAGE[what](folder / FIRST)
    with pytest.raises(BadInput, match=f"no copy of block 1 and 6 others .*{FIRST}: {what}") as no:
        reader(folder).read(ALL)
    assert "restore the files" in str(no.value)
    assert "\n" not in str(no.value)
    check(reader(folder), [4, 4, 5], np.array([0, 3, 6]))


@pytest.mark.parametrize("what", list(DAMAGE)[:-1])
def test_who_writes_on_after_damage_is_told_of_it_only_until_all_is_saved_anew(folder, what):
    DAMAGE[what](folder / SECOND)
    log = reader(folder)
    write(log, 7, [6])
    log.flush()
    soon = reader(folder)
    expected = [0, 0, 0, 0, 0, 0, 7, 0, 0, 0]
    if what == "its values are damaged":  # so it is known which
        check(soon, [7, 0], np.array([6, 7]))
        assert soon.damage == ()
    check(soon, expected)
    assert SECOND in soon.damage[0]
    for k in range(8, 13):
        write(log, k, ALL)
    log.flush()
    late = reader(folder)
    check(late, [12] * 10)
    assert late.damage == ()


def test_copies_that_may_be_older_than_what_is_damaged_are_not_merged(folder):
    DAMAGE["its header is damaged"](folder / SECOND)
    log = reader(folder)
    for k in range(6, 8):  # so that there is more than three times the model
        write(log, k, ALL[1:])
    with pytest.raises(CheckpointFailed, match=f"{SECOND}: its header is damaged; .* another fold"):
        log.flush()
    late = reader(folder)
    assert late.read(ALL)[1][0] == 0
    assert SECOND in late.damage[0]


def test_a_server_that_holds_a_part_writes_on_after_damage(folder):
    DAMAGE["its header is damaged"](folder / SECOND)
    log, mine = reader(folder), np.array([0, 1, 3, 5, 6])
    write(log, 6, ALL)
    for k in range(7, 40):
        write(log, k, mine)
    log.flush()
    check(reader(folder), [39 if i in mine else 6 for i in ALL])
    assert len(names(folder)) < 15


@pytest.mark.parametrize("content", [b"", b"{", b"null", b"[]", b'{"format": 1}', b"\xff\xfe"])
def test_without_its_manifest_the_log_is_read_and_it_is_said(folder, content):
    (folder / "manifest.json").write_bytes(content)
    log = reader(folder)
    check(log, NOW)
    assert log.damage == (
        f"{folder}/manifest.json: is damaged; whether files are missing cannot be said",
    )
    write(log, 7, [1])
    log.flush()
    mended = reader(folder)
    check(mended, [4, 7, 0, 4, 0, 0, 5, 0, 0, 0])
    assert mended.damage == ()


def test_a_missing_manifest_is_damage_too(folder):
    (folder / "manifest.json").unlink()
    log = reader(folder)
    check(log, NOW)
    assert "manifest.json" in log.damage[0]


def test_a_manifest_from_the_future_is_refused(folder):
    path = folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 99}))
    before = names(folder)
    with pytest.raises(BadInput, match=r"manifest\.json: has format 99, .* the version that wrote"):
        reader(folder)
    assert names(folder) == before


def test_a_file_from_the_future_is_refused(folder):
    data = bytearray((folder / SECOND).read_bytes())
    data[8:12] = struct.pack("<I", 99)
    head = struct.calcsize("<8s5I")
    end = head + struct.unpack_from("<I", data, 12)[0] + 16 * 2
    data[24:28] = bytes(4)
    data[24:28] = struct.pack("<I", zlib.crc32(data[:end]))
    (folder / SECOND).write_bytes(data)
    with pytest.raises(BadInput, match=f"{SECOND}: has format 99"):
        reader(folder).read(ALL)


@pytest.mark.parametrize(
    "other",
    [
        {"about": "another model"},
        {"blocks": Blocks(BLOCKS.sizes[:-1])},
        {"blocks": Blocks(BLOCKS.sizes[::-1])},  # as many blocks and values
    ],
)
def test_a_checkpoint_of_another_model_is_refused_with_both_their_names(folder, other):
    before = names(folder)
    with pytest.raises(BadInput, match=r"manifest\.json: is of model \(10 blocks, 618 ") as refusal:
        reader(folder, **other)
    assert "name another folder" in str(refusal.value)
    assert "\n" not in str(refusal.value)
    (folder / "manifest.json").unlink()  # each file says it too
    with pytest.raises(BadInput, match=f"{THIRD}: is of model"):
        reader(folder, **other).copies(np.array([0]))
    assert names(folder) == before[:-1]


def test_what_is_no_folder_is_refused(tmp_path):
    (tmp_path / "log").write_text("a file")
    with pytest.raises(BadInput, match="log: cannot be read"):
        reader(tmp_path / "log")


# Disks that take no more.


def fails_and_keeps(log, fill, mend):
    """Fill the disk: the save fails, is told once, and what was there before stays; mend it."""
    before = log.copies(ALL)[1].tolist()
    fill()
    write(log, 8, [1, 7])
    with pytest.raises(CheckpointFailed, match=r"cannot be written .*; make room there") as failure:
        log.flush()
    assert str(log.folder) in str(failure.value)
    assert "\n" not in str(failure.value)
    log.flush()  # was told
    mend()
    check(log, before)
    assert log.damage == ()
    assert not list(log.folder.glob(".*.partial"))
    write(log, 9, [1])
    log.flush()
    check(reader(log.folder), [before[0], 9, *before[2:]])


def test_an_error_of_fsync_is_told_and_what_was_saved_before_stays(folder, monkeypatch):
    real = os.fsync

    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    fails_and_keeps(
        reader(folder),
        lambda: monkeypatch.setattr(os, "fsync", full),
        lambda: monkeypatch.setattr(os, "fsync", real),
    )


def test_a_file_that_grows_beyond_its_limit_is_told_and_what_was_saved_before_stays(folder):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    fails_and_keeps(
        reader(folder),
        lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (300, hard)),
        lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard)),
    )


def test_a_full_disk_is_told_and_what_was_saved_before_stays(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)]
    if os.geteuid() or subprocess.run(mount, stderr=subprocess.DEVNULL).returncode:
        pytest.skip("only root may mount a small disk")
    try:
        log = reader(disk / "log")
        write(log, 0, ALL)
        log.flush()

        def fill():
            room = os.statvfs(disk)
            (disk / "ballast").write_bytes(bytes(room.f_bavail * room.f_frsize))

        fails_and_keeps(log, fill, (disk / "ballast").unlink)
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_folder_that_is_gone_is_told(folder):
    log = reader(folder)
    write(log, 6, [0])
    log.flush()
    shutil.rmtree(folder)
    write(log, 7, [0])
    with pytest.raises(CheckpointFailed, match="No such file or directory"):
        write(log, 8, [0])
    log.flush()  # the second one was not begun


def test_training_hears_of_a_failed_save_at_the_next_one(folder, monkeypatch):
    blocks, x = Blocks.rows(8, 2), np.zeros(16, np.float32)
    running = RunningCheckpoint(
        blocks, np.arange(8), x, fraction=1 / 8, period=8, policy="round", distance=euclidean,
        rng=np.random.default_rng, store=Log(folder / "inside", blocks, "model"),
    )  # fmt: skip
    running.save(x, 1)
    running.close()
    shutil.rmtree(folder / "inside")
    running.save(x, 2)
    with pytest.raises(CheckpointFailed):
        running.save(x, 3)
