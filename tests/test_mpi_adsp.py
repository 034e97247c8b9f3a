"""ADSP and its baselines on a real server and three workers of speeds 1:1:3."""

import json

import numpy as np
import pytest

from tests.mpirun import start
from tests.runs import arguments, on_ranks, result
from tests.runs import run as replayed

pytestmark = pytest.mark.mpi

WORKERS = 3
FLAGS = {
    "workload": "quadratic:dim=20",
    "delay": "persistent:ranks=1,slowdown=3,base=0.005,jitter=0.2",
    "time_factor": 0.01,  # Γ and a probe's window are 0.6 s, an epoch 10 s
    "eval_seconds": 0.2,
}


def train(tmp_path, algorithm, **flags):
    told = FLAGS | {"algorithm": algorithm, "run_dir": "run"} | flags
    process = on_ranks(WORKERS + 1, f"--workers={WORKERS}", cwd=tmp_path, **told)
    assert process.returncode == 0, process.stderr
    return result(process)


def spread(check_points):
    """Between the most and the fewest commits of a worker, at most; the first one is the start."""
    checks = np.array(check_points)
    return int((checks[:, 3] - checks[:, 2]).max())


def test_adsp_commits_equally_often_waits_for_nobody_and_is_replayed(tmp_path):
    done = train(tmp_path, "adsp", commit_rate=2, checkpoint_every=7, iterations=16)
    assert len(done["check_points"]) >= 7
    assert spread(done["check_points"]) <= 1
    assert max(done["commits"]) - min(done["commits"]) <= 1
    assert done["iterations"] == 16
    fast, slow, other = done["steps"]
    assert 2 < fast / slow < 4
    assert 2 < other / slow < 4
    assert sum(done["computing_seconds"]) > 5 * sum(done["waiting_seconds"])
    assert done["held_out_loss"] is not None
    again = replayed(replay=str(tmp_path / "run"))
    assert again["replay_identical"]
    for name in ("commits", "steps", "check_points", "held_out_loss", "parameters_sha256"):
        assert again[name] == done[name], name


def test_adsp_finds_its_rate_online(tmp_path):
    done = train(tmp_path, "adsp", reward_points=5, max_time=2.0)
    assert len(done["probes"]) >= 2
    assert [probe[0] for probe in done["probes"][:2]] == [1, 2]
    assert replayed(replay=str(tmp_path / "run"))["probes"] == done["probes"]


def test_fixed_adacomm_waits_for_the_slowest(tmp_path):
    done = train(tmp_path, "fixed_adacomm", tau=8, iterations=30)
    assert (done["iterations"], done["gradients_used"]) == (30, 30 * 8 * WORKERS)
    assert done["mean_iteration_seconds"] >= 8 * 3 * 0.005
    assert done["waiting_seconds"][0] > done["computing_seconds"][0]
    assert replayed(replay=str(tmp_path / "run"))["replay_identical"]


def test_adacomm_searches_first_and_then_trains(tmp_path):
    done = train(tmp_path, "adacomm", iterations=10_000, max_time=6.0)
    assert [probe[1] for probe in done["probes"]] == [1, 5, 10, 20, 40, 60, 80, 100]
    assert done["search_seconds"] >= 8 * 0.6
    assert replayed(replay=str(tmp_path / "run"))["replay_identical"]


def test_the_others_go_on_without_a_worker_that_is_killed(tmp_path):
    """It was the third of three, at its 30th step: half a second after its start."""
    flags = FLAGS | {"cluster": "mpi", "workers": WORKERS, "algorithm": "adsp", "commit_rate": 2}
    flags |= {"iterations": 12, "run_dir": str(tmp_path / "run")}
    run = start(WORKERS + 1, "lost_worker.py", *arguments(flags))
    assert not run.process_left
    done = json.loads(run.stdout.splitlines()[-1])
    assert (done["lost"], done["status"], done["iterations"]) == ([2], "finished", 12)
    assert done["commits"][2] is None
    assert sum(done["commits"][:2]) >= 12 * WORKERS - 2  # it had made one or two
    # The scheduler has forgotten it: the fewest commits are those of one that lives.
    assert done["check_points"][-1][2] > 10
    assert spread(done["check_points"][3:]) <= 1
