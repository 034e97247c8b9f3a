"""A damaged run folder ends in one line that names the file, whatever reads it."""

import shutil

import pytest

from cbdybw.errors import BadInput
from tests.runs import run

FLAGS = {
    "workload": "quadratic",
    "delay": "exponential:mean=1",
    "iterations": 20,
    "checkpoint_every": 5,
    "eval_every": 3,
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    run(**FLAGS, run_dir=str(folder))
    return folder


@pytest.fixture
def damaged(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "run")


DAMAGE = {
    "empty": lambda path: path.write_bytes(b""),
    "cut short": lambda path: path.write_bytes(path.read_bytes()[:40]),
    "junk": lambda path: path.write_bytes(b"\xff\xfe junk\n" * 9),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
}


def spoil(folder, pattern, how):
    path = sorted(folder.glob(pattern))[-1]
    DAMAGE[how](path)
    return path


@pytest.mark.parametrize("how", DAMAGE)
@pytest.mark.parametrize(
    "pattern",
    ["manifest.json", "checkpoints/*/complete.json", "checkpoints/*/process-*.npz", "trace/*.npy"],
)
def test_resuming_names_the_damaged_file(damaged, pattern, how):
    if pattern == "trace/*.npy":  # the last cut's: what comes later is done again
        pattern = "trace/*-000000015.npy"
    path = spoil(damaged, pattern, how)
    with pytest.raises(BadInput, match=path.name) as refusal:
        run(**FLAGS | {"iterations": 25}, run_dir=str(damaged), resume=True)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("how", DAMAGE)
@pytest.mark.parametrize("pattern", ["result.npz", "trace/events-*.npy", "manifest.json"])
def test_a_replay_names_the_damaged_file(damaged, pattern, how):
    path = spoil(damaged, pattern, how)
    with pytest.raises(BadInput, match=path.name):
        run(replay=str(damaged))


@pytest.mark.parametrize("how", DAMAGE)
def test_a_prediction_names_the_damaged_trace(damaged, how):
    path = spoil(damaged, "trace/spans-*.npy", how)
    with pytest.raises(BadInput, match=path.name):
        run(**FLAGS | {"delay": f"trace:{damaged}", "checkpoint_every": 0})


def test_flags_that_are_no_text_are_refused(damaged):
    (damaged / "flags.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadInput, match=r"flags\.txt is damaged"):
        run(replay=str(damaged))
