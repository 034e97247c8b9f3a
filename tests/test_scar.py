"""SCAR at parameter servers: exact costs, and a message-free second way to every model."""

import json

import numpy as np
import pytest

from cbdybw.algorithms.plan import Plan, State, Survival
from cbdybw.algorithms.scar import scar
from cbdybw.clusters.faults import Schedule
from cbdybw.clusters.network import Network
from cbdybw.clusters.trace import Trace
from cbdybw.clusters.virtual import VirtualCluster
from cbdybw.clusters.watch import KILL, Fault
from cbdybw.clusters.worker import keyed_rng
from cbdybw.errors import BadInput, PeerLost
from cbdybw.learning.qp import QuadraticProgram
from cbdybw.problem import iterate
from cbdybw.scar import recovery
from cbdybw.scar.blocks import partition
from cbdybw.scar.checkpoint import Memory, RunningCheckpoint
from experiments import survival, train
from experiments.settings import Settings
from tests.runs import binary

QP = {
    "algorithm": "scar",
    "workload": "qp",
    "workers": 3,
    "servers": 4,
    "eval_every": 1,
    "iterations": 100,
    "target_loss": 0.001,
    "checkpoint_policy": "full",
    "checkpoint_period": 8,
}


def kill(folder, *deaths):
    """A file in which (ranks, iteration) die."""
    tables = [f'[[fault]]\nkind = "kill"\nranks = {r}\niteration = {k}\n' for r, k in deaths]
    (folder / "faults.toml").write_text("\n".join(tables))
    return str(folder / "faults.toml")


def trained(**flags):
    return train.run(Settings(**QP | flags), log=lambda line: None)


def test_without_failures_the_quadratic_program_takes_64_iterations():
    result = trained()
    assert (result["iterations_to_target"], result["recoveries"]) == (64, [])


@pytest.mark.parametrize(("last", "cost"), [(24, 0), (30, 6), (31, 7), (32, 0), (39, 7)])
def test_full_recovery_costs_what_has_passed_since_the_last_full_checkpoint(tmp_path, last, cost):
    result = trained(recovery="full", faults=kill(tmp_path, ([3, 5], last)))
    assert result["iterations_to_target"] == 64 + cost == 64 + last % 8
    (recovered,) = result["recoveries"]
    assert (recovered["iteration"], recovered["lost"]) == (last, [3, 5])
    assert recovered["noticed_seconds"] == pytest.approx(0.02)


def test_partial_recovery_costs_less_and_priority_less_again(tmp_path):
    flags = {"workload": "qp:dim=64", "faults": kill(tmp_path, ([3, 5], 31))}
    eighths = {"checkpoint_policy": "priority", "checkpoint_fraction": 0.125}
    clean = trained(workload="qp:dim=64")["iterations_to_target"]
    costs = [
        trained(**flags, **scheme)["iterations_to_target"] - clean
        for scheme in ({"recovery": "full"}, {}, eighths)
    ]
    assert costs == [7, 3, 1]


def test_a_worker_that_dies_costs_nothing_where_its_share_is_taken_over(tmp_path):
    clean, hurt = trained(), trained(faults=kill(tmp_path, ([1], 20), ([2], 40)))
    assert (hurt["iterations_to_target"], hurt["lost"]) == (64, [1, 2])
    assert [r["iteration"] for r in hurt["recoveries"]] == [20, 40]
    assert hurt["train_loss"] == pytest.approx(clean["train_loss"], rel=1e-4)
    assert hurt["gradients_used"] == 20 * 3 + 20 * 2 + 60


def test_a_server_that_dies_before_anything_is_computed_is_made_good(tmp_path):
    result = trained(faults=kill(tmp_path, ([4], 0)))
    assert result["iterations_to_target"] == 64  # x(0) was saved


def test_without_recovery_a_death_ends_the_run_with_one_line(tmp_path):
    run = binary(cwd=tmp_path, **QP, recovery="none", faults=kill(tmp_path, ([5], 30)))
    assert (run.returncode, run.stdout) == (1, "")
    assert run.stderr == "rank 5 was lost in iteration 30; the run ends\n"


# A second way, without messages


ITERATIONS, SERVERS, WORKERS = 40, 4, 3
DEATHS = {7: [4], 19: [3, 6]}  # iteration → servers that die there


@pytest.mark.parametrize("policy", ["priority", "round", "random", "full"])
@pytest.mark.parametrize("mode", ["partial", "full"])
def test_every_model_is_that_of_a_loop_without_messages(policy, mode):
    problem = QuadraticProgram(23, 0.1, seed=4)
    rule = Survival(mode, 1 / 4, 8, policy, None, seed=11)
    assert_same(by_messages(problem, rule), in_a_loop(problem, rule))


def assert_same(one, other):
    assert len(one) == len(other) == ITERATIONS
    for k, (x, y) in enumerate(zip(one, other, strict=True)):
        assert x.tobytes() == y.tobytes(), f"x({k + 1})"


def by_messages(problem, rule):
    stores = {}
    rule = Survival(
        rule.recovery,
        rule.fraction,
        rule.period,
        rule.policy,
        lambda rank: stores.setdefault(rank, Memory(problem.blocks)),
        rule.seed,
    )
    plan = Plan([()] * WORKERS, (), 0, eta=float, iterations=ITERATIONS, survival=rule)
    models = []

    class Models:
        def record(self, rank, time, event, fields):
            if event == "update":
                models.append(fields["w"])

    faults = [Fault(KILL, rank, k) for k, ranks in DEATHS.items() for rank in ranks]
    cluster = VirtualCluster(
        WORKERS + SERVERS,
        delay=lambda rank, index: 1.0 + rank / 8,
        network=Network(latency=0.001),
        seed=5,
        trace=Trace(),
        recorder=Models(),
        servers=SERVERS,
        faults=Schedule(tuple(faults)),
    )
    x = problem.initial(np.random.default_rng(6))
    cluster.run(lambda worker: scar(worker, problem, plan, State(0, x)))
    return models


def in_a_loop(problem, rule):
    blocks, servers = problem.blocks, range(WORKERS, WORKERS + SERVERS)
    dealt = partition(len(blocks), SERVERS, keyed_rng(rule.seed, "partition", 0, 0))
    owner = np.array(servers)[dealt]
    heirs = recovery.heirs(owner, servers, keyed_rng(rule.seed, "heirs", 0, 0))
    x, models, dead = problem.initial(np.random.default_rng(6)), [], []
    stores = {s: Memory(blocks) for s in servers}
    held = {s: np.flatnonzero(owner == s) for s in servers}
    saved = {
        s: RunningCheckpoint(
            blocks,
            held[s],
            blocks.take(x, held[s]),
            fraction=rule.fraction,
            period=rule.period,
            policy=rule.policy,
            distance=problem.distance,
            rng=lambda k, s=s: keyed_rng(5, "checkpoint", s, k),
            store=stores[s],
        )
        for s in servers
    }
    for k in range(ITERATIONS):
        if k in DEATHS:
            dead += DEATHS[k]
            after = recovery.holders(heirs, dead)
            for s in set(servers) - set(dead):
                gained = np.setdiff1d(np.flatnonzero(after == s), held[s])
                packed, at = recovery.newest(list(stores.values()), gained)
                blocks.put(x, gained, packed)
                saved[s].gain(gained, packed, at, k)
                held[s] = np.union1d(held[s], gained)
                if rule.recovery == "full":
                    blocks.put(x, held[s], saved[s].cached)
            models[-1] = x.copy()  # y(k) is what the workers see of x(k)
        x = iterate(problem, x, k, WORKERS)
        for s in set(servers) - set(dead):
            if saved[s].due(k + 1):
                saved[s].save(blocks.take(x, held[s]), k + 1)
        models.append(x.copy())
    return models


@pytest.mark.parametrize(
    ("moments", "last"), [((4, 6), 2), ((6, 4), 1), ((4, 4), 1)], ids=["2", "1", "both at once"]
)
def test_the_loss_of_all_servers_ends_the_run(moments, last):
    problem = QuadraticProgram(4, 0.1, seed=4)
    stores = [Memory(problem.blocks) for _ in range(3)]
    rule = Survival("partial", 1.0, 8, "full", stores.__getitem__, 0)
    plan = Plan([()], (), 0, eta=float, iterations=9, survival=rule)

    class Silent:
        def record(self, *said):
            """Nothing is looked at."""

    cluster = VirtualCluster(
        3,
        delay=lambda rank, index: 1.0,
        network=Network(),
        seed=5,
        trace=Trace(),
        recorder=Silent(),
        servers=2,
        faults=Schedule(tuple(Fault(KILL, 1 + n, k) for n, k in enumerate(moments))),
    )
    x = np.ones(4, np.float32)
    with pytest.raises(PeerLost, match=f"rank {last} was lost") as ended:
        cluster.run(lambda worker: scar(worker, problem, plan, State(0, x)))
    k = max(moments)
    assert ended.value.__notes__ == [f"rank {last} was lost in iteration {k}; the run ends"]


# Flags that cannot be used


SERVED = {"algorithm": "scar", "workload": "qp", "servers": 2, "workers": 2}
GRAPH = {"algorithm": "cb_full", "workload": "quadratic"}


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (
            SERVED | {"recovery": "without"},
            "--recovery=without: not possible for --algorithm=scar; use none or partial or full",
        ),
        (
            {"algorithm": "adsp", "recovery": "full"},
            "--recovery=full: not possible for --algorithm=adsp; use none",
        ),
        (
            GRAPH | {"cluster": "mpi", "recovery": "neighbour"},
            "--recovery=neighbour: mpirun starts no new rank in the place of a lost one; "
            "use --recovery=without, or --cluster=virtual",
        ),
        (
            SERVED | {"cluster": "mpi"},
            "--recovery=partial: running checkpoints need a folder that all ranks share; "
            "give --run_dir",
        ),
        (
            GRAPH | {"workload": "timing", "recovery": "partial"},
            "--recovery=partial: --workload=timing has nothing to save; use neighbour",
        ),
        (
            GRAPH | {"checkpoint_policy": "auto"},
            "--checkpoint_policy=auto: is for --algorithm=scar; use priority or full",
        ),
        (
            SERVED | {"checkpoint_fraction": 0.0},
            "--checkpoint_fraction=0.0: use a number above 0, at most 1",
        ),
        (SERVED | {"lost_share": 1.5}, "--lost_share=1.5: use a number above 0, at most 1"),
        (SERVED | {"checkpoint_period": 0}, "--checkpoint_period=0: use 1 or more"),
        (SERVED | {"failure_rate": -1.0}, "--failure_rate=-1.0: use 0 … 1"),
        (
            SERVED | {"max_time": 5.0},
            "--max_time=5.0: needs every rank to the end, which --algorithm=scar "
            "--recovery=partial does without; leave it out",
        ),
        (
            GRAPH | {"recovery": "without", "checkpoint_every": 5, "run_dir": "runs"},
            "--checkpoint_every=5: needs every rank to the end, which --algorithm=cb_full "
            "--recovery=without does without; leave it out",
        ),
        (
            GRAPH | {"faults": "f.toml", "checkpoint_every": 5, "run_dir": "runs"},
            "--checkpoint_every=5: a cut does not know which --faults have struck; "
            "leave one of them out",
        ),
    ],
)
def test_flags_that_do_not_go_together_are_refused_with_one_line(flags, line):
    with pytest.raises(BadInput) as refused:
        survival.check(Settings(**flags))
    assert str(refused.value) == line


def test_a_damaged_file_needs_checkpoints_on_disk(tmp_path):
    file = tmp_path / "faults.toml"
    file.write_text('[[fault]]\nkind = "corrupt"\nranks = [2]\niteration = 3\n')
    with pytest.raises(BadInput, match="a corrupt file needs running checkpoints on disk"):
        survival.schedule(Settings(**SERVED, faults=str(file)))


def test_a_damaged_file_of_a_server_that_dies_is_no_silent_garbage(tmp_path):
    """Older copies stand in, or the run is refused: it never goes on from damaged values."""
    file = tmp_path / "faults.toml"
    tables = '[[fault]]\nkind = "{}"\nranks = [4]\niteration = {}\n'
    file.write_text(tables.format("corrupt", 20) + tables.format("kill", 22))
    run = binary(cwd=tmp_path, **QP, run_dir=tmp_path / "run", faults=str(file), recovery="partial")
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout.splitlines()[-1])["iterations_to_target"] >= 64
