"""A folder that is removed under a run: one line, exit code 1, nobody left."""

import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from cbdybw.clusters.launch import mpirun
from tests.mpirun import alive
from tests.runs import COMMAND, ROOT, arguments

GONE = (
    "cannot be written (No such file or directory); its folder is gone: begin anew in another one"
)
LOST = "rank N was lost in iteration N; the run ends"


@pytest.mark.parametrize("every", [20, 0])
@pytest.mark.parametrize("ranks", [0, pytest.param(3, marks=pytest.mark.mpi)])
def test_a_folder_that_is_removed_under_a_run_ends_it_with_one_line(tmp_path, ranks, every):
    """Noticed by the next checkpoint or, without any, by the owner at its next sign of life."""
    folder = tmp_path / "a"
    flags = {"run_dir": folder, "checkpoint_every": every, "eval_every": 0, "iterations": 10**6}
    flags |= {"algorithm": "cb_full", "workload": "quadratic:dim=50", "workers": 3}
    if ranks:
        flags |= {"cluster": "mpi", "delay": "constant:mean=0.002"}
        command, environ = mpirun(ranks, [*COMMAND, *arguments(flags)])
    else:
        command, environ = [*COMMAND, *arguments(flags)], dict(os.environ)
    environ["PYTHONPATH"] = str(ROOT)
    process = subprocess.Popen(command, env=environ, stderr=subprocess.PIPE, text=True)
    try:
        _remove(folder, "checkpoints" if every else "trace")
        said = process.communicate(timeout=60)[1]
    finally:
        process.kill()
    line, *more = said.splitlines()
    alone = ranks and not every  # only the root knows, and the others find it gone
    assert [re.sub("[0-9]+", "N", said) for said in more] == [LOST] * alone
    assert process.returncode == 1
    assert line.startswith(str(folder))
    assert line.endswith(GONE)
    assert not folder.exists()
    end = time.monotonic() + 10
    while alive(str(folder)) and time.monotonic() < end:
        time.sleep(0.1)
    assert not alive(str(folder))


def _remove(folder: Path, after: str) -> None:
    """Remove `folder` at once, a moment after `after` has come into being in it."""
    end = time.monotonic() + 60
    while not (folder / after).exists():
        assert time.monotonic() < end
        time.sleep(0.02)
    time.sleep(0.5)
    folder.rename(folder.with_name("removed"))
    shutil.rmtree(folder.with_name("removed"))
