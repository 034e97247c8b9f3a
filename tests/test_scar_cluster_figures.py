"""Cells, figures and verdicts of ranks that really die: they show what the rows say."""

import math
from pathlib import Path

import matplotlib.pyplot as plt
import networkx as nx
import pytest

from cbdybw import topology
from cbdybw.clusters import faults
from cbdybw.errors import FallenApart
from experiments import cells, ranks, sweep, train
from experiments.cells import Run
from experiments.reading import Result
from experiments.rows import collect, collected
from experiments.scar import claims_cluster, cluster_cells, consensus, failures, real
from experiments.settings import Settings
from experiments.sweep import Place
from tests.made_up import row

HALF, WORKER, TWO = (
    cluster_cells.FAULTS.format(f) for f in ("half-of-servers", "one-worker", "two-workers")
)
MLR = {"workload": "mlr", "dataset": "mnist", "pca": 0, "target_loss": 0.54}
FULL = cluster_cells.FULL


def run(cell, at, seed=0, lost=(), noticed=0.25, sha="a", **flags):
    """A run at its criterion after iteration `at`, of half a second each; its ranks are killed when
    iteration 28 begins, and go on a tenth of a second after the notice."""
    made = row(cell, seed, **flags)
    made["curve"] = {
        "iteration": list(range(101)),
        "clock_seconds": [0.5 * k for k in range(101)],
        "train_loss": [math.exp(-k / 50) + (0.1 if lost and k > 28 else 0) for k in range(101)],
        "test_error": [0.1] * 101,
        "consensus_distance": [0.0] * 101,
    }
    loss = {"iteration": 28, "lost": list(lost), "noticed_seconds": 14 + noticed}
    loss |= {"resumed_seconds": 14.1 + noticed}
    if flags.get("cluster") == "mpi":
        loss |= {"killed_seconds": 14.0}
    made["result"] |= {
        "iterations_to_target": at,
        "time_to_target": None if at is None else 0.5 * at,
        "recoveries": [loss] if lost else [],
        "lost": list(lost),
        "parameters_sha256": sha,
    }
    return made


def served(cluster, which, at, **more):
    """A run of group `real`."""
    flags = {**cluster_cells.SERVED, **MLR, **cluster_cells.SCHEMES[which], "cluster": cluster}
    if cluster == "mpi":
        flags |= {"run_dir": "runs/x"}
    lost = {"clean": (), "worker": (2,)}.get(which, (4, 6))
    return run(f"real/mlr-{which}-{cluster}", at, lost=lost, **flags | more)


def killed(measured, simulated=(60, 61, 64, 60), **more):
    """All schemes on both clusters; iterations to the criterion in the order of SCHEMES."""
    return [
        served(cluster, which, at, **(more if cluster == "mpi" else {}))
        for cluster, found in (("mpi", measured), ("virtual", simulated))
        for which, at in zip(real.SCHEMES, found, strict=True)
    ]


def graph(recovery, at, algorithm="cb_full", workers=6, **more):
    """A run of group `consensus`."""
    on, _ = cluster_cells.LOSES[workers]
    flags = cluster_cells.CONSENSUS | {"algorithm": algorithm, "workers": workers, "graph": on}
    if recovery:
        flags |= {"recovery": recovery, "faults": WORKER if workers == 6 else TWO}
    lost = ((4,) if workers == 6 else (4, 7)) if recovery else ()
    return run(f"consensus/{workers}-{algorithm}-{recovery}", at, lost=lost, **flags | more)


COSTS = {"without": 2, "neighbour": 1, "partial": 2, "full": 5}


def workers(**changed):
    """One of six is lost, in three seeds with different failure-free runs."""
    return [
        made
        for seed in range(3)
        for made in (
            graph("", 50 + seed, seed=seed),
            *(graph(r, 50 + seed + c, seed=seed) for r, c in (COSTS | changed).items()),
        )
    ]


def widths(axes):
    return [patch.get_width() for patch in axes.patches if patch.get_width()]


# Reading


def test_a_cost_is_beyond_the_run_without_failure_of_the_same_seed():
    a, b = ([Result(r) for r in rows] for rows in (
        [graph("full", 57, seed=1), graph("full", 49, seed=2), graph("full", 60, seed=5)],
        [graph("", 50, seed=1), graph("", 52, seed=2)],
    ))  # fmt: skip
    assert failures.costs(a, b) == {1: 7, 2: -3}
    assert failures.costs(a, b, failures.SECONDS) == {1: 3.5, 2: -1.5}


def test_who_never_comes_to_the_criterion_has_no_cost():
    (lost,), (clean,) = [Result(graph("full", None))], [Result(graph("", 50))]
    assert math.isnan(failures.costs([lost], [clean])[0])


def test_schemes_are_told_by_what_is_lost_and_how_it_is_recovered():
    for cluster in real.CLUSTERS:
        for which in real.SCHEMES:
            assert real.scheme(Result(served(cluster, which, 60))) == which


# Figures


def test_measured_costs_stand_beside_simulated_ones():
    figure = real.draw(killed((60, 62, 65, 60)))["real-1-costs"]
    iterations, seconds = figure.axes
    assert widths(iterations) == [2, 1, 5, 4]  # a worker's loss costs nothing
    assert widths(seconds) == [30, 30, 31, 30.5, 32.5, 32, 30, 30]
    plt.close("all")


def test_one_failure_is_shown_from_the_kill_on():
    figure = real.draw(killed((60, 62, 65, 60)))["real-2-failure"]
    (axes,) = figure.axes
    says = [text.get_text() for text in axes.get_legend().get_texts()]
    assert len(says) == 2
    assert says[0].endswith("noticed after 0.250 s, going on after 0.350 s")
    assert axes.lines[0].get_xdata().tolist() == [-0.5, 0.0, 0.5, 1.0, 1.5]


def test_without_ranks_there_is_no_picture_of_a_failure():
    assert list(real.draw(killed((60, 62, 65, 60))[4:])) == ["real-1-costs"]


def test_the_table_has_a_line_for_each_run_on_ranks():
    rows = killed((60, 62, 65, 60))
    rows[1]["result"]["parameters_sha256"] = "another"
    head, *lines = real.table(rows)
    assert len(lines) == 4
    assert lines[1][2:] == ["0", "4, 6", "0.250 s", "0.350 s", "62", "61", "2", "1", "no"]
    assert lines[2][6:] == ["65", "64", "5", "4", "yes"]
    assert {len(head)} == {len(line) for line in lines}
    assert real.table(rows[:4])[3][6:] == ["65", "–", "5", "–", "–"]


def test_costs_of_lost_workers_are_means_over_seeds():
    figures = consensus.draw(workers())
    assert list(figures) == ["consensus-1-costs", "consensus-2-loss"]
    iterations, seconds = figures["consensus-1-costs"].axes
    assert widths(iterations) == [2, 1, 2, 5]
    assert widths(seconds) == [1, 0.5, 1, 2.5]
    assert iterations.get_title(loc="left") == "1 of 6 workers lost: cost in iterations"
    (axes, _) = figures["consensus-2-loss"].axes
    k, excess = axes.lines[0].get_data()
    assert excess[k == 0] == 0
    assert excess[k == 1] == pytest.approx(0.1)
    plt.close("all")


def test_two_sizes_have_a_line_of_panels_each():
    rows = workers() + [graph(r, 70, workers=10) for r in ("", *COSTS)]
    titles = [a.get_title(loc="left") for a in consensus.draw(rows)["consensus-1-costs"].axes]
    assert [t.partition(" workers")[0] for t in titles] == ["1 of 6"] * 2 + ["2 of 10"] * 2
    plt.close("all")


# Verdicts


@pytest.mark.parametrize(
    ("noticed", "at", "verdict"),
    [(0.25, 62, "reproduced"), (1.5, 62, "not reproduced"), (0.25, None, "reproduced under")],
)
def test_a_death_is_noticed_in_time_if_the_run_then_comes_to_its_end(noticed, at, verdict):
    v = claims_cluster.noticed({"real": killed((60, at, 65, 60), noticed=noticed)})
    assert v["verdict"].startswith(verdict)
    assert f"at most {noticed + 0.1:.2g} s" in v["ours"]


@pytest.mark.parametrize(
    ("measured", "verdict"),
    [
        ((60, 62, 64, 60), "reproduced"),
        ((60, 64, 64, 60), "reproduced under MLR, MNIST · traditional and MLR, MNIST · a worker"),
        ((60, 61, 65, 60), "reproduced under MLR, MNIST · SCAR and MLR, MNIST · a worker"),
    ],
)
def test_a_cost_is_the_simulated_one_but_for_a_save_on_its_way(measured, verdict):
    v = claims_cluster.as_simulated({"real": killed(measured)})
    assert v["verdict"] == verdict
    assert "equal bit for bit in 3 of 3 runs" in v["ours"]


def test_running_checkpoints_pay_if_the_criterion_is_met_sooner():
    v = claims_cluster.outweighed({"real": killed((60, 62, 65, 60))})
    assert v["verdict"] == "reproduced"
    assert "MLR, MNIST: 1.50 s (n=1). Iterations sooner: MLR, MNIST 3.0" in v["ours"]
    v = claims_cluster.outweighed({"real": killed((60, 66, 65, 60))})
    assert v["verdict"] == "not reproduced"


@pytest.mark.parametrize(
    ("neighbour", "verdict"),
    [(1, "reproduced"), (3, "reproduced under cb-Full of 6 · full"), (6, "not reproduced")],
)
def test_neighbours_do_if_no_checkpoint_costs_less(neighbour, verdict):
    v = claims_cluster.neighbours_do({"consensus": workers(neighbour=neighbour)})
    assert v["verdict"] == verdict


# Cells


@pytest.mark.parametrize("workers", cluster_cells.LOSES)
def test_graphs_hold_together_without_those_whom_the_file_kills(workers):
    spec, file = cluster_cells.LOSES[workers]
    doomed = [f.rank for f in faults.read(cluster_cells.FAULTS.format(file), workers, 0).faults]
    assert len(doomed) == (1 if workers == 6 else 2)
    for seed in range(20):
        left = topology.build(spec, workers, seed)
        left.remove_nodes_from(doomed)
        assert nx.is_connected(left), f"seed {seed}"


def test_the_iteration_of_the_loss_is_not_one_of_a_full_checkpoint():
    for path in (HALF, WORKER, TWO):
        (at,) = {f.iteration for f in faults.read(path, 10, 4).faults}
        assert at % Settings().checkpoint_period == 4


def test_flags_on_ranks_are_those_of_the_virtual_cluster():
    every = {cell.name: Run(cell, 0).settings() for cell in cells.load("scar")
             if cell.group == "real"}  # fmt: skip
    pairs = [(s, every[n.replace("-mpi", "-virtual")]) for n, s in every.items() if "-mpi" in n]
    assert len(pairs) == 12
    for mpi, virtual in pairs:
        differing = {line.partition("=")[0] for line in mpi.differing(virtual, besides=())}
        assert differing == {"--cluster", "--run_dir"}


def test_a_graph_that_falls_apart_ends_the_run_with_a_line(tmp_path):
    file = tmp_path / "faults.toml"
    file.write_text('[[fault]]\nkind = "kill"\nranks = [2, 5]\niteration = 5\n')
    settings = Settings(
        workload="quadratic", delay="constant:mean=1", recovery="without", faults=str(file)
    )
    with pytest.raises(FallenApart) as told:
        train.run(settings, print)
    assert "\n" not in str(told.value)


# Sweeps


HEAD = "# scales: smoke seeds 0-1\n# run time: 1 s\n"
QP = "--algorithm=scar\n--workload=qp\n--workers=2\n--servers=2\n--iterations=12\n"


def cell(folder, name, text):
    path = Path(folder, "try", f"{name}.flags")
    path.parent.mkdir(exist_ok=True)
    path.write_text(HEAD + QP + text)
    return cells.read(path)


def test_a_run_that_needs_a_folder_has_one_while_it_goes_on(tmp_path):
    named = tmp_path / "named"
    first = Run(cell(tmp_path, "a", f"--run_dir={named}\n"), 0)
    place = Place(tmp_path / "out")
    left = place.out / sweep.RUNS / first.key
    left.mkdir(parents=True)
    (left / "flags.txt").write_text("of a sweep that was killed")
    sweep.in_this_process([first], place)
    kept = place.store.read(first)
    assert (kept["status"], kept["flags"]["run_dir"]) == ("finished", str(named))
    assert not named.exists()
    assert not left.exists()


@pytest.mark.mpi
def test_runs_that_lose_ranks_have_ranks_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    file = tmp_path / "faults.toml"
    file.write_text('[[fault]]\nkind = "kill"\nranks = [3]\niteration = 5\n')
    text = "--cluster=mpi\n--delay=constant:mean=0.01\n--run_dir=x\n"
    losing = cell(tmp_path, "losing", f"{text}--faults={file}\n")
    runs = [Run(losing, 0), Run(losing, 1), Run(cell(tmp_path, "whole", text), 0)]
    place = Place(tmp_path / "out")
    ended = {str(run): made for run, made in ranks.each(runs, place, lambda run: None)}
    assert {made["status"] for made in ended.values()} == {"finished"}
    for seed in (0, 1):
        result = Result(ended[f"try/losing@{seed}"])
        ((killed, noticed, resumed),) = failures.repairs(result)
        assert killed < noticed <= resumed
        assert result.row["result"]["lost"] == [3]
    assert failures.repairs(Result(ended["try/whole@0"])) == []
    assert list((place.out / sweep.RUNS).iterdir()) == []
    collect(ended.values(), place.out)
    assert len(collected(place.out)["try"]) == 3
