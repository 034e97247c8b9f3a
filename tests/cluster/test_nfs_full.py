"""A disk that is full on the file server, and has room again."""

import subprocess

import pytest

from cbdybw.storage.run_directory import RunDirectory
from tests.cluster.nfs import SMALL
from tests.runs import COMMAND, arguments, result

pytest_plugins = "tests.cluster.nfs_fixtures"

FLAGS = {
    "algorithm": "cb_full",
    "workload": "quadratic:dim=100000",  # a checkpoint has 1.2 MB
    "workers": 3,
    "iterations": 60,
    "checkpoint_every": 20,
    "eval_every": 10,
}
ROOM = 2_000_000  # bytes: for one checkpoint and whatever else there is, not for a second one
FULL = "cannot be written (No space left on device); make room there and go on"

FILL = """
import os, sys
room = os.statvfs(sys.argv[1])
with open(sys.argv[1] + "/of somebody else", "wb") as file:
    file.write(os.urandom(room.f_bavail * room.f_frsize - int(sys.argv[2])))
    os.fsync(file.fileno())
"""
LOOK = """
import json, sys
from cbdybw.storage.run_directory import RunDirectory
directory = RunDirectory(sys.argv[1])
last = directory.last_checkpoint()
directory.load_part(last["k"], "process-00000")
print(json.dumps({**directory.manifest(), "k": last["k"]}))
"""


@pytest.fixture
def folder(share):
    """Of a run on the small disk, which has little room."""
    try:
        share.guests[0].python("-c", FILL, SMALL, ROOM, timeout=60).check_returncode()
        yield f"{SMALL}/a"
    finally:
        share.guests[0].run(["sh", "-c", f"rm -r {SMALL}/*"], timeout=60).check_returncode()


def test_a_full_disk_ends_a_run_with_one_line_and_room_lets_it_go_on(share, folder, tmp_path):
    here, there = share.guests[:2]
    argv = [*COMMAND, *arguments(FLAGS | {"run_dir": folder})]
    full = here.run(argv, timeout=100)
    lines = full.stderr.splitlines()
    assert (full.returncode, len(lines)) == (1, 1), full.stderr
    assert lines[0].startswith(folder)
    assert lines[0].endswith(FULL)
    left = result(there.python("-c", LOOK, folder, timeout=60))
    assert (left["status"], left["k"]) == ("failed", 20)
    assert "No space left on device" in left["failure"]
    there.run(["rm", f"{SMALL}/of somebody else"], timeout=30).check_returncode()
    again = there.run([*argv, "--resume"], timeout=100)
    assert again.returncode == 0, again.stderr
    left = result(here.python("-c", LOOK, folder, timeout=60))
    assert (left["status"], left["resumed_from"], left["k"]) == ("finished", 20, 40)
    assert result(again)["parameters_sha256"] == uninterrupted(tmp_path)


def uninterrupted(folder) -> str:
    """What the parameters of the same run hash to on a disk with room."""
    argv = [*COMMAND, *arguments(FLAGS | {"run_dir": folder / "b"})]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=100, check=True)
    assert RunDirectory(folder / "b").manifest()["status"] == "finished"
    return result(done)["parameters_sha256"]
