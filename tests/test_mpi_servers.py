"""The invariants of all algorithms with parameter servers, on 3 workers and 1 or 2 servers."""

import pickle

import numpy as np
import pytest

from tests import simulation_server
from tests.mpirun import start
from tests.programs.servers import CELLS, CUT_EVERY, ITERATIONS, SEED, plan_of, problem_of
from tests.runs import on_ranks, result
from tests.runs import run as replayed
from tests.simulation_server import Scenario, Story, check_story

pytestmark = pytest.mark.mpi

WORKERS = 3


def told(parts):
    """The story of all ranks."""
    whole = Story()
    for rank, (story, *_) in enumerate(parts):
        whole.resumed += story.resumed
        whole.models |= story.models
        if rank < WORKERS:
            whole.pushed[rank] = story.pushed[rank]
        else:
            whole.updates[rank], whole.commits[rank] = story.updates[rank], story.commits[rank]
    return whole


def model(states):
    return np.concatenate([state.w for state in states[WORKERS:]])


def on_virtual_cluster(algorithm, servers):
    plan = plan_of(WORKERS, "carry")
    scenario = Scenario(SEED, algorithm, plan, servers, "exponential:mean=1", {})
    return list(simulation_server.run(scenario).states.values())


@pytest.mark.parametrize("servers", [1, 2])
def test_every_shard_has_every_gradient_when_and_as_often_as_the_algorithm_says(servers, tmp_path):
    out = tmp_path / "found"
    run = start(WORKERS + servers, "servers.py", str(servers), str(out))
    assert run.returncode == 0, run.stderr
    assert not run.process_left
    with open(out, "rb") as file:
        found = pickle.load(file)
    assert [(algorithm, policy) for algorithm, policy, _ in found] == CELLS
    for algorithm, policy, parts in found:
        print(algorithm, policy)  # shown when the test fails
        _, cuts, states, resumed = zip(*parts, strict=True)
        story = told(parts)
        plan, problem = plan_of(WORKERS, policy), problem_of(WORKERS, servers)
        check_story(algorithm, plan, servers, problem, story, ITERATIONS)
        assert {state.k for state in states + resumed} == {ITERATIONS}
        at_cuts = list(range(CUT_EVERY, ITERATIONS, CUT_EVERY))
        assert all(list(of_rank) == at_cuts for of_rank in cuts)
        assert len(story.resumed) == len(parts) * len(at_cuts)
        if algorithm == "bsp":
            assert model(resumed).tobytes() == model(states).tobytes()
            virtual = on_virtual_cluster("bsp", servers)
            assert model(virtual).tobytes() == model(states).tobytes()


@pytest.mark.parametrize("flags", [("ssp", "carry", 2), ("dbw", "drop", 1)])
def test_a_recorded_run_with_servers_is_replayed_bit_for_bit(flags, tmp_path):
    algorithm, policy, servers = flags
    done = on_ranks(
        WORKERS + servers,
        f"--workers={WORKERS}",
        cwd=tmp_path,
        algorithm=algorithm,
        straggler_policy=policy,
        servers=servers,
        workload="quadratic:dim=20",
        delay="exponential:mean=0.003",
        iterations=30,
        checkpoint_every=7,
        run_dir="run",
    )
    assert result(done)["iterations"] == 30
    again = replayed(replay=str(tmp_path / "run"))
    assert again["replay_identical"]
    assert again["parameters_sha256"] == result(done)["parameters_sha256"]
