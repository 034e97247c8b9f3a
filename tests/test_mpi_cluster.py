"""All that an algorithm can ask of the MPI cluster, on 2, 4 and 6 ranks."""

import json
import random

import pytest

from tests.mpirun import start

pytestmark = pytest.mark.mpi


@pytest.fixture(scope="module", params=[2, 4, 6])
def ranks(request):
    """What every rank of one run of tests/programs/worker_interface.py has found."""
    seed = random.randrange(2**31)
    run = start(request.param, "worker_interface.py", str(seed))
    again = f"worker_interface.py {seed} on {request.param} ranks"
    assert run.returncode == 0, f"{again}\n{run.stdout}\n{run.stderr}"
    assert not run.process_left, again
    print(again)  # shown when a test fails
    return json.loads(run.stdout)


def of(ranks, check):
    return [found[check] for found in ranks]


def test_links_deliver_every_message_whole_and_in_the_order_sent(ranks):
    for found in of(ranks, "links"):
        assert found["corrupt"] == 0
        assert len(found["numbers"]) == len(ranks) - 1
        for source, numbers in found["numbers"].items():
            assert numbers == list(range(found["counts"][source]))
    assert sum(sum(found["counts"].values()) for found in of(ranks, "links")) == 300 * len(ranks)


def test_a_vector_with_a_body_goes_to_and_fro(ranks):
    found = of(ranks, "ping_pong")
    # Forty messages, received in turns: each reception adds one to the vector and two to the body.
    assert found[0] == {"values": [40.0], "body": [80]}
    assert found[1] == {"values": [39.0], "body": [78]}
    assert found[2:] == [None] * (len(ranks) - 2)


def test_a_vector_that_is_kept_is_not_overwritten_by_later_ones(ranks):
    assert of(ranks, "kept_vectors") == [True] * len(ranks)


def test_take_returns_what_is_here_oldest_first_and_removes_it(ranks):
    found = ranks[1]["mailbox"]
    assert found["taken"] == [3, 1]
    assert found["again"] == []


def test_receive_returns_none_after_its_timeout(ranks):
    for found in of(ranks, "mailbox"):
        assert found["timeout"] is None
        assert found["waited"] >= 0.02


def test_a_message_to_oneself_is_an_event_like_any_other(ranks):
    for found in of(ranks, "mailbox"):
        assert found["own"] == []
        assert found["own later"] == 7


def test_a_spawned_activity_answers_while_the_main_one_computes(ranks):
    for rank, answers in enumerate(of(ranks, "activities")):
        assert answers == [10 * rank + 1] * (len(ranks) - 1)


def test_a_computation_lasts_the_drawn_delay_or_longer_if_it_takes_longer(ranks):
    for found in of(ranks, "computing"):
        assert found["doubled"] == 42
        assert found["seconds"]["4"] >= 0.03
        assert found["seconds"]["5"] >= 0.045


def test_work_of_zero_leaves_no_trace(ranks):
    for found in of(ranks, "computing"):
        assert found["free"] == "free"
        assert sorted(found["seconds"]) == ["4", "5", "6"]


def test_an_error_in_a_computation_is_raised_where_it_is_awaited(ranks):
    assert {found["error"] for found in of(ranks, "computing")} == {"division by zero"}


def test_an_injected_delay_is_interrupted_and_the_message_is_left(ranks):
    for found in [found for found in of(ranks, "dropping") if found is not None]:
        assert found["first"]
        assert found["whole"] < 60  # the delay that was drawn
        assert found["left"] == [1, 2]
        assert found["unhurt"] == 5


def test_a_function_that_runs_is_finished_before_the_interruption(ranks):
    for found in [found for found in of(ranks, "dropping") if found is not None]:
        assert found["second"]
        assert found["ran"] == [1, 2]


def test_allreduce_sums_in_rank_order_to_the_same_bits_everywhere(ranks):
    for found, expected in of(ranks, "sums"):
        assert found == expected
    assert len({found[0] for found, _ in of(ranks, "sums")}) == 1


def test_nobody_passes_a_barrier_before_the_last_rank_has_come(ranks):
    assert of(ranks, "meeting") == [1] * (len(ranks) - 1) + [0]


def test_nothing_is_under_way_at_a_consistent_cut(ranks):
    sent, here = zip(*(found[0] for found in of(ranks, "cut")), strict=True)
    assert sum(sent) == sum(here)
    assert min(sent) > 0


def test_a_cut_is_committed_once_by_the_root(ranks):
    assert [found[1] for found in of(ranks, "cut")] == [1] + [0] * (len(ranks) - 1)


def test_every_event_is_traced_and_now_is_its_time(ranks):
    for found in of(ranks, "events"):
        assert found["same"]
        assert found["ascending"]
        assert found["computed"] == list(range(20))
        assert found["arrived"] == 20 * (len(ranks) - 1)


def test_spans_of_all_kinds_that_occurred_are_traced(ranks):
    for found in ranks:
        assert found["spans"] == ["CHECKPOINT", "COLLECTIVE", "COMPUTE", "WAIT"]


def test_weightless_estimates_arrive_as_such(ranks):
    for found in of(ranks, "weightless"):
        assert found["vectors"]
        assert found["none"]
        assert found["bodies"] == [[4, 5]] * (len(ranks) - 1) + [[6]] * (len(ranks) - 1)
