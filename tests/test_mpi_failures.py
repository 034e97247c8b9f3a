"""How an MPI run ends when something goes wrong: soon, with a word about it, and altogether."""

import pytest

from tests.mpirun import start

pytestmark = pytest.mark.mpi

REFUSAL = "--graph=grid: 7 workers make no grid; use 6, 8 or 9, or --graph=ring"


def fail(ranks, how):
    """The lines on stderr and the exit code. All ranks have ten seconds, mpirun's start aside."""
    run = start(ranks, "failures.py", how, seconds=25)
    assert not run.process_left
    assert run.stdout == ""
    return run.stderr.splitlines(), run.returncode


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("how", ["killed", "at a barrier"])
def test_a_killed_rank_ends_the_run_with_one_line(ranks, how):
    lines, code = fail(ranks, how)
    assert lines == ["rank 1 was lost in iteration 5; the run ends"]
    assert code == 1


@pytest.mark.parametrize(
    ("how", "what"), [("raises", "in the coroutine"), ("raises in fn", "in fn")]
)
def test_an_exception_in_one_rank_is_reported_with_its_name(how, what):
    lines, code = fail(4, how)
    assert lines[0] == "Traceback (most recent call last):"
    assert f"rank 1: ZeroDivisionError: {what}" in lines
    assert lines[-1] == "rank 1 was lost in iteration 5; the run ends"
    assert code == 1


def test_an_exception_on_all_ranks_is_not_a_success():
    lines, code = fail(4, "all raise")
    assert any(line.endswith("ZeroDivisionError: everywhere") for line in lines)
    assert code == 1


def test_an_exception_on_the_root_after_the_run_ends_the_others_too():
    lines, code = fail(2, "at the end")
    assert "rank 0: OSError: disk full" in lines
    assert "rank 0 was lost in iteration 2; the run ends" in lines
    assert code == 1


@pytest.mark.parametrize("where", ["before MPI", "on the cluster"])
def test_bad_input_on_all_ranks_is_one_line_and_exit_code_2(where):
    lines, code = fail(4, f"bad input {where}")
    assert lines == [REFUSAL]
    assert code == 2


def test_bad_input_on_one_rank_names_the_rank_and_ends_the_others():
    lines, code = fail(4, "bad input on the cluster of rank 1")
    assert lines[0] == f"rank 1: {REFUSAL}"
    assert code == 1


def test_bad_input_on_one_rank_before_mpi_runs_does_not_leave_the_others_waiting():
    lines, code = fail(2, "bad input before MPI of rank 1")
    assert lines[0] == f"rank 1: {REFUSAL}"
    assert code == 1


def test_a_stall_says_who_waits_for_what():
    lines, code = fail(2, "silent")
    assert "rank 1 waits for update(k=-1, source=1)" in lines[0] + lines[1]
    assert "rank 0 waits for update(k=5, source=1)" in lines[0] + lines[1]
    assert len(lines) == 2
    assert code == 1
