"""--replay runs a recorded run again, event by event; --delay=trace:RUN predicts from its times."""

import shutil

import numpy as np
import pytest

from cbdybw.clusters import trace
from cbdybw.errors import BadInput
from cbdybw.storage import atomic
from cbdybw.storage.run_directory import RunDirectory
from tests.runs import binary, on_ranks, result, run, some_flags

DIGITS = {"workload": "2nn:width=16", "dataset": "digits", "pca": 16, "batch_size": 128}


def active_sets(folder) -> list[list[int]]:
    return RunDirectory(folder).read_result()["edges"].tolist()


def estimates(folder) -> bytes:
    return RunDirectory(folder).read_result()["estimates"].tobytes()


def test_random_runs_of_the_virtual_cluster_are_replayed_identically(tmp_path):
    for seed in (*range(25), 199):
        folder, again = tmp_path / "run", tmp_path / "again"
        recorded = run(**some_flags(seed), run_dir=str(folder))
        replayed = run(replay=str(folder), run_dir=str(again))
        assert replayed["replay_identical"] is True, f"some_flags({seed})"
        assert replayed["iterations"] == recorded["iterations"]
        assert estimates(again) == estimates(folder)
        assert active_sets(again) == active_sets(folder)
        shutil.rmtree(folder)
        shutil.rmtree(again)


@pytest.mark.mpi
def test_learning_on_mpi_is_replayed_bit_for_bit_with_the_same_active_sets(tmp_path):
    """2NN on four ranks under cb-DyBW with `carry`, with TensorFlow on both sides."""
    recorded = result(
        on_ranks(
            4,
            cwd=tmp_path,
            **DIGITS,
            delay="exponential:mean=0.03",
            iterations=40,
            checkpoint_every=15,
            eval_every=20,
            run_dir="run",
        )
    )
    replayed = result(binary("--replay=run", "--run_dir=again", cwd=tmp_path))
    assert replayed["replay_identical"] is True
    assert replayed["iterations"] == recorded["iterations"] == 40
    assert replayed["parameters_sha256"] == recorded["parameters_sha256"]
    assert estimates(tmp_path / "again") == estimates(tmp_path / "run")
    assert active_sets(tmp_path / "again") == active_sets(tmp_path / "run")
    assert 0 < recorded["mean_backup_workers"] < 2  # it was no cb-Full
    for name in ("train_loss", "test_error", "consensus_distance", "gradients_used"):
        assert replayed[name] == recorded[name], name


CASES = {
    "drop": {"straggler_policy": "drop"},
    "late, max_time": {"straggler_policy": "late", "edge_rule": "all", "max_time": 0.4},
    "cb_full, global": {"algorithm": "cb_full"},
    "cb_static, max_time": {"algorithm": "cb_static", "max_time": 0.2},
    "cb_full, max_time": {"algorithm": "cb_full", "barrier": "neighbours", "max_time": 0.4},
}


@pytest.mark.mpi
@pytest.mark.parametrize("case", CASES)
def test_what_ran_on_mpi_is_replayed_identically(tmp_path, case):
    recorded = result(
        on_ranks(
            4,
            cwd=tmp_path,
            workload="quadratic",
            delay="exponential:mean=0.01",
            iterations=60,
            checkpoint_every=8,
            run_dir="run",
            **CASES[case],
        )
    )
    replayed = run(replay=str(tmp_path / "run"), run_dir=str(tmp_path / "again"))
    assert replayed["replay_identical"] is True
    assert replayed["iterations"] == recorded["iterations"]
    assert (recorded["iterations"] < 60) == ("max_time" in case)
    assert active_sets(tmp_path / "again") == active_sets(tmp_path / "run")
    assert estimates(tmp_path / "again") == estimates(tmp_path / "run")


@pytest.mark.mpi
@pytest.mark.parametrize(("algorithm", "iterations"), [("cb_full", 16), ("cb_dybw", 25)])
def test_recorded_compute_times_predict_the_mean_iteration_time(tmp_path, algorithm, iterations):
    """A straggler that is always the same one. (Where all draw alike, two workers that finish
    within a millisecond of each other may change places; cb-DyBW then takes another course.)"""
    flags = {"workload": "quadratic", "algorithm": algorithm, "iterations": iterations}
    law = "persistent:ranks=2,slowdown=3,base=0.1,jitter=0.5"
    measured = result(on_ranks(4, cwd=tmp_path, **flags, delay=law, run_dir="run"))
    predicted = run(**flags, workers=4, delay=f"trace:{tmp_path / 'run'}")
    assert predicted["iterations"] == measured["iterations"] == iterations
    assert predicted["mean_iteration_seconds"] == pytest.approx(
        measured["mean_iteration_seconds"], rel=0.05
    )


# What cannot be replayed


@pytest.fixture
def recorded(tmp_path):
    folder = tmp_path / "run"
    flags = {"workload": "quadratic", "workers": 4, "delay": "exponential:mean=1"}
    run(**flags, iterations=20, run_dir=str(folder))
    return folder


def test_a_replay_that_comes_out_otherwise_says_so_and_leaves_with_1(recorded):
    """The recorded run is said to have ended with other parameters."""
    directory = RunDirectory(recorded)
    facts = directory.manifest()["result"] | {"parameters_sha256": "0" * 64}
    directory.update_manifest(result=facts)
    process = binary(f"--replay={recorded}", cwd=recorded.parent)
    assert process.returncode == 1
    assert result(process)["replay_identical"] is False
    (_, said) = process.stderr.splitlines()
    assert said == f"--replay={recorded}: did not come out as recorded"


def test_one_active_edge_more_is_noticed(recorded):
    directory = RunDirectory(recorded)
    arrays = directory.read_result()
    arrays["edges"] = np.concatenate([arrays["edges"], [[19, 0, 2]]])
    directory.write_result(arrays)
    assert run(replay=str(recorded))["replay_identical"] is False


def rewrite(folder, change) -> None:
    """Change the events of a run that was recorded in one segment."""
    (path,) = (folder / "trace").glob("events-*.npy")
    atomic.write_array(path, change(np.load(path)))


def without(kind):
    def drop_first(events):
        _, kinds, _, _ = trace.decode(events["code"])
        return np.delete(events, np.flatnonzero(kinds == kind)[0])

    return drop_first


@pytest.mark.parametrize("kind", [trace.Kind.UPDATE, trace.Kind.CLOSE, trace.Event.COMPUTED])
def test_a_trace_with_an_event_missing_is_refused_in_one_line(recorded, kind):
    rewrite(recorded, without(kind))
    with pytest.raises(BadInput, match="use the program and the data of the recorded run"):
        run(replay=str(recorded))


def test_flags_that_are_not_the_recorded_ones_are_refused(recorded):
    with pytest.raises(BadInput, match=r"recorded otherwise; leave out --eta0=0\.5 --workers=5"):
        run(replay=str(recorded), workers=5, eta0=0.5)
    assert run(replay=str(recorded), workers=4)["replay_identical"] is True


def test_a_run_that_has_not_ended_is_no_recording(recorded):
    RunDirectory(recorded).update_manifest(status="running")
    with pytest.raises(BadInput, match="that run is running; only one that has ended"):
        run(replay=str(recorded))


def test_a_run_of_which_the_trace_is_gone_is_refused(recorded):
    shutil.rmtree(recorded / "trace")
    with pytest.raises(BadInput, match=f"--replay={recorded}: no trace there"):
        run(replay=str(recorded), run_dir=str(recorded.parent / "again"))
    assert not (recorded.parent / "again").exists()


def test_a_trace_of_fewer_workers_predicts_nothing_for_the_others(recorded):
    with pytest.raises(BadInput, match="worker 4 of 6 computed nothing there"):
        run(workload="timing", delay=f"trace:{recorded}")
