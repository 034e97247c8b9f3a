"""Measuring links, cards and processors, and the files that the virtual cluster reads."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from cbdybw.clusters import delays, network
from cbdybw.clusters.launch import mpirun
from cbdybw.clusters.worker import Kind, Message
from cbdybw.problem import Weightless
from experiments import calibrate
from experiments.calibrate import Calibration
from experiments.calibration import Card, Link

ROOT = Path(__file__).parent.parent
FOUND = Calibration(
    hosts=["left", "right", "right"],
    links={(0, 1): Link(0.001, 2e6), (0, 2): Link(0.002, 4e6), (1, 2): Link(1e-5, 3e9)},
    cards=[Card(5e6, 7e6), Card(9e6, 9e6), Card(1e9, 1e9)],
    overheads=[1e-6, 2e-6, 3e-6],
    steps=[0.25, 0.5, 0.0],
)


def arrival(links: network.Network, source: int, dest: int) -> float:
    message = Message(Kind.UPDATE, 0, source, vector=Weightless(4_000_000))
    return links.arrival(source, dest, message, 0.0)[0]


def start(ranks: int, *flags: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "experiments.calibrate", *flags]
    argv, environ = mpirun(ranks, command) if ranks > 1 else (command, None)
    return subprocess.run(
        argv, env=environ, capture_output=True, text=True, timeout=120, cwd=ROOT, check=False
    )


def test_the_virtual_cluster_reads_what_was_measured(tmp_path):
    line = calibrate.written(FOUND, tmp_path)
    first, second = line.split()
    links = network.parse(first.removeprefix("--network="), 3, 0)
    assert links.shares
    assert arrival(links, 0, 1) == pytest.approx(0.001 + 4_000_016 / 2e6, rel=1e-4)  # its link
    links.forget()
    assert arrival(links, 2, 0) == pytest.approx(0.002 + 4_000_016 / 4e6, rel=1e-4)
    links.forget()
    assert arrival(links, 1, 2) == pytest.approx(1e-5 + 4_000_016 / 9e6, rel=1e-4)  # a card
    law = delays.parse(second.removeprefix("--delay="), 2, 0)
    assert [law(rank, 0) for rank in (0, 1)] == pytest.approx([0.25, 0.5], rel=0.1)  # of workers


def test_without_minibatches_there_is_no_file_of_machines(tmp_path):
    line = calibrate.written(FOUND._replace(steps=[0.0] * 3), tmp_path)
    assert line == f"--network=links={tmp_path / 'links.txt'}"
    assert [path.name for path in tmp_path.iterdir()] == ["links.txt"]


def test_the_table_fits_eighty_columns_with_sixteen_ranks_and_says_the_slowest_link():
    n = 16
    many = Calibration(
        ["a-host-with-quite-a-long-name.example.org"] * n,
        {(i, j): Link(12.5e-3, 1e6 * (i + j)) for i in range(n) for j in range(i + 1, n)},
        [Card(123.456e6, 98.765e6)] * n,
        [12.34e-6] * n,
        [0.123456] * n,
    )
    console = Console(file=io.StringIO(), width=80, color_system=None)
    console.print(calibrate.table(many))
    lines = console.file.getvalue().splitlines()
    assert len(lines) == n + 2
    assert max(map(len, lines)) <= 80
    assert "…" not in "".join(line[20:] for line in lines)
    assert lines[-1].split()[-7:] == ["98.77", "to", "0", "15", "12.5", "12.3", "123"]


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--dim=10"], "--out is missing; name a folder for the files"),
        (["--out=x", "--dim=0"], "dim"),
        (["--out=x", "--dim=10"], "1 MPI rank is running; start it with mpirun -n 2 or more"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_one_line(flags, says, tmp_path):
    done = start(1, *flags)
    assert done.returncode == 2
    assert says in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_a_path_that_a_flag_cannot_hold_is_refused_by_all_ranks_in_one_line(tmp_path):
    done = start(2, f"--out={tmp_path}/a,b", "--dim=10")
    assert done.returncode == 2
    assert "a comma ends the path" in done.stderr
    assert done.stderr.count("\n") == 1


def test_three_ranks_measure_each_other_and_a_minibatch(tmp_path):
    out = tmp_path / "with a blank"
    flags = ["--workload=quadratic:dim=50000", "--algorithm=bsp", "--workers=2"]
    done = start(3, f"--out={out}", *flags)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["nbytes"] == 200_000
    assert [link[:2] for link in found["links"]] == [[0, 1], [0, 2], [1, 2]]
    for _, _, latency, bandwidth in found["links"]:
        assert 0 < latency < 0.1
        assert 1e6 < bandwidth < 1e12
    assert all(1e6 < rate < 1e12 for card in found["cards"] for rate in card)
    assert all(0 < seconds < 0.1 for seconds in found["overheads"])
    assert all(1e-5 < seconds < 1 for seconds in found["steps"][:2])
    assert found["steps"][2] == 0  # a server
    assert found["flags"] in done.stdout.splitlines()
    assert max(map(len, done.stdout.splitlines()[:5])) <= 80
    links = network.parse(f"links={out / 'links.txt'}", 3, 0)
    assert arrival(links, 0, 1) > 0
