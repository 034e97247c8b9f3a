"""--resume: whatever moment a run is killed at, it ends as if nothing had happened."""

import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from cbdybw.clusters.launch import mpirun
from cbdybw.clusters.trace import load
from cbdybw.errors import BadInput
from cbdybw.storage.run_directory import RunDirectory
from tests.runs import COMMAND, ROOT, arguments, on_ranks, outcome, result, run, some_flags

WRITES = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir"}


def killed(moment: int, flags: dict) -> bool:
    """Run in a child that dies of SIGKILL at its file operation number `moment`; whether it did."""
    child = os.fork()
    if child == 0:
        operations = count()

        def strike(event: str, args: tuple) -> None:
            reads = event == "open" and not set("wax+") & set(args[1] or "")
            if event in WRITES and not reads and next(operations) == moment:
                os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(strike)
        try:
            run(**flags)
            os._exit(0)
        except BaseException:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


def go_on(flags: dict) -> None:
    """Resume, or start where nothing has come into being yet."""
    run(**flags, resume=Path(flags["run_dir"]).exists())


def is_over(folder: Path) -> bool:
    return folder.exists() and RunDirectory(folder).manifest()["status"] == "finished"


def everything(folder) -> dict:
    """The outcome of a run with its whole trace."""
    spans, events = load(folder / "trace")
    return outcome(folder) | {"spans": spans.tobytes(), "events": events.tobytes()}


@pytest.fixture
def ram(tmp_path):
    """A folder in memory, where there is one: hundreds of runs synchronise thousands of files."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    folder = Path("/dev/shm") / f"cbdybw-test-{os.getpid()}-{tmp_path.name}"
    folder.mkdir()
    yield folder
    shutil.rmtree(folder)


NOISY = "latency=0.01,bandwidth=1000,jitter=0.1"
KILLED = {
    "carry": {},
    "drop": {"straggler_policy": "drop"},
    "late": {"straggler_policy": "late", "edge_rule": "all"},
    "paper": {"clock": "paper"},
    "max_time": {"max_time": 8.0},
    "cb_full": {"algorithm": "cb_full"},
    "cb_full max_time": {"algorithm": "cb_full", "barrier": "neighbours", "max_time": 12.0},
    "timing": {"workload": "timing"},
}


@pytest.mark.parametrize("case", KILLED)
def test_a_run_killed_at_any_file_operation_and_again_when_resumed_ends_the_same(ram, case):
    flags = {
        "workload": "quadratic",
        "workers": 5,
        "delay": "exponential:mean=1",
        "network": NOISY,
        "iterations": 16,
        "eval_every": 3,
        "checkpoint_every": 5,
    } | KILLED[case]
    run(**flags, run_dir=str(ram / "whole"))
    whole = everything(ram / "whole")
    began_from = set()
    step = 1 if case == "carry" else 3
    for moment in count(0, step):
        folder = ram / str(moment)
        here = flags | {"run_dir": str(folder)}
        if not killed(moment, here):
            break
        if not is_over(folder):
            killed(moment % 23, here | {"resume": folder.exists()})
        if is_over(folder):
            continue  # there was nothing left to be killed at
        go_on(here)
        assert everything(folder) == whole, f"killed at file operation {moment}"
        began_from.add(RunDirectory(folder).manifest().get("resumed_from"))
    assert moment > 30
    assert {None, 0, 5} <= began_from  # None: killed before there was anything to resume


def test_a_resumed_run_forgets_what_its_links_and_its_news_were(ram):
    """Random runs, each led back to the checkpoint before its last."""
    resumed = 0
    for seed in range(60):
        flags = some_flags(seed) | {"run_dir": str(ram / str(seed))}
        run(**flags)
        directory = RunDirectory(ram / str(seed))
        whole = everything(directory.path)
        cuts = sorted((directory.path / "checkpoints").glob("*"))
        if not cuts:
            continue
        for cut in cuts[1:]:
            shutil.rmtree(cut)
        directory.update_manifest(status="running")
        run(**flags, resume=True)
        assert everything(directory.path) == whole, f"some_flags({seed})"
        resumed += 1
    assert resumed > 40


def test_a_longer_run_goes_on_from_a_shorter_one(tmp_path):
    flags = {
        "workload": "quadratic",
        "delay": "exponential:mean=1",
        "checkpoint_every": 10,
        "eval_every": 5,
    }
    run(**flags, iterations=40, run_dir=str(tmp_path / "long"))
    short = flags | {"run_dir": str(tmp_path / "short")}
    run(**short, iterations=23)
    with pytest.raises(BadInput, match="has ended; give more --iterations"):
        run(**short, iterations=23, resume=True)
    with pytest.raises(BadInput, match="--iterations=20: 20 are done already"):
        run(**short, iterations=20, resume=True)
    run(**short, iterations=40, resume=True)
    assert everything(tmp_path / "short") == everything(tmp_path / "long")
    assert "--iterations=40\n" in (tmp_path / "short" / "flags.txt").read_text()
    assert "--resume=false\n" in (tmp_path / "short" / "flags.txt").read_text()


def test_a_run_that_its_time_ended_goes_on_with_more_time(tmp_path):
    flags = {
        "workload": "quadratic",
        "algorithm": "cb_full",
        "graph": "path",
        "delay": "exponential:mean=1",
        "checkpoint_every": 2,
        "run_dir": str(tmp_path / "a"),
    }
    assert run(**flags, max_time=20.0)["iterations"] < 30
    assert run(**flags, max_time=math.inf, resume=True)["iterations"] == 200


def test_a_run_that_ended_without_checkpoints_is_never_overwritten(tmp_path):
    flags = {"workload": "quadratic", "iterations": 5, "run_dir": str(tmp_path / "a")}
    run(**flags)
    before = everything(tmp_path / "a")
    with pytest.raises(BadInput, match="it has no checkpoints; name a new folder"):
        run(**flags | {"iterations": 9}, resume=True)
    assert everything(tmp_path / "a") == before


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"seed": 1}, "other flags than --seed=1"),
        ({"eta0": 0.3, "workers": 5}, r"--workers=5 --eta0=0\.3"),
        ({"checkpoint_every": 4}, "--checkpoint_every=4"),
    ],
)
def test_other_flags_do_not_resume_a_run(tmp_path, changed, words):
    flags = {"workload": "quadratic", "iterations": 9, "checkpoint_every": 5}
    flags["run_dir"] = str(tmp_path / "a")
    run(**flags)
    before = everything(tmp_path / "a")
    with pytest.raises(BadInput, match=words):
        run(**flags | changed | {"iterations": 20}, resume=True)
    assert everything(tmp_path / "a") == before


def test_a_run_on_other_data_is_not_resumed(tmp_path):
    flags = {
        "workload": "lrm",
        "dataset": "digits",
        "pca": 8,
        "workers": 2,
        "graph": "path",
        "batch_size": 256,
        "iterations": 3,
        "checkpoint_every": 2,
        "run_dir": str(tmp_path / "a"),
        "data_dir": str(tmp_path / "data"),
    }
    run(**flags)
    facts = tmp_path / "data" / "manifest.json"
    manifest = json.loads(facts.read_text())
    facts.write_text(json.dumps(manifest | {"sha256": "0" * 64}))
    with pytest.raises(BadInput, match="other data than this; give the same --data_dir"):
        run(**flags | {"iterations": 9}, resume=True)


# On MPI


def killed_on_mpi(ranks: int, folder: Path, after: int, flags: dict) -> str:
    """Run on MPI and SIGKILL the root once checkpoint `after` is there; what was said on stderr."""
    argv, env = mpirun(ranks, [*COMMAND, *arguments({"cluster": "mpi", "workers": ranks} | flags)])
    process = subprocess.Popen(
        argv,
        env=env | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    complete = folder / "checkpoints" / f"{after:09d}" / "complete.json"
    while not complete.exists():
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.002)
    os.kill(RunDirectory(folder).manifest()["process"], signal.SIGKILL)
    _, said = process.communicate(timeout=60)
    assert process.returncode != 0
    return said


MPI = {"workload": "quadratic:dim=3000", "delay": "exponential:mean=0.01", "checkpoint_every": 10}


@pytest.mark.mpi
def test_cb_full_killed_on_mpi_ends_with_the_parameters_of_a_whole_run(tmp_path):
    flags = MPI | {"algorithm": "cb_full", "iterations": 35}
    folder = tmp_path / "a"
    killed_on_mpi(3, folder, 20, flags | {"run_dir": str(folder)})
    resumed = result(on_ranks(3, "--resume", cwd=tmp_path, **flags, run_dir=folder))
    assert RunDirectory(folder).manifest()["resumed_from"] in (20, 30)
    whole = run(
        **flags, workers=3, run_dir=str(tmp_path / "virtual")
    )  # on the virtual cluster: the same arithmetic
    assert resumed["parameters_sha256"] == whole["parameters_sha256"]
    assert resumed["gradients_used"] == whole["gradients_used"] == 3 * 35
    losses = [row["train_loss"] for row in RunDirectory(folder).metrics()]
    assert losses[-1] == resumed["train_loss"] == whole["train_loss"]
    assert [row["iteration"] for row in RunDirectory(folder).metrics()] == [0, 10, 20, 30, 35]
    closes = RunDirectory(folder).read_result()["last_close"]
    assert (np.diff(closes) > 0).all()  # the clock went on from the saved one


@pytest.mark.mpi
def test_cb_dybw_killed_on_mpi_goes_on_and_reaches_k_and_its_replay_is_identical(tmp_path):
    flags = MPI | {"iterations": 45, "seed": 3}
    folder = tmp_path / "a"
    said = killed_on_mpi(4, folder, 20, flags | {"run_dir": str(folder)})
    assert re.search(r"rank 0 was lost", said)
    resumed = result(on_ranks(4, "--resume", cwd=tmp_path, **flags, run_dir=folder))
    assert resumed["iterations"] == 45
    assert RunDirectory(folder).manifest()["resumed_from"] >= 20
    assert [row["iteration"] for row in RunDirectory(folder).metrics()] == [0, 10, 20, 30, 40, 45]
    replayed = run(replay=str(folder))
    assert replayed["replay_identical"] is True
    assert replayed["iterations"] == 45
