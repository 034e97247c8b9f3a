"""Training goes on when a worker dies whose death is forgiven."""

import json
import re

import pytest

from tests.mpirun import start

pytestmark = pytest.mark.mpi

LAST = 30  # iterations of programs/losses.py
GOES_ON = r"rank {} was lost in iteration \d+; the others go on"
NO_CUTS = "no checkpoints from now on: a rank was lost"
RUNTIME = re.compile(
    r"\[\S+:\d+\] pmix_ptl_base: send_msg: write failed: .*|\[warn\] Epoll MOD.*Bad file descriptor"
)
"""What Open MPI and its libevent may say, rarely, of ranks that have died or left."""


def lose(rank, when, seed):
    run = start(4, "losses.py", str(rank), when, str(seed), seconds=40)
    assert not run.process_left
    return run


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(
    ("when", "cuts"),
    [
        ("computing", True),
        ("sending", True),
        ("before it saves", True),
        ("between marks", True),
        ("finished", False),
    ],
)
def test_the_others_finish_when_a_worker_dies(when, cuts, seed):
    lost = 1 + seed % 2
    run = lose(lost, when, seed)
    assert run.returncode == 0  # mpirun does not count a death by signal
    told = json.loads(run.stdout)
    *estimates, pushes = told["parts"]
    assert estimates.pop(lost) is None
    assert estimates == [LAST, LAST]  # every push was answered
    assert pushes.pop(str(lost)) <= LAST
    assert set(pushes.values()) == {LAST}
    first, *rest = (line for line in run.stderr.splitlines() if not RUNTIME.fullmatch(line))
    assert re.fullmatch(GOES_ON.format(lost), first)
    if not cuts:
        assert told["counting"] == [10, 20, 30]
        assert rest == []
    elif told["counting"] != [10, 20, 30]:  # "between marks" may be those of the end
        assert told["counting"] == [10, 20, 30][: len(told["counting"])]
        assert rest == [NO_CUTS]


def test_a_worker_that_dies_at_the_end_is_no_loss_to_the_result():
    run = lose(2, "leaving", 3)
    assert run.returncode == 0
    *estimates, pushes = json.loads(run.stdout)["parts"]
    assert estimates == [LAST] * 3
    assert pushes == {"0": LAST, "1": LAST, "2": LAST}


@pytest.mark.parametrize(("rank", "when"), [(3, "serving"), (0, "computing")])
def test_the_server_and_the_root_are_not_forgiven(rank, when):
    run = lose(rank, when, 4)
    assert run.returncode == 1
    assert run.stdout == ""
    assert re.fullmatch(rf"rank {rank} was lost in iteration \d+; the run ends\n", run.stderr)
