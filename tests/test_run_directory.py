"""The folder of a run: one owner, whole files, and a way back to the last checkpoint."""

import json
import os
import resource
import stat
import subprocess
import sys
import time

import numpy as np
import pytest

from cbdybw.errors import BadInput
from cbdybw.storage import ownership
from cbdybw.storage.run_directory import RunDirectory
from tests.runs import COMMAND, ROOT, arguments, result, run


@pytest.fixture
def directory(tmp_path):
    directory = RunDirectory(tmp_path / "runs" / "a")
    directory.create("--seed=1\n", {"status": "running", "process": 1})
    return directory


def save(directory, k):
    directory.save_part(k, "process-00000", {"w": np.full(2, k)})
    directory.complete_checkpoint(k, {"clock": k / 2})


def test_a_new_folder_holds_flags_manifest_owner_and_a_place_for_the_trace(directory):
    names = ["flags.txt", "manifest.json", "owner.1.json", "reserve", "trace"]
    assert sorted(os.listdir(directory.path)) == names
    assert directory.read_flags("--resume") == "--seed=1\n"
    assert directory.manifest() == {"status": "running", "process": 1}
    assert os.listdir(directory.path.parent) == ["a"]  # nothing half-made beside it


def test_whatever_is_there_already_is_refused_and_stays(tmp_path, directory):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "empty").mkdir()
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for name in ("runs/a", "file", "empty", "dangling"):
        with pytest.raises(BadInput, match="exists already; add --resume or name a new folder"):
            RunDirectory(tmp_path / name).create("--seed=2\n", {"process": 2})
    assert directory.read_flags("") == "--seed=1\n"
    assert (tmp_path / "file").read_text() == "mine"
    assert os.listdir(tmp_path / "empty") == []


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match=r"--run_dir=.*/file/a: .*; name another"):
        RunDirectory(tmp_path / "file" / "a").create("", {})


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_place_without_permission_is_refused(tmp_path):
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    with pytest.raises(BadInput, match="Permission denied; name another"):
        RunDirectory(tmp_path / "a").create("", {})


def test_of_two_processes_that_want_the_same_folder_one_gets_it(tmp_path):
    flags = ["--workload=quadratic", f"--run_dir={tmp_path / 'a'}"]
    started = [
        subprocess.Popen(
            [*COMMAND, *flags, f"--seed={seed}"],
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for seed in range(4)
    ]
    ended = [
        subprocess.CompletedProcess(process.args, process.wait(), *process.communicate())
        for process in started
    ]
    assert sorted(process.returncode for process in ended) == [0, 2, 2, 2]
    (winner,) = (process for process in ended if process.returncode == 0)
    assert RunDirectory(tmp_path / "a").manifest()["result"] == result(winner)
    assert os.listdir(tmp_path) == ["a"]


def test_two_makers_at_the_same_instant_do_not_both_believe_they_won(tmp_path):
    """Many rounds of the race itself: the rename, not the look beforehand, decides."""
    program = (
        "import sys, time; from cbdybw.errors import BadInput\n"
        "from cbdybw.storage.run_directory import RunDirectory\n"
        "won = 0\n"
        "for n in range(100):\n"
        "    while time.time() < float(sys.argv[2]) + n / 50: pass\n"
        "    try: RunDirectory(f'{sys.argv[1]}/{n}').create('', {'process': sys.argv[3]})\n"
        "    except BadInput: continue\n"
        "    won += 1\n"
        "print(won)\n"
    )
    start = str(time.time() + 1)
    makers = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path), start, name],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        for name in "ab"
    ]
    won = [int(maker.communicate()[0]) for maker in makers]
    owners = [RunDirectory(tmp_path / str(n)).manifest()["process"] for n in range(100)]
    assert won == [owners.count("a"), owners.count("b")]


def test_a_checkpoint_counts_only_when_it_is_complete(directory):
    assert directory.last_checkpoint() is None
    directory.save_part(5, "process-00000", {"w": np.zeros(2)})
    assert directory.last_checkpoint() is None
    directory.complete_checkpoint(5, {"clock": 2.5})
    assert directory.last_checkpoint() == {"k": 5, "clock": 2.5}
    np.testing.assert_array_equal(directory.load_part(5, "process-00000")["w"], np.zeros(2))


def test_the_last_two_checkpoints_are_kept(directory):
    for k in (5, 10, 15, 20):
        save(directory, k)
    assert sorted(os.listdir(directory.path / "checkpoints")) == ["000000015", "000000020"]
    assert directory.last_checkpoint()["k"] == 20


def test_a_damaged_checkpoint_is_named(directory):
    save(directory, 5)
    path = directory.path / "checkpoints" / "000000005" / "process-00000.npz"
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(BadInput, match=r"000000005/process-00000.npz: cannot be read"):
        directory.load_part(5, "process-00000")


def test_a_metrics_line_cut_short_by_a_kill_is_left_out(directory):
    directory.add_metrics({"iteration": 0, "train_loss": None})
    with open(directory.path / "metrics.jsonl", "a") as file:
        file.write('{"iteration": 10, "trai')
    assert directory.metrics() == [{"iteration": 0, "train_loss": None}]


def test_going_back_drops_what_came_after_and_nothing_else(directory):
    save(directory, 10)
    directory.save_part(15, "process-00000", {"w": np.zeros(2)})
    for done in (10, 15, 40):
        (directory.trace / f"events-00000-{done:09d}.npy").write_bytes(b"")
    for done in (0, 5, 10, 12):
        directory.add_metrics({"iteration": done, "loss": 1 / 3 + done})
    lines = (directory.path / "metrics.jsonl").read_text().splitlines(True)
    with open(directory.path / "metrics.jsonl", "a") as file:
        file.write('{"iter')
    (directory.path / ".manifest.json.host.1.ab.partial").write_bytes(b"{")
    directory.rewind(10, "--seed=1\n--iterations=9\n")
    assert (directory.path / "metrics.jsonl").read_text() == "".join(lines[:3])
    assert os.listdir(directory.trace) == ["events-00000-000000010.npy"]
    assert os.listdir(directory.path / "checkpoints") == ["000000010"]
    assert directory.read_flags("") == "--seed=1\n--iterations=9\n"
    assert not list(directory.path.rglob(".*"))
    directory.rewind(0, "")
    assert (directory.path / "metrics.jsonl").read_text() == ""


def test_a_run_leaves_all_of_its_files_behind(tmp_path):
    ended = run(
        workload="quadratic", iterations=25, checkpoint_every=10, run_dir=str(tmp_path / "a")
    )
    directory = RunDirectory(tmp_path / "a")
    manifest = directory.manifest()
    assert manifest["status"] == "finished"
    assert manifest["result"] == ended
    assert manifest["process"] == os.getpid()
    assert manifest["data_sha256"] is None
    assert manifest["versions"]["numpy"] == np.__version__
    assert {"commit", "dirty", "started", "machine", "job"} <= manifest.keys()
    assert [row["iteration"] for row in directory.metrics()] == [0, 10, 20, 25]
    assert directory.read_result()["estimates"].shape == (6, 10)
    segments = sorted(path.name for path in directory.trace.iterdir())
    assert segments == [
        f"{table}-00000-{k:09d}.npy" for table in ("events", "spans") for k in (10, 20, 25)
    ]
    with open(directory.path / "metrics.jsonl") as file:
        assert all(json.loads(line) for line in file)
    files = {"checkpoints", "flags.txt", "manifest.json", "metrics.jsonl", "result.npz", "trace"}
    assert set(os.listdir(directory.path)) == files | {"owner.1.json"}  # no room reserved any more
    ownership.check_is_free(directory.path, None, "")


def test_a_name_that_cannot_be_is_refused(tmp_path):
    with pytest.raises(BadInput, match=r"^--run_dir=.*n: File name too long; name another$"):
        run(workload="quadratic", run_dir=str(tmp_path / ("n" * 300)))


def test_a_run_that_fails_says_so_in_its_manifest_and_can_be_resumed(tmp_path):
    """Its files may not grow beyond 100 kB, as on a full disk; a checkpoint has 120 kB."""
    flags = {
        "workload": "quadratic:dim=5000",
        "iterations": 25,
        "checkpoint_every": 10,
        "run_dir": str(tmp_path / "a"),
    }
    process = subprocess.run(
        [*COMMAND, *arguments(flags)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)),
        capture_output=True,
        text=True,
    )
    assert process.returncode == 1
    assert process.stdout == ""
    path = tmp_path / "a" / "checkpoints" / "000000010" / "process-00000.npz"
    said = f"{path}: cannot be written (File too large); make room there and go on"
    assert process.stderr.splitlines()[-1] == said
    assert "Traceback" not in process.stderr
    directory = RunDirectory(tmp_path / "a")
    assert directory.manifest()["status"] == "failed"
    assert directory.manifest()["failure"] == f"Unwritable: {said}"
    assert directory.last_checkpoint() is None
    first = directory.manifest()["process"]
    assert run(**flags, resume=True)["status"] == "finished"
    assert directory.manifest()["status"] == "finished"
    assert directory.manifest()["failure"] is None
    assert directory.manifest()["process"] == os.getpid()
    assert (
        [start["process"] for start in directory.manifest()["earlier"]] == [first] != [os.getpid()]
    )
    assert [row["iteration"] for row in directory.metrics()] == [0, 10, 20, 25]
