"""Real ranks are killed at random moments: the others notice, repair and finish."""

import pickle
import random
import re

import numpy as np
import pytest

from tests.mpirun import start
from tests.programs.killed import CASES, SAVED_EVERY, problem_of, virtually
from tests.test_mpi_losses import GOES_ON, RUNTIME

pytestmark = pytest.mark.mpi

ITERATIONS = 40
SECONDS = 120  # that a run may take; the machine may be busy

MOMENTS = [
    *[("mlr", seed) for seed in range(6)],
    *[("mlr full", seed) for seed in range(6, 8)],
    *[("lda", seed) for seed in range(8, 11)],
    *[("cb_full", seed) for seed in range(11, 13)],
    *[("cb_full neighbours", seed) for seed in range(13, 15)],
    *[("cb_dybw", seed) for seed in range(15, 18)],
    *[("cb_dybw drop", seed) for seed in range(18, 20)],
]


def schedule(folder, *tables):
    file = folder / "faults.toml"
    lines = [
        "\n".join(["[[fault]]", 'kind = "kill"', *(f"{key} = {value}" for key, value in t.items())])
        for t in tables
    ]
    file.write_text("\n\n".join(lines) + "\n")
    return str(file)


def kills(name, seed):
    """One or two of the ranks, at an iteration (even seeds) or at a time; at least one by its
    iteration where both happen."""
    rng = random.Random(seed)
    case = CASES[name]
    mortal = [*range(1, case.workers), *range(case.workers, case.workers + case.servers - 1)]
    ranks = sorted(rng.sample(mortal, rng.choice([1, 2, 2])))
    if seed % 2 == 0:  # where what was saved last has had the time to be written
        moments = range(SAVED_EVERY - 2, ITERATIONS, SAVED_EVERY)
        return [{"ranks": [rank], "iteration": rng.choice(moments)} for rank in ranks]
    return [{"ranks": [rank], "time": round(rng.uniform(0, 0.5), 3)} for rank in ranks]


def killed(folder, name, *tables):
    case = CASES[name]
    file, ranks = schedule(folder, *tables), case.workers + case.servers
    run = start(ranks, "killed.py", name, str(ITERATIONS), file, str(folder), seconds=SECONDS)
    assert not run.process_left
    run.said = [line for line in run.stderr.splitlines() if not RUNTIME.fullmatch(line)]
    return run, file


@pytest.mark.parametrize(("name", "seed"), MOMENTS)
def test_the_others_finish_when_ranks_are_killed_at_a_random_moment(tmp_path, name, seed):
    tables = kills(name, seed)
    print(f"seed {seed}: {tables}")
    run, file = killed(tmp_path, name, *tables)
    assert run.returncode == 0, run.stderr
    parts = pickle.loads((tmp_path / "result.pickle").read_bytes())
    dead = [rank for table in tables for rank in table["ranks"]]
    lost = [rank for rank, part in enumerate(parts) if part is None]
    by_iteration = "iteration" in tables[0]
    assert set(lost) == set(dead) if by_iteration else set(lost) <= set(dead)
    assert sorted(line.partition(" in ")[0] for line in run.said) == [
        f"rank {rank} was lost" for rank in lost
    ]
    assert all(re.fullmatch(GOES_ON.format(r"\d+"), line) for line in run.said)
    assert {part[0] for part in parts if part} == {ITERATIONS}
    recovered = parts[0][2]
    assert all(set(ranks) <= set(lost) for _, ranks in recovered)
    if CASES[name].servers:
        learnt_as_it_should(name, parts, file if by_iteration else None, recovered)
    else:
        averaged_as_it_should(parts)


def learnt_as_it_should(name, parts, file, recovered):
    """For kills by iteration the model is the virtual cluster's bit for bit."""
    workers = CASES[name].workers
    living = [part[1] for part in parts[:workers] if part]
    assert all(w.tobytes() == living[0].tobytes() for w in living)
    problem = problem_of(CASES[name])
    first = problem.initial(np.random.default_rng(3))
    assert problem.criterion(living[0]) < problem.criterion(first)
    if file:
        states, said = virtually(name, ITERATIONS, file)
        assert living[0].tobytes() == states[0].w.tobytes()
        assert recovered == said.recovered


def averaged_as_it_should(parts):
    """Rows are symmetric wherever both ends have averaged, and sum to 1."""
    rows = {(k, j): row for part in parts if part for k, j, row in part[3]}
    for (k, j), row in rows.items():
        assert abs(sum(row.values()) - 1) < 1e-12
        for i in row:
            if (k, i) in rows:
                assert rows[k, i][j] == row[i]
    assert max(k for k, _ in rows) >= ITERATIONS - 2


@pytest.mark.parametrize(("name", "rank"), [("mortal", 4), ("mortal cb_full", 2)])
def test_without_recovery_a_death_ends_the_run_with_one_line(tmp_path, name, rank):
    run, _ = killed(tmp_path, name, {"ranks": [rank], "iteration": 7})
    assert run.returncode == 1
    (line,) = run.said
    assert re.fullmatch(rf"rank {rank} was lost in iteration \d+; the run ends", line)


def test_a_graph_that_falls_apart_ends_the_run_with_one_line(tmp_path):
    run, _ = killed(tmp_path, "path", {"ranks": [2], "iteration": 7})
    assert run.returncode == 1
    *_, line = run.said
    assert line == (
        "the graph has fallen apart: no path connects the living workers 0, 1, 3, 4, 5; "
        "the run ends"
    )
