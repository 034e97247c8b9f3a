"""Looks at the clock: W(t) as it was told, whoever tells it, in one process or several."""

from itertools import count, takewhile

import numpy as np
import pytest

from cbdybw.looks import Looks
from cbdybw.storage.run_directory import RunDirectory
from tests.runs import run


def mean(estimates):
    return float(np.mean([w[0] for w in estimates.values()]))


def drawn(seed):
    """Random events (time, rank, w, gradients) of some ranks, ties and looks' own times among them,
    and when the run has ended."""
    rng = np.random.default_rng((seed, 8))
    ranks, every = int(rng.integers(1, 5)), float(rng.choice([0.1, 0.25, 1.0]))
    times = np.sort(np.where(rng.random(40) < 0.5, rng.integers(30, size=40) * every / 2, 9.0))
    events = [
        (float(t), int(rng.integers(ranks)), rng.standard_normal(1), int(rng.integers(4)))
        for t in times.tolist()
    ]
    return ranks, every, events, events[-1][0] + float(rng.choice([0.0, every, 0.7 * every]))


def expected(ranks, every, events, end):
    """Brute force: at each look the last w of each rank that was told by then."""
    rows = []
    for n in takewhile(lambda n: n * every <= end, count()):
        told = {rank: np.zeros(1) for rank in range(ranks)}
        told |= {rank: w for t, rank, w, _ in events if t <= n * every}
        steps = sum(gradients for t, _, _, gradients in events if t <= n * every)
        rows.append((n * every, steps, mean(told)))
    return np.array(rows)


def looking(every, ranks, of, loss=mean):
    """Looks of a process that has the ranks `of`."""
    looks = Looks(every, ranks, loss)
    for rank in of:
        looks.hold(rank, np.zeros(1))
    return looks


@pytest.mark.parametrize("seed", range(100))
def test_a_look_sees_what_was_told_by_then(seed):
    ranks, every, events, end = drawn(seed)
    looks = looking(every, ranks, range(ranks))
    for time, rank, w, gradients in events:
        looks.tell(rank, time, w, gradients)
    looks.finish(end)
    assert not looks.copies
    np.testing.assert_allclose(looks.table(), expected(ranks, every, events, end), rtol=1e-12)


@pytest.mark.parametrize("seed", range(50))
def test_processes_that_end_at_different_times_come_to_the_same(seed):
    """Looks end with the first process that has: of later ones not all estimates are known."""
    ranks, every, events, end = drawn(seed)
    ends = end + np.random.default_rng(seed).integers(4, size=ranks) * every
    parts = [looking(every, ranks, [rank], loss=None) for rank in range(ranks)]
    for time, rank, w, gradients in events:
        parts[rank].tell(rank, time, w, gradients)
    for part, its_end in zip(parts, ends.tolist(), strict=True):
        part.finish(its_end)
    whole = parts[0]
    for part in parts[1:]:
        whole.merge(part)
    whole.evaluate(mean)
    known = expected(ranks, every, events, min(ends))
    np.testing.assert_allclose(whole.table(), known, rtol=1e-12)


def test_steps_of_ranks_that_hold_nothing_count_too():
    """Rank 0 learns, rank 1 serves and lives longer: the looks are the server's."""
    worker, server = looking(1.0, 1, [], loss=None), looking(1.0, 1, [1], loss=None)
    worker.tell(0, 0.5, np.zeros(1), 7)
    worker.finish(1.5)
    server.tell(1, 2.5, np.ones(1), 2)
    server.finish(4.0)
    worker.merge(server)
    worker.evaluate(mean)
    assert worker.table().tolist() == [[0, 0, 0], [1, 7, 0], [2, 7, 0], [3, 9, 1], [4, 9, 1]]


@pytest.mark.parametrize("seed", range(50))
def test_looks_go_on_from_a_cut_as_if_there_had_been_none(seed):
    ranks, every, events, end = drawn(seed)
    for is_alone in (True, False):  # with the losses at once, or with copies that wait for them
        looks = looking(every, ranks, range(ranks), mean if is_alone else None)
        for n, (time, rank, w, gradients) in enumerate(events):
            if n == 17:
                held = {r: looks._held[r] for r in range(ranks)}  # what the ranks' states have
                arrays = looks.to_arrays()
                looks = Looks(every, ranks, mean if is_alone else None)
                looks.from_arrays(arrays)
                for r, estimate in held.items():
                    looks.hold(r, estimate)
            looks.tell(rank, time, w, gradients)
        looks.finish(end)
        looks.evaluate(mean)
        np.testing.assert_allclose(looks.table(), expected(ranks, every, events, end), rtol=1e-12)


# In runs

FLAGS = {"workload": "quadratic:dim=4", "workers": 4, "delay": "exponential:mean=1"}
COMMITS = {"check_period": 4.0, "probe_window": 4.0, "commit_rate": 2, "tau": 3}


@pytest.mark.parametrize("algorithm", ["cb_dybw", "asp", "adsp", "fixed_adacomm", "ad_psgd"])
def test_a_run_is_looked_at_to_its_end_and_counts_its_gradients(tmp_path, algorithm):
    told = {"algorithm": algorithm, "iterations": 20, "eval_seconds": 1.5, "target_loss": 0.3}
    result = run(**FLAGS, **COMMITS, **told, run_dir=str(tmp_path / "a"))
    seconds, steps, losses = RunDirectory(tmp_path / "a").read_result()["looks"].T
    np.testing.assert_array_equal(seconds, 1.5 * np.arange(len(seconds)))
    assert 0 <= result["clock_seconds"] - seconds[-1] < 1.5 or algorithm != "fixed_adacomm"
    assert steps[0] == 0
    assert (np.diff(steps) >= 0).all()
    assert 0.8 * result["gradients_used"] < steps[-1] <= result["gradients_used"]
    assert result["held_out_loss"] == losses[-1] < losses[0]
    below = seconds[losses <= 0.3]
    assert result["held_out_time_to_target"] == below[0]
    assert result["held_out_tenth_time"] == (below[9] if len(below) > 9 else None)


def test_looks_change_nothing_in_a_run():
    flags = FLAGS | COMMITS | {"algorithm": "adsp", "iterations": 20}
    with_looks, without = run(**flags, eval_seconds=0.5), run(**flags)
    assert with_looks["trace_sha256"] == without["trace_sha256"]
    assert "held_out_loss" not in without


def test_a_search_before_training_is_seen_to_begin_anew(tmp_path):
    flags = FLAGS | COMMITS | {"algorithm": "adsp_plus", "iterations": 100, "eval_seconds": 0.5}
    flags |= {"max_time": 60.0}
    result = run(**flags, run_dir=str(tmp_path / "a"))
    _, _, losses = RunDirectory(tmp_path / "a").read_result()["looks"].T
    begun = (4 / 0.5 * np.arange(9)).astype(int)  # eight probes of 4 s, then training
    assert result["search_seconds"] == 32
    np.testing.assert_array_equal(losses[begun], losses[0])
    assert losses[begun[1] - 1] == losses[0]  # one commit in a period comes at its end
    assert (losses[begun[2:] - 1] < losses[0]).all()
