"""Arrays: all runs finish, one that fails takes nobody along, and nothing is submitted twice."""

import signal
import time
from collections.abc import Iterator

import pytest

from cbdybw.storage.run_directory import RunDirectory
from tests.cluster.slurm import Slurm, running
from tests.cluster.submitting import submitting
from tests.runs import run

SHORT = "--workload=quadratic:dim=20\n--delay=exponential:mean=1\n--iterations=60\n"
KILL = '[[fault]]\nkind = "kill"\nranks = [2]\niteration = 20\n'


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    with running() as slurm:
        yield slurm


def known(slurm: Slurm, name: str) -> list[str]:
    """All jobs of this name that Slurm has had."""
    return slurm.run(
        "squeue", "--noheader", "--array", "--states=all", f"--name={name}", "--format=%i"
    ).split()


def test_an_array_of_six_short_runs(slurm, tmp_path, figures):
    folder = tmp_path / "with spaces, [brackets] and 100 % of its name"
    folder.mkdir()
    for name in ("cb_full", "cb_dybw"):
        (folder / f"{name}.flags").write_text(f"{SHORT}--algorithm={name}\n")
    began = time.monotonic()
    flags = ("--flagfile=*.flags", "--array=seeds:0-1,7", "--eta0=0.1")
    with submitting(slurm, *flags, cwd=folder) as submission:
        code, out, err = submission.ended(150)
    took = time.monotonic() - began
    figures("six short runs as an array, from submission to results", f"{took:.0f} s")
    assert (code, err) == (0, [])
    there = folder / "runs" / folder.name
    assert out[-1].startswith(f"{there / 'runs'}: a folder a run")
    runs = {path.name: RunDirectory(path) for path in (there / "runs").iterdir()}
    assert sorted(runs) == sorted(f"{n}-{s}" for n in ("cb_dybw", "cb_full") for s in (0, 1, 7))
    for name, directory in runs.items():
        algorithm, seed = name.split("-")
        flags = {"algorithm": algorithm, "seed": int(seed), "eta0": 0.1, "iterations": 60}
        here = run(**flags, workload="quadratic:dim=20", delay="exponential:mean=1")
        manifest = directory.manifest()
        assert manifest["status"] == "finished"
        assert manifest["job"]["SLURM_JOB_ID"]
        assert manifest["result"]["trace_sha256"] == here["trace_sha256"]
    assert sum("finished" in line.split() for line in out) == 12  # as news, and in the table


def test_a_task_that_fails_takes_nobody_along_and_goes_on_when_that_is_mended(slurm, tmp_path):
    (tmp_path / "kill.toml").write_text(KILL)
    (tmp_path / "good.flags").write_text(SHORT)
    (tmp_path / "killed.flags").write_text(f"{SHORT}--faults=kill.toml\n--algorithm=cb_full\n")
    (tmp_path / "wild.flags").write_text(f"{SHORT}--eta0=1000\n--algorithm=cb_full\n")
    mixed = ("--flagfile=*.flags", "--out=mixed")
    with submitting(slurm, *mixed, cwd=tmp_path) as submission:
        code, out, err = submission.ended(120)
    assert code == 1
    states = dict(line.split()[:2] for line in out[-4:-1])
    assert states == {"good-0": "finished", "killed-0": "failed", "wild-0": "diverged"}
    assert len(err) == 2
    assert err[0].startswith("killed-0: failed: PeerLost: rank 2 was lost; its log is ")
    assert err[1] == (
        "1 of 3 runs failed: mend that, then the same command with --again goes on with them"
    )
    assert "rank 2" in (tmp_path / "mixed" / "logs" / err[0].rpartition("/")[2]).read_text()
    (tmp_path / "kill.toml").write_text(KILL.replace("20", "1000"))
    with submitting(slurm, *mixed, "--again", cwd=tmp_path) as submission:
        assert submission.ended(120)[0] == 3
    assert len(known(slurm, "mixed")) == 4


def test_leaving_does_not_end_the_jobs_and_coming_back_submits_nothing(slurm, tmp_path):
    (tmp_path / "a.flags").write_text(SHORT.replace("60", "12000"))
    flags = ("--flagfile=a.flags", "--array=seeds:0-1", "--out=left")
    with submitting(slurm, *flags, cwd=tmp_path) as submission:
        jobs = submission.jobs(tmp_path / "left")
        slurm.wait(jobs[0], "RUNNING", seconds=30)
        submission.process.send_signal(signal.SIGINT)
        code, _, err = submission.ended(30)
    number = jobs[0].partition("_")[0]
    assert code == 130
    assert err == [
        f"the jobs go on: the same command looks at them again, and scancel {number} ends them"
    ]
    with submitting(slurm, *flags, cwd=tmp_path) as submission:
        assert submission.ended(120)[0] == 0
    assert known(slurm, "left") == [f"{number}_0", f"{number}_1"]
    with submitting(slurm, *flags, "--iterations=13000", cwd=tmp_path) as submission:
        code, _, err = submission.ended(30)
    assert code == 2
    assert "was submitted with other flags than --iterations=13000; name a new folder" in err[0]
