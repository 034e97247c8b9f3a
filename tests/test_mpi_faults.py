"""Faults on real ranks: they strike where the file says, and the living go on if they forgive."""

import json

import pytest

from tests.mpirun import start
from tests.test_mpi_losses import RUNTIME

pytestmark = pytest.mark.mpi

RANKS, LAST, STEP = 5, 40, 0.01  # of programs/faults.py


def fault(kind, ranks, **keys):
    lines = [f'kind = "{kind}"', f"ranks = {ranks}", *(f"{key} = {v}" for key, v in keys.items())]
    return "\n".join(["[[fault]]", *lines, ""])


class Told:
    """How a run ended, what its ranks told and what the faults noted."""

    def __init__(self, folder, scenario, *faults, deaths=0):
        file = folder / "faults.toml"
        file.write_text("".join(faults))
        run = start(RANKS, "faults.py", scenario, str(file), str(folder), str(deaths), seconds=40)
        assert not run.process_left
        self.code = run.returncode
        self.said = [line for line in run.stderr.splitlines() if not RUNTIME.fullmatch(line)]
        self.parts = json.loads(run.stdout) if run.stdout else None
        self.notes = {
            rank: [json.loads(line) for line in path.read_text().splitlines()]
            for rank in range(RANKS)
            if (path := folder / f"faults-{rank}.jsonl").exists()
        }

    def of(self, rank):
        return self.parts[rank]["result"]

    def the_living_met(self, *dead):
        """And nobody had to be told twice."""
        living = [rank for rank in range(RANKS) if rank not in dead]
        assert self.code == 0
        assert [rank for rank in range(RANKS) if self.parts[rank] is None] == list(dead)
        for rank in living:
            assert self.of(rank)["lost"] == list(dead)
            assert self.of(rank)["left"] == list(dead)  # the message is there until it is taken
            assert sorted(map(int, self.parts[rank]["noticed"])) == list(dead)
            assert self.of(rank)["sum"] == sum(2**r for r in living)
        assert sorted(line.partition(" in iteration ")[0] for line in self.said) == [
            f"rank {rank} was lost" for rank in dead
        ]
        assert all(line.endswith("; the others go on") for line in self.said)
        for rank in dead:
            assert self.notes[rank][-1]["kind"] == "kill"
            assert self.notes[rank][-1]["rank"] == rank


def test_a_kill_at_an_iteration_strikes_before_the_iteration(tmp_path):
    told = Told(
        tmp_path,
        "everybody",
        fault("kill", [3], iteration=17),
        fault("corrupt", [2], iteration=5),
    )
    told.the_living_met(3)
    for rank in (0, 1, 2, 4):
        seen = told.of(rank)["seen"]
        assert seen.pop(3) in (16, 17)  # the last one may not have left yet
        assert seen == [0 if i == rank else LAST for i in (0, 1, 2, 4)]
    assert told.notes[3][0]["iteration"] == 17
    assert [part and part["corrupted"] for part in told.parts] == [[], [], [2], None, []]
    assert (told.notes[2][0]["kind"], told.notes[2][0]["iteration"]) == ("corrupt", 5)


def test_two_are_killed_at_a_time_one_of_them_in_a_pause(tmp_path):
    told = Told(
        tmp_path,
        "everybody",
        fault("kill", [3, 4], time=0.2),
        fault("pause", [4], iteration=2, seconds=1000),
    )
    told.the_living_met(3, 4)
    seen = told.of(0)["seen"]
    assert seen[:3] == [0, LAST, LAST]
    assert seen[3] < LAST
    assert seen[4] in (1, 2)  # it has paused before its iteration 2
    assert [note["kind"] for note in told.notes[4]] == ["pause", "kill"]
    assert all(told.notes[rank][-1]["clock"] >= 0.2 for rank in (3, 4))


@pytest.mark.parametrize("doing", ["computing", "waiting", "meeting", "summing"])
def test_two_die_at_one_moment_whatever_they_and_the_others_are_doing(tmp_path, doing):
    told = Told(tmp_path, f"dies {doing}", fault("kill", [3, 4], time=0.3), deaths=2)
    told.the_living_met(3, 4)
    assert told.of(1)["interrupted"] is True  # 30 s of computing, but for the loss


def test_whoever_is_forgiven_beforehand_may_die_during_the_meeting_at_the_end(tmp_path):
    told = Told(tmp_path, "ends, forgiven", fault("kill", [3], time=0.3))
    assert (told.code, told.said) == (0, ["rank 3 was lost in iteration 0; the others go on"])
    assert [part and part["result"] for part in told.parts] == [0, 1, 2, None, 4]


def test_a_death_during_the_meeting_at_the_end_that_nobody_forgives_ends_the_run(tmp_path):
    told = Told(tmp_path, "ends", fault("kill", [3], time=0.3))
    assert (told.code, told.said) == (1, ["rank 3 was lost in iteration 0; the run ends"])
    assert told.parts is None


def everything_came_in_order(came):
    """From both senders, small messages too."""
    for source in (0, 2):
        assert [(k, small) for s, k, small, _ in came if s == source] == [
            (k, k % 3 == 0) for k in range(LAST)
        ]


def test_a_paused_rank_stands_still_and_a_slow_one_takes_longer(tmp_path):
    told = Told(
        tmp_path,
        "hurt",
        fault("pause", [1], iteration=5, seconds=0.5),
        fault("slow", [2], iteration=20, seconds="inf", factor=4),
    )
    assert (told.code, told.said) == (0, [])
    paused, slow = told.of(1), told.of(2)
    assert paused["steps"][5] >= 0.5 + 2 * STEP
    begun = told.notes[1][0]["clock"]
    assert not any(begun < at < begun + 0.5 for _, _, _, at in paused["came"])
    assert all(step >= (2 if k % 2 else 1) * STEP for k, step in enumerate(slow["steps"]))
    assert all(slow["steps"][k] >= 4 * (2 if k % 2 else 1) * STEP for k in range(20, LAST))
    everything_came_in_order(paused["came"])


def test_a_disconnected_rank_computes_and_a_pause_at_a_time_prolongs_a_computation(tmp_path):
    told = Told(
        tmp_path,
        "hurt",
        fault("disconnect", [1], iteration=5, seconds=1.0),
        fault("pause", [2], time=0.1, seconds=0.5),
    )
    assert (told.code, told.said) == (0, [])
    begun, cut = told.notes[1][0]["clock"], told.of(1)
    everything_came_in_order(cut["came"])
    assert not any(begun < at < begun + 1 for _, _, _, at in cut["came"])
    sent_meanwhile = next(at for source, k, _, at in cut["came"] if (source, k) == (0, 5))
    assert sent_meanwhile >= begun + 1
    assert max(told.of(2)["steps"]) >= 0.5
    assert told.notes[2][0]["clock"] >= 0.1


def test_a_sum_waits_for_a_rank_that_is_disconnected(tmp_path):
    told = Told(tmp_path, "sums", fault("disconnect", [1], iteration=5, seconds=1.0))
    assert (told.code, told.said) == (0, [])
    assert [part["result"]["sum"] for part in told.parts] == [RANKS] * RANKS
    assert told.of(1)["end"] >= told.notes[1][0]["clock"] + 1
