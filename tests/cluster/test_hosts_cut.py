"""One of four hosts is cut off in the middle of a run: nobody is told, all have to notice."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from experiments.hosts import Hosts, hosts
from tests.cluster import machine

CUT = 2  # the host, and the rank on it
UNDER_WAY = 3.0  # seconds from the beginning of a run to the cut
COMMON = [
    "--cluster=mpi", "--workload=quadratic:dim=20000", "--delay=exponential:mean=0.1",
    "--eval_every=0",
]  # fmt: skip
ROOT = Path(__file__).parents[2]
Figures = Callable[[str, str], None]


@pytest.fixture
def four() -> Iterator[Hosts]:
    machine.install(["ip", "tc", "nsenter", "unshare"], ["iproute2", "util-linux"])
    with hosts([12.5e6] * 4) as made:
        yield made


class Run:
    """A run of `experiments.train` on four hosts, one of which is cut off."""

    def __init__(self, four: Hosts, folder: Path, *flags: str):
        self._four, self._folder = four, folder / "run"
        command = [sys.executable, "-m", "experiments.train", *COMMON, *flags]
        argv, environ = four.mpirun([*command, f"--run_dir={self._folder}"])
        self._out, self._err = folder / "out", folder / "err"
        with self._out.open("w") as out, self._err.open("w") as err:
            self.mpirun = subprocess.Popen(argv, env=environ, stdout=out, stderr=err, cwd=ROOT)

    def cut(self) -> None:
        """Cut the host off in the middle of the run."""
        self.until(lambda: (self._folder / "manifest.json").exists(), 60)
        time.sleep(UNDER_WAY)
        self._four.cut(CUT)
        self._begun = time.monotonic()

    def until(self, holds: Callable[[], object], seconds: float) -> float:
        """Wait until it is so; seconds since the cut. AssertionError with what was said."""
        end = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < end, self.said + self._out.read_text()
            time.sleep(0.05)
        return time.monotonic() - getattr(self, "_begun", end)

    def ranks(self) -> list[int]:
        """Processes that train, on whatever host."""
        everywhere = [pid for host in range(4) for pid in self._four.processes(host)]
        return [pid for pid in everywhere if _trains(pid)]

    def told(self, what: str) -> list[str]:
        """The lines on stderr that say what has become of the cut-off rank."""
        pattern = rf"rank {CUT} was lost (in iteration \d+|at the start); {what}"
        return [line for line in self.said.splitlines() if re.fullmatch(pattern, line)]

    @property
    def said(self) -> str:
        return self._err.read_text()

    @property
    def result(self) -> dict:
        return json.loads(self._out.read_text().splitlines()[-1])

    @property
    def manifest(self) -> dict:
        return json.loads((self._folder / "manifest.json").read_text())


def _trains(pid: int) -> bool:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False  # it has ended
    return words[0] == sys.executable.encode() and b"experiments.train" in words


def test_the_run_ends_with_a_line_that_names_the_lost_rank(four, tmp_path, figures: Figures):
    flags = "--algorithm=cb_full", "--workers=4", "--iterations=5000"
    run = Run(four, tmp_path, *flags)
    run.cut()
    noticed = run.until(lambda: run.told("the run ends"), 20)
    left = run.until(lambda: not run.ranks(), 20)
    ended = run.until(lambda: run.mpirun.poll() is not None, 40)
    assert run.mpirun.returncode != 0
    assert len(run.told("the run ends")) == 1
    assert "Traceback" not in run.said
    assert run.manifest["status"] == "failed"
    figures("a host cut off: named, all ranks gone, mpirun ended", _seconds(noticed, left, ended))
    assert noticed <= 15
    assert left <= 30
    assert ended <= 60


@pytest.mark.parametrize(
    "flags",
    [
        ("--algorithm=adsp", "--workers=3", "--commit_rate=4", "--time_factor=0.05",
         "--iterations=5000", "--max_time=12"),
        ("--algorithm=cb_full", "--workers=4", "--graph=complete", "--recovery=without",
         "--iterations=45"),
        ("--algorithm=scar", "--workers=1", "--servers=3", "--workload=qp",
         "--iterations=80"),
    ],
    ids=["adsp", "cb_full", "scar"],
)  # fmt: skip
def test_the_others_go_on_where_the_loss_is_forgiven(flags, four, tmp_path, figures: Figures):
    run = Run(four, tmp_path, *flags)
    run.cut()
    noticed = run.until(lambda: run.told("the others go on"), 20)
    finished = run.until(lambda: run.manifest["status"] == "finished", 40)
    left = run.until(lambda: not run.ranks(), 20)
    assert run.result["lost"] == [CUT]
    assert len(run.told("the others go on")) == 1
    what = f"{run.result['algorithm']}: a host cut off: named, finished, all ranks gone"
    figures(what, _seconds(noticed, finished, left))
    assert noticed <= 15
    # mpirun is ended, too, after `overdue.PATIENCE`; `four` does not wait for that.


def _seconds(*times: float) -> str:
    return ", ".join(f"{seconds:.1f} s" for seconds in times)
