"""A disk that is full for three MPI ranks at once, and has room again."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cbdybw.storage.run_directory import RunDirectory
from tests.runs import on_ranks

FLAGS = {
    "algorithm": "cb_full",
    "workload": "quadratic:dim=20000",
    "iterations": 60,
    "checkpoint_every": 20,
    "eval_every": 10,
}


@pytest.fixture
def disk(tmp_path) -> Iterator[Path]:
    """A file system of 4 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def estimates(folder: Path) -> list:
    return RunDirectory(folder).read_result()["estimates"].tolist()


def test_a_full_disk_ends_a_run_with_one_line_and_room_lets_it_go_on(disk, tmp_path):
    directory = RunDirectory(disk / "a")
    begun = on_ranks(3, cwd=tmp_path, run_dir=disk / "a", **FLAGS | {"iterations": 30})
    assert begun.returncode == 0, begun.stderr
    before = {path: path.read_bytes() for path in (disk / "a").glob("checkpoints/*/*")}
    assert directory.last_checkpoint()["k"] == 20
    with open(disk / "of somebody else", "wb", buffering=0) as file:
        while file.write(bytes(4096)) == 4096:
            if _free(disk) < 300_000:  # a rank's part of a checkpoint has 480 kB
                break
    full = on_ranks(3, "--resume", cwd=tmp_path, run_dir=disk / "a", **FLAGS)
    lines = [line for line in full.stderr.splitlines() if line]
    assert full.returncode == 1
    assert len(lines) == 1, full.stderr
    assert "cannot be written (No space left on device); make room there and go on" in lines[0]
    assert str(disk / "a") in lines[0]
    assert directory.manifest()["status"] == "failed"
    assert "No space left on device" in directory.manifest()["failure"]
    assert {path: path.read_bytes() for path in before} == before
    with open(disk / "of somebody else", "ab", buffering=0) as file:
        while _free(disk):
            file.write(bytes(4096))
    still = on_ranks(3, "--resume", cwd=tmp_path, run_dir=disk / "a", **FLAGS)
    assert still.returncode == 1
    (line,) = still.stderr.splitlines()
    assert line.startswith(str(disk / "a"))
    assert line.endswith("cannot be written (No space left on device); make room there and go on")
    assert {path: path.read_bytes() for path in before} == before
    (disk / "of somebody else").unlink()
    again = on_ranks(3, "--resume", cwd=tmp_path, run_dir=disk / "a", **FLAGS)
    assert again.returncode == 0, again.stderr
    assert directory.manifest()["resumed_from"] == 20
    on_ranks(3, cwd=tmp_path, run_dir=tmp_path / "b", **FLAGS)
    assert estimates(disk / "a") == estimates(tmp_path / "b")


def _free(folder: Path) -> int:
    line = subprocess.run(
        ["df", "--block-size=1", "--output=avail", folder], capture_output=True, text=True
    ).stdout
    return int(line.split()[-1])
