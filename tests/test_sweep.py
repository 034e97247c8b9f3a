"""Sweeps: what a run is known by, what is kept of it, and runs that fail or are killed."""

import json
import multiprocessing
import os
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cbdybw.errors import BadInput
from experiments import cells, pool, ranks, rows, sweep, train
from experiments.cells import Cell, Run
from experiments.settings import Settings
from experiments.sweep import Place

HEAD = """\
# figure: try
# scales: smoke seeds 0-1, short seed 7
# expected: nothing
# run time: {seconds:g} s
"""


def cell(folder: Path, name: str, seconds: float = 1.0, **flags) -> Cell:
    """A cell whose file is FOLDER/try/NAME.flags."""
    given = {"workload": "timing", "delay": "exponential:mean=0.1", "iterations": 30} | flags
    path = folder / "try" / f"{name}.flags"
    path.parent.mkdir(exist_ok=True)
    lines = "".join(f"--{flag}={value}\n" for flag, value in given.items())
    path.write_text(HEAD.format(seconds=seconds) + "\n" + lines)
    return cells.read(path)


def silent(run):
    """A run that begins is no news here."""


def done(runs, place, jobs=1, begun=silent):
    return {str(run): row for run, row in sweep.each(runs, place, jobs, begun)}


# Cells and keys


def test_a_cell_says_what_it_is_for_and_gives_the_settings_of_its_run(tmp_path):
    read = cell(tmp_path, "a", seconds=2.5, workers=3)
    assert (read.name, read.group, read.cluster, read.seconds) == ("try/a", "try", "virtual", 2.5)
    assert read.seeds == {"smoke": (0, 1), "short": (7,)}
    expected = Settings(
        workload="timing", delay="exponential:mean=0.1", iterations=30, workers=3, seed=7
    )
    assert Run(read, 7).settings() == expected


def test_the_original_files_are_named_to_those_runs_that_read_them(tmp_path):
    assert Run(cell(tmp_path, "a", workload="lrm"), 0).settings("raw").raw_dir == "raw"
    assert Run(cell(tmp_path, "b"), 0).settings("raw").raw_dir == ""
    digits = cell(tmp_path, "c", workload="lrm", dataset="digits")
    assert Run(digits, 0).settings("raw").raw_dir == ""


@pytest.mark.parametrize(
    ("of", "to"),
    [
        ("# scales: smoke seeds 0-1, short seed 7\n", ""),
        ("seeds 0-1", "seeds zero"),
        ("# run time: 1 s", "# run time: long"),
    ],
)
def test_a_cell_without_its_first_lines_is_refused_by_name(tmp_path, of, to):
    path = cell(tmp_path, "a").path
    path.write_text(path.read_text().replace(of, to))
    with pytest.raises(BadInput, match=r"try/a\.flags: begins without lines such as '# scales"):
        cells.read(path)


def test_a_key_depends_on_every_flag_but_those_that_say_where_files_are(tmp_path):
    key = Run(cell(tmp_path, "a"), 0).key
    assert len(key) == 12
    assert set(key) <= set("0123456789abcdef")
    same = [{"raw_dir": "x"}, {"data_dir": "y"}, {"run_dir": "z"}, {"workers": 6}]
    assert {Run(cell(tmp_path, "a", **flags), 0).key for flags in same} == {key}
    other = [{"workers": 7}, {"delay": "none"}, {"eval_every": 0}]
    keys = {Run(cell(tmp_path, "a", **flags), 0).key for flags in other}
    assert len({key, Run(cell(tmp_path, "a"), 1).key} | keys) == 5


def test_flags_that_cannot_be_used_have_a_key_too(tmp_path):
    bad = cell(tmp_path, "bad", algorithm="none_of_ours")
    assert len({Run(bad, 0).key, Run(bad, 1).key, Run(cell(tmp_path, "a"), 0).key}) == 3


def test_the_runs_of_a_scale_begin_with_the_longest(tmp_path):
    three = [cell(tmp_path, name, seconds) for name, seconds in [("a", 1), ("b", 9), ("c", 5)]]
    assert [str(run) for run in cells.runs_of(three, "smoke")] == [
        f"try/{name}@{seed}" for name in "bca" for seed in (0, 1)
    ]
    assert [run.seed for run in cells.runs_of(three, "short")] == [7, 7, 7]
    assert cells.runs_of(three, "paper") == []
    with pytest.raises(BadInput, match="--scale=huge: not known; use smoke or short or paper or"):
        cells.runs_of(three, "huge")


# Rows


def test_a_row_keeps_what_the_run_says_of_itself(tmp_path):
    run = Run(cell(tmp_path, "a", workload="quadratic", iterations=40, eval_every=20), 3)
    outcome = train.outcome(run.settings(), log=silent)
    row = rows.ended(run, outcome)
    assert (row["key"], row["cell"], row["seed"], row["status"]) == (
        run.key,
        "try/a",
        3,
        "finished",
    )
    assert row["flags"] == {
        "workload": "quadratic",
        "delay": "exponential:mean=0.1",
        "iterations": 40,
        "eval_every": 20,
    }
    assert row["result"]["mean_iteration_seconds"] == outcome.result["mean_iteration_seconds"]
    assert row["curve"]["iteration"] == [0, 20, 40]
    losses = [m["train_loss"] for m in outcome.metrics]
    np.testing.assert_allclose(row["curve"]["train_loss"], losses, rtol=5e-5)
    assert len(row["durations"]) == len(row["backup_workers"]) == 40
    mean = outcome.result["mean_iteration_seconds"]
    assert np.mean(row["durations"]) == pytest.approx(mean, rel=1e-4)
    backup_workers = outcome.result["mean_backup_workers"]
    assert np.mean(row["backup_workers"]) == pytest.approx(backup_workers, rel=1e-4)
    assert json.loads(json.dumps(row, allow_nan=False)) == row


def test_long_runs_keep_no_duration_of_each_iteration(tmp_path):
    for iterations, kept in [(1000, True), (1001, False)]:
        run = Run(cell(tmp_path, "a", iterations=iterations), 0)
        row = rows.ended(run, train.outcome(run.settings(), log=silent))
        assert ("durations" in row, "backup_workers" in row) == (kept, kept)


def test_collected_rows_are_sorted_and_leave_out_what_failed(tmp_path):
    def row(name, seed, status="finished"):
        kept = {"result": {}, "curve": {}} if status == "finished" else {}
        return {"key": "0" * 12, "cell": name, "seed": seed, "flags": {}, "status": status} | kept

    given = [row("x/b", 1), row("x/a", 2), row("y/c", 0), row("x/b", 0), row("x/a", 1, "failed")]
    rows.collect(given, tmp_path)
    assert rows.collected(tmp_path) == {
        "x": [row("x/a", 2), row("x/b", 0), row("x/b", 1)],
        "y": [row("y/c", 0)],
    }


@pytest.mark.parametrize("content", ["[]", '{"a": 1}', '{"key": ', ""])
def test_a_damaged_row_is_named(tmp_path, content):
    run = Run(cell(tmp_path, "old"), 0)
    store = Place(tmp_path / "out").store
    store.write(run, rows.failed(run, "why"))
    (path,) = store.folder.iterdir()
    path.write_text(content)
    with pytest.raises(BadInput, match=path.name):
        store.read(run)


def test_the_row_of_a_cell_that_has_been_renamed_is_found(tmp_path):
    old, new = Run(cell(tmp_path, "old"), 0), Run(cell(tmp_path, "new"), 0)
    store = Place(tmp_path / "out").store
    store.write(old, rows.failed(old, "why"))
    assert store.read(new) == rows.failed(new, "why")


# Runs that end well, badly, or not at all


def test_runs_that_fail_or_diverge_stop_no_other_and_say_why(tmp_path):
    runs = [
        Run(cell(tmp_path, "good"), 0),
        Run(cell(tmp_path, "unknown", algorithm="none_of_ours"), 0),
        Run(cell(tmp_path, "refused", graph="grid", workers=7), 0),
        Run(cell(tmp_path, "too_large", workload=f"quadratic:dim={10**15}"), 0),
        Run(
            cell(tmp_path, "steep", workload="quadratic", eta0=3.0, eta_decay=1.0, iterations=300),
            0,
        ),
        Run(cell(tmp_path, "good"), 1),
    ]
    place = Place(tmp_path / "out")
    ended = done(runs, place, jobs=2)
    status = {name: row["status"] for name, row in ended.items()}
    assert status == {
        "try/good@0": "finished",
        "try/unknown@0": "failed",
        "try/refused@0": "failed",
        "try/too_large@0": "failed",
        "try/steep@0": "diverged",
        "try/good@1": "finished",
    }
    reasons = {name: row.get("reason") for name, row in ended.items()}
    assert reasons["try/unknown@0"].startswith("--algorithm=none_of_ours: not known; use ")
    assert reasons["try/refused@0"].startswith("--graph=grid: 7 workers make no grid; use ")
    assert "MemoryError: " in reasons["try/too_large@0"]
    assert "in outcome" in ended["try/too_large@0"]["story"]
    assert ended == {str(run): place.store.read(run) for run in runs}
    assert {str(run) for run in sweep.unfinished(runs, place.store)} == {
        "try/unknown@0",
        "try/refused@0",
        "try/too_large@0",
    }


def test_cells_with_the_same_flags_share_one_run_and_its_row(tmp_path):
    first, second = (Run(cell(tmp_path, name), 0) for name in "ab")
    place = Place(tmp_path / "out")
    assert sweep.unfinished([first, second], place.store) == [first]
    done([first], place)
    assert sweep.unfinished([first, second], place.store) == []
    assert place.store.read(second)["cell"] == "try/b"


def test_a_run_whose_process_is_killed_has_failed_and_the_others_are_done(tmp_path):
    runs = [Run(cell(tmp_path, "a"), seed) for seed in range(4)]

    def kill_the_second(run):
        if run.seed == 1:
            (process,) = multiprocessing.active_children()
            os.kill(process.pid, signal.SIGKILL)

    place = Place(tmp_path / "out")
    ended = done(runs, place, begun=kill_the_second)
    assert [ended[f"try/a@{seed}"]["status"] for seed in range(4)] == [
        "finished",
        "failed",
        "finished",
        "finished",
    ]
    assert ended["try/a@1"]["reason"] == "its process ended by SIGKILL; was there enough memory?"
    assert sweep.unfinished(runs, place.store) == [runs[1]]
    again = done([runs[1]], place)["try/a@1"]
    assert again["status"] == "finished"
    alone = rows.ended(runs[1], train.outcome(runs[1].settings(), log=silent))
    for row in (again, alone):
        del row["result"]["wall_seconds"]
    assert again == alone


def square_or_die(number: int) -> int:
    """For the pool: some tasks kill their process, in the middle."""
    if number % 5 == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    if number % 5 == 4:
        os._exit(9)
    return number**2


@pytest.mark.parametrize("jobs", [1, 3])
def test_every_task_has_one_result_although_processes_die(jobs):
    begun = []
    results = dict(pool.each(range(10), square_or_die, jobs, begun.append))
    assert begun == list(range(10))
    assert sorted(results) == begun
    for number, result in results.items():
        if number % 5 < 3:
            assert result == number**2
        else:
            how = "by SIGKILL; was" if number % 5 == 3 else "with exit code 9"
            assert f"its process ended {how}" in str(result)
    assert multiprocessing.active_children() == []


def process_id(_) -> int:
    """For the pool: who does it."""
    return os.getpid()


def test_a_process_does_many_tasks():
    assert len({pid for _, pid in pool.each(range(6), process_id, 1, silent)}) == 1


def test_leaving_early_ends_the_processes():
    results = pool.each(range(100), process_id, 2, silent)
    next(results)
    results.close()
    assert multiprocessing.active_children() == []


# Data


def test_data_are_prepared_once_and_what_cannot_be_had_fails_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    digits = {"workload": "lrm", "dataset": "digits", "batch_size": 64}
    runs = [
        Run(cell(tmp_path, "iid", **digits), 0),
        Run(cell(tmp_path, "shards", partition="shards:2", **digits), 0),
        Run(cell(tmp_path, "timing"), 0),
        Run(cell(tmp_path, "mnist", workload="lrm"), 0),
        Run(cell(tmp_path, "mnist_too", workload="2nn"), 0),
        Run(cell(tmp_path, "many", workers=30, **digits), 0),
    ]
    (tmp_path / "raw").mkdir()
    place, log = Place(tmp_path / "out", raw_dir="raw"), []
    able = sweep.prepare_data(runs, place, log.append)
    assert able == runs[:3]
    reasons = {run.cell.path.stem: place.store.read(run)["reason"] for run in runs[3:]}
    assert reasons["mnist"] == reasons["mnist_too"]
    assert reasons["mnist"].startswith("--raw_dir=raw: no mnist there")
    assert "one batch each takes 1920 samples" in reasons["many"]
    folders = sorted(path.name for path in Path("data").iterdir())
    assert folders == ["digits-pca50-iid-w6-b64-s0", "digits-pca50-shards2-w6-b64-s0"]
    files = {(Path("data") / folder / "train_x.npy").stat().st_ino for folder in folders}
    assert len(files) == 1
    log.clear()
    assert sweep.prepare_data(able, place, log.append) == able
    assert log == []


# Ranks


@pytest.mark.mpi
def test_a_run_that_fails_on_ranks_loses_no_other_run(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    flags = {"cluster": "mpi", "workers": 2, "delay": "exponential:mean=0.01"}
    good = cell(tmp_path, "good", **flags)
    bad = cell(tmp_path, "bad", **flags | {"delay": "exponential:mean=x"})
    large = cell(tmp_path, "large", **flags, workload=f"quadratic:dim={10**15}")
    three = cell(tmp_path, "three", **flags | {"workers": 3})
    runs = [Run(good, 0), Run(bad, 0), Run(three, 0), Run(good, 1), Run(large, 0), Run(good, 2)]
    place, begun = Place(tmp_path / "out"), []
    place.store.write(runs[3], rows.failed(runs[3], "an earlier time"))
    ended = {str(run): row for run, row in ranks.each(runs, place, begun.append)}
    assert {name: row["status"] for name, row in ended.items()} == {
        "try/good@0": "finished",
        "try/bad@0": "failed",
        "try/good@1": "finished",
        "try/large@0": "failed",
        "try/good@2": "finished",
        "try/three@0": "finished",
    }
    assert [str(run) for run in begun] == list(ended)
    assert ended["try/bad@0"]["reason"].startswith("--delay=exponential:mean=x: mean is 'x'")
    assert "MemoryError" in ended["try/large@0"]["reason"]
    assert ended["try/three@0"]["result"]["ranks"] == 3
    assert replace(runs[0].settings(), cluster="virtual") == Settings(
        workload="timing", delay="exponential:mean=0.01", iterations=30, workers=2
    )


@pytest.mark.mpi
def test_a_rank_that_is_killed_costs_one_run(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    flags = {"cluster": "mpi", "workers": 2, "delay": "constant:mean=0.05"}
    quick, slow = (
        cell(tmp_path, "quick", **flags),
        cell(tmp_path, "slow", iterations=10**6, **flags),
    )
    runs = [Run(quick, 0), Run(slow, 0), Run(quick, 1)]
    place, status = Place(tmp_path / "out"), {}
    for run, row in ranks.each(runs, place, silent):
        status[str(run)] = row["status"]
        if len(status) == 1:  # the next one is under way in the same ranks
            os.kill(_rank(str(tmp_path), 1), signal.SIGKILL)
    assert status == {"try/quick@0": "finished", "try/slow@0": "failed", "try/quick@1": "finished"}


def _rank(mark: str, number: int) -> int:
    """The process of a rank with `mark` on its command line."""
    for entry in Path("/proc").glob("[0-9]*"):
        if mark.encode() in (entry / "cmdline").read_bytes():
            variables = (entry / "environ").read_bytes().split(b"\0")
            if f"OMPI_COMM_WORLD_RANK={number}".encode() in variables:
                return int(entry.name)
    raise LookupError(f"no rank {number}")
