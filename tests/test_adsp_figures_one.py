"""Figures of ADSP's three workers, of its commit rate and of its ranks show what the rows say."""

import subprocess
import sys

import numpy as np
import pytest

from cbdybw.clusters import network
from experiments import cell_files, cells, prediction
from experiments.adsp import momentum, mpi, namespaces, split
from experiments.reading import Result, read
from experiments.settings import Settings
from tests.made_up import row

RATIO = "machines:path=experiments/adsp/machines/ratio.toml,jitter=0"
LINKS = "latency=0.01,bandwidth=12.5e6"
COMMIT = (16 + 4 * 148_298) / 12.5e6 + 0.01  # seconds that one message with the CNN travels


def timed(algorithm, steps, computing=(50.0,) * 3, seed=0, **more):
    """100 s of three workers that learn nothing."""
    flags = {"workload": "timing:parameters=148298", "delay": RATIO, "network": LINKS, "workers": 3}
    made = row(f"split/ratio-{algorithm}", seed, algorithm=algorithm, **flags | more)
    made["result"] |= {
        "gradients_used": steps,
        "computing_seconds": list(computing),
        "waiting_seconds": [100.0 - c for c in computing],
    }
    return made


def learnt(algorithm, **more):
    """The same, on MNIST."""
    return timed(algorithm, **more) | {"cell": f"split/three-{algorithm}"}


def texts(figure, panel=0):
    return [text.get_text() for text in figure.axes[panel].texts]


# Where time goes


def test_the_models_have_as_many_parameters_as_they_should():
    sizes = {"2nn:width=64": 8_074, "2nn": 81_418, "lrm": 510, "timing:parameters=148298": 148_298}
    for workload, size in sizes.items():
        assert split.parameters(Settings(workload=workload, pca=50)) == size


def test_a_commit_takes_its_bytes_both_ways_and_two_latencies():
    s = Result(timed("adsp", 400)).settings
    assert split.overhead(s) == pytest.approx(2 * COMMIT)
    three_answers = COMMIT + 3 * (COMMIT - 0.01) + 0.01
    assert split.overhead(s, answers=3) == pytest.approx(three_answers)


def test_shares_are_of_the_mean_worker_and_what_commits_take_is_not_waiting():
    made = timed("adsp", 400, computing=(90.0, 80.0, 70.0))
    made["result"] |= {"commits": [10, 20, 30]}
    got = split.shares(read([made, timed("adsp", 0, computing=(60.0,) * 3, seed=1)]))
    assert got.computing.mean == pytest.approx((0.8 + 0.6) / 2)
    assert got.communicating.mean == pytest.approx(20 * 2 * COMMIT / 100 / 2)
    assert sum(share.mean for share in got) == pytest.approx(1)


def test_who_only_computes_and_pushes_communicates_no_longer_than_there_is_time():
    got = split.shares(read([timed("ssp", 3_000, computing=(98.0,) * 3)]))
    assert got.communicating.mean == pytest.approx(0.02)
    assert got.waiting.mean == pytest.approx(0)


def test_published_shares_stand_in_the_bars_in_the_papers_order():
    found = [learnt(a, steps=100, workload="lrm") for a in ("adsp", "bsp", "fixed_adacomm")]
    axes = split.draw(found)["split-1-time"].axes[0]
    assert [t.get_text() for t in axes.get_yticklabels()] == ["BSP", "Fixed ADACOMM", "ADSP"]
    published = [line.get_xdata()[0] for line in axes.lines if line.get_marker() == "D"]
    assert published == pytest.approx([4.73, 43.66, 93.79], abs=0.02)


# Steps per second


def test_the_law_has_the_speeds_of_the_machines_and_what_commits_cost():
    def law(algorithm, **more):
        return split.law(Result(timed(algorithm, 0, **more)).settings)

    assert law("adsp", commit_rate=4) == pytest.approx(14 / 3 * (1 - 4 * 2 * COMMIT / 60))
    answered = split.overhead(Result(timed("bsp", 0)).settings, answers=3)
    assert law("bsp") == law("ssp") == pytest.approx(3 / (1.5 + answered))
    assert law("fixed_adacomm", tau=40) == pytest.approx(120 / (60 + answered))
    assert np.isnan(law("adacomm"))
    assert np.isnan(law("adsp"))  # the search sets the rate
    slower = law("bsp", network="", delay=RATIO.replace("jitter=0", "jitter=0.2,scale=2"))
    assert slower == pytest.approx(3 / (1.5 * 2 * 1.1))


def test_the_deviation_from_the_law_and_the_ratio_to_bsp_stand_in_the_figure():
    bsp, adsp = timed("bsp", 220, network=""), timed("adsp", 420, network="", commit_rate=4)
    figure = split.draw([bsp, adsp, timed("adacomm", 150)])["split-2-throughput"]
    said = texts(figure)
    assert said[0] == "2.200   law 2.000, +10.0%"
    assert said[1] == "1.500   no law: τ changes"
    assert said[2] == "4.200   law 4.667, -10.0%"
    title = figure.axes[0].get_title(loc="left")
    assert title == "ADSP/BSP: 1.91; by the laws 2.33; if commits took no time, H = 2.33"


# The commit rate


def committed(rate, seed, first, tenth, loss=0.2):
    machines = "machines:path=experiments/adsp/machines/eighteen.toml,heterogeneity=3.2,jitter=0"
    flags = {"workers": 18, "delay": machines, "commit_rate": rate, "target_loss": 0.25}
    made = row(f"momentum/rate-{rate}", seed, algorithm="adsp", max_time=1000.0, **flags)
    made["result"] |= {"held_out_time_to_target": first, "held_out_tenth_time": tenth}
    made["result"] |= {"held_out_loss": loss}
    return made


def test_times_to_the_target_are_means_and_a_rate_that_misses_it_is_marked():
    rows = [committed(1, 0, 300.0, 330.0), committed(1, 1, 340.0, 350.0)]
    rows += [committed(4, 0, 200.0, 220.0), committed(4, 1, None, None)]
    one, four = momentum.found(rows)
    assert (one.first.mean, one.tenth.mean) == (320.0, 340.0)
    assert np.isnan(four.first.mean)
    figure = momentum.draw(rows)["momentum"]
    assert "×\n1/2" in texts(figure, 1)
    lines = [line.get_xydata().tolist() for line in figure.axes[1].lines]
    assert [[1.0, 300.0], [4.0, 200.0]] in lines  # the first seed's


def test_nobody_reaching_the_target_is_a_figure_too():
    figure = momentum.draw([committed(2, 0, None, None)])["momentum"]
    assert "×\n0/1" in texts(figure, 1)


def test_momentum_by_the_theorem_is_that_of_each_unit():
    authors, minutes, seconds = momentum.theory(Result(committed(1, 0, 1.0, 1.0)).settings).values()
    assert sum(authors) == pytest.approx(0.9)
    assert minutes[0] == pytest.approx(0.71 / 60)
    assert np.array(seconds) == pytest.approx(3600 * np.array(minutes))


# Ranks


def on_both(algorithm, measured, predicted, group="mpi", **flags):
    found = []
    for cluster, steps in (("mpi", measured), ("virtual", predicted)):
        found.append(timed(algorithm, steps, cluster=cluster, network="", **flags))
        found[-1]["cell"] = f"{group}/{algorithm}-{cluster}"
        found[-1]["result"] |= {"commits": [steps // 10] * 3, "mean_iteration_seconds": 20 / steps}
    return found


def test_predictions_of_steps_commits_and_iterations_stand_beside_their_points():
    rows = [
        *on_both("adsp", 400, 380),
        *on_both("bsp", 200, 210),
        timed("ssp", 1, cluster="mpi", network=""),
    ]
    figure = mpi.draw(rows)["mpi"]
    assert texts(figure, 0) == ["BSP +5.0 %", "ADSP -5.0 %"]
    assert texts(figure, 1) == ["BSP +5.0 %", "ADSP -5.0 %"]
    assert texts(figure, 2) == ["ADSP +5.3 %", "BSP -4.8 %"]
    for axes in figure.axes:
        assert "virtual" in axes.get_xlabel()
        assert "wall" in axes.get_ylabel()


def test_ranks_behind_links_have_a_figure_of_their_own():
    rows = on_both("adsp", 400, 380, group="links")
    assert list(mpi.draw(rows)) == ["links"]
    (point,) = prediction.points(rows, split.commits_per_second)
    assert (point.measured.mean, point.predicted.mean) == (0.4, 0.38)


@pytest.mark.parametrize("module", [split, momentum, mpi])
def test_what_rows_do_not_contain_is_not_drawn(module):
    failed = {"cell": "split/x", "seed": 0, "flags": {}, "status": "failed", "reason": "no"}
    assert module.draw([]) == module.draw([failed]) == {}


# Namespaces


def test_rates_of_the_namespaces_are_those_that_the_virtual_cluster_reads():
    assert namespaces.rates() == {0: 2.5e6, 1: 12.5e6, 2: 12.5e6, 3: 12.5e6}
    s = Settings(workload="timing:parameters=625000", workers=3, algorithm="bsp")
    for rank, rate in list(namespaces.rates().items())[:3]:
        links = network.parse(f"links={namespaces.LINKS}", 4, 0)
        m = split.Message(split.Kind.PUSH, 0, rank, vector=split.Weightless(2_500_000))
        assert links.arrival(rank, 3, m, 0.0)[0] == pytest.approx(2_500_016 / rate)
    assert s.ranks == 4


def test_both_clusters_run_the_same_but_for_the_links(tmp_path):
    cell_files.rewrite(tmp_path, namespaces.flag_files())
    read_back = [cells.read(path) for path in sorted(tmp_path.glob("links/*"))]
    names = [cell.name for cell in read_back]
    assert len(names) == 2 * len(namespaces.ALGORITHMS)
    by_name = {cell.name: cells.Run(cell, 0).settings() for cell in read_back}
    for algorithm in namespaces.ALGORITHMS:
        measured, predicted = (by_name[f"links/{algorithm}-{c}"] for c in ("mpi", "virtual"))
        differing = measured.differing(predicted, besides=())
        assert {line.split("=")[0] for line in differing} <= {"--cluster", "--network"}


def test_without_its_programs_it_says_what_is_missing_and_nothing_is_wrong(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "experiments.adsp.namespaces", f"--out={tmp_path}"],
        env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    last = done.stdout.splitlines()[-1]
    assert last == "skipped: no network namespaces here (the program ip is not installed)"
