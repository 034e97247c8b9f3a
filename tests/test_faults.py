"""Fault schedules: what a file comes to, what is wrong with others, and what faults do to time."""

import math

import numpy as np
import pytest

from cbdybw.clusters import faults
from cbdybw.clusters.faults import Fault, Schedule, read
from cbdybw.errors import BadInput

WORKERS, SERVERS = 6, 4
INF = math.inf


@pytest.fixture
def schedule(tmp_path):
    """Reads a text as a file, for six workers and four servers."""

    def read_text(text, workers=WORKERS, servers=SERVERS):
        path = tmp_path / "faults.toml"
        path.write_text(text)
        return read(path, workers, servers)

    return read_text


def table(text):
    return "[[fault]]\n" + "\n".join(text.split("; ")) + "\n"


# What a file comes to


def test_every_kind_is_resolved_in_the_order_of_the_file_then_of_ranks(schedule):
    text = """
        [[fault]]
        kind = "kill"
        ranks = [8, 3]
        iteration = 30
        [[fault]]
        kind = "pause"
        role = "servers"
        time = 2.5
        seconds = 1
        [[fault]]
        kind = "slow"
        ranks = [0]
        iteration = 0
        seconds = inf
        factor = 4.0
        [[fault]]
        kind = "disconnect"
        ranks = [9]
        time = 0
        seconds = 0.25
        [[fault]]
        kind = "corrupt"
        ranks = [6]
        iteration = 29
    """
    assert schedule(text).faults == (
        Fault("kill", 3, iteration=30),
        Fault("kill", 8, iteration=30),
        *(Fault("pause", rank, time=2.5, seconds=1.0) for rank in (6, 7, 8, 9)),
        Fault("slow", 0, iteration=0, seconds=INF, factor=4.0),
        Fault("disconnect", 9, time=0.0, seconds=0.25),
        Fault("corrupt", 6, iteration=29),
    )


def test_inline_tables_are_tables(schedule):
    text = 'fault = [{kind = "kill", ranks = [3], iteration = 1}]'
    assert schedule(text).faults == (Fault("kill", 3, iteration=1),)


@pytest.mark.parametrize(
    ("who", "count"),
    [
        ('role = "servers"; fraction = 0.5', 2),
        ('role = "servers"; fraction = 0.01', 1),
        ('role = "servers"; count = 3', 3),
        ('role = "workers"; fraction = 0.5', 3),
        ('role = "workers"; count = 5', 5),
    ],
)
def test_a_share_of_a_role_is_drawn_and_rank_0_never_to_be_killed(schedule, who, count):
    drawn = set()
    for seed in range(40):
        text = table(f'kind = "kill"; {who}; iteration = 30; seed = {seed}')
        ranks = [fault.rank for fault in schedule(text).faults]
        assert ranks == [fault.rank for fault in schedule(text).faults], seed  # of both clusters
        assert ranks == sorted(set(ranks)), seed
        assert len(ranks) == count, seed
        drawn.update(ranks)
    assert drawn == (set(range(6, 10)) if "servers" in who else set(range(1, 6)))


def test_tables_of_one_seed_draw_for_themselves_and_nobody_is_killed_twice(schedule):
    one = table('kind = "kill"; role = "workers"; count = 1; geometric = 0.05')
    assert sorted(fault.rank for fault in schedule(5 * one).faults) == [1, 2, 3, 4, 5]
    assert len({fault.iteration for fault in schedule(5 * one).faults}) > 1


def test_ranks_are_drawn_evenly(schedule):
    text = 'kind = "slow"; role = "workers"; count = 2; time = 0; seconds = 1; factor = 2; seed = '
    counts = np.zeros(WORKERS)
    for seed in range(600):
        for fault in schedule(table(text + str(seed))).faults:
            counts[fault.rank] += 1
    assert counts.sum() == 1200
    assert np.square(counts - 200).sum() / 200 < 20.5  # χ² with 5 degrees of freedom: 0.1 %


def test_all_ranks_of_a_table_fail_at_the_iteration_that_is_drawn(schedule):
    text = table('kind = "kill"; ranks = [2, 3, 7]; geometric = 0.02; least = 5; most = 60')
    (iteration,) = {fault.iteration for fault in schedule(text).faults}
    assert 5 <= iteration <= 60


@pytest.mark.parametrize(
    ("q", "least", "most"), [(0.02, 1, INF), (0.3, 1, 4), (0.02, 8, 60), (0.5, 5, INF)]
)
def test_iterations_follow_the_geometric_law_within_its_bounds(q, least, most):
    rng = np.random.default_rng(1)
    drawn = np.array([faults.geometric(rng, q, least, most) for _ in range(40_000)])
    assert drawn.min() == least
    assert drawn.max() <= most
    ks = np.arange(least, min(most, least + 3000) + 1)
    weights = q * (1 - q) ** (ks - 1.0)
    weights /= weights.sum()
    mean = weights @ ks
    deviation = math.sqrt(weights @ np.square(ks - mean))
    assert drawn.mean() == pytest.approx(mean, abs=4 * deviation / 200)
    again = rng.geometric(q, 400_000)  # another way: draw, and reject what is out of bounds
    again = again[(again >= least) & (again <= most)]
    error = 4 * deviation * math.sqrt(1 / 40_000 + 1 / len(again))
    assert drawn.mean() == pytest.approx(again.mean(), abs=error)


def test_without_bounds_the_mean_iteration_is_one_over_q():
    rng = np.random.default_rng(2)
    drawn = [faults.geometric(rng, 0.02) for _ in range(40_000)]
    assert np.mean(drawn) == pytest.approx(50, abs=4 * 49.5 / 200)


@pytest.mark.parametrize(
    ("q", "least", "most", "k"), [(1, 1, INF, 1), (1, 7, 9, 7), (0.1, 5, 5, 5)]
)
def test_where_there_is_nothing_to_draw_it_is_not_drawn(q, least, most, k):
    assert faults.geometric(np.random.default_rng(0), q, least, most) == k


# What is wrong with a file

KEYS = (
    "kind, role, ranks, fraction, count, iteration, time, geometric, least, most, seed, "
    "seconds, factor"
)
WRONG = """
ranks = [3]; iteration = 30
    kind is missing; use one of kill, pause, slow, disconnect, corrupt
kind = "stop"; ranks = [3]; iteration = 30
    kind is 'stop'; use one of kill, pause, slow, disconnect, corrupt
kind = "kill"; rank = 3; iteration = 30
    there is no key 'rank'; use {KEYS}
kind = "kill"; role = "server"; iteration = 30
    role is 'server'; use workers or servers
kind = "kill"; ranks = 3; iteration = 30
    ranks is 3; use a list of different ranks, such as [3, 4]
kind = "kill"; ranks = []; iteration = 30
    ranks is []; use a list of different ranks, such as [3, 4]
kind = "kill"; ranks = [3, 3]; iteration = 30
    ranks is [3, 3]; use a list of different ranks, such as [3, 4]
kind = "kill"; ranks = [-1]; iteration = 30
    ranks is [-1]; use a list of different ranks, such as [3, 4]
kind = "kill"; ranks = [true]; iteration = 30
    ranks is [True]; use a list of different ranks, such as [3, 4]
kind = "kill"; ranks = [3, 10]; iteration = 30
    ranks: 10 is none of this run's; use ranks 0 to 9
kind = "kill"; ranks = [0, 3]; iteration = 30
    rank 0 sums up the run and cannot be killed; use other ranks, or a count
kind = "kill"; role = "workers"; iteration = 30
    rank 0 sums up the run and cannot be killed; use other ranks, or a count
kind = "kill"; role = "servers"; iteration = 30
    no server would be left; kill one less
kind = "kill"; role = "workers"; count = 6; iteration = 30
    6 of the workers are to be drawn from 5; draw fewer
kind = "kill"; role = "workers"; fraction = 1; iteration = 30
    6 of the workers are to be drawn from 5; draw fewer
kind = "kill"; role = "workers"; fraction = 1.5; iteration = 30
    fraction is 1.5; use a number above 0 to 1
kind = "kill"; role = "workers"; fraction = nan; iteration = 30
    fraction is nan; use a number above 0 to 1
kind = "kill"; role = "workers"; count = 0; iteration = 30
    count is 0; use a whole number from 1 up
kind = "kill"; role = "workers"; count = 1; fraction = 0.5; iteration = 30
    fraction and count exclude each other; keep one
kind = "kill"; ranks = [3]; count = 1; iteration = 30
    count means nothing without role; leave it out
kind = "kill"; ranks = [3]; role = "servers"; iteration = 30
    role and ranks exclude each other; keep one
kind = "kill"; iteration = 30
    one of role, ranks is missing; add it
kind = "kill"; ranks = [3]
    one of iteration, time, geometric is missing; add it
kind = "kill"; ranks = [3]; time = 1; iteration = 30
    iteration and time exclude each other; keep one
kind = "kill"; ranks = [3]; iteration = 1.5
    iteration is 1.5; use a whole number from 0 up
kind = "kill"; ranks = [3]; iteration = true
    iteration is True; use a whole number from 0 up
kind = "kill"; ranks = [3]; time = "1"
    time is '1'; use seconds from 0 up
kind = "kill"; ranks = [3]; time = -0.5
    time is -0.5; use seconds from 0 up
kind = "kill"; ranks = [3]; time = inf
    time is inf; use seconds from 0 up
kind = "kill"; ranks = [3]; geometric = 0
    geometric is 0; use a number from 1e-9 to 1, 1/mean
kind = "kill"; ranks = [3]; geometric = 0.1; least = 9; most = 8
    least is 9, above most; exchange them
kind = "kill"; ranks = [3]; least = 9; iteration = 30
    least means nothing without geometric; leave it out
kind = "kill"; ranks = [3]; seed = 1; iteration = 30
    seed means nothing without fraction or count or geometric; leave it out
kind = "kill"; ranks = [3]; seconds = 1; iteration = 30
    seconds means nothing to kill; leave it out
kind = "pause"; ranks = [3]; iteration = 30
    seconds is missing, which pause needs; use seconds above 0
kind = "pause"; ranks = [3]; seconds = 0; iteration = 30
    seconds is 0; use seconds above 0
kind = "pause"; ranks = [3]; seconds = inf; iteration = 30
    seconds is inf, of a pause that never ends; use a finite number
kind = "slow"; ranks = [3]; seconds = 1; iteration = 30
    factor is missing, which slow needs; use a number above 1
kind = "slow"; ranks = [3]; seconds = 1; factor = 1; iteration = 30
    factor is 1; use a number above 1
kind = "disconnect"; ranks = [3]; seconds = 1; factor = 2; iteration = 30
    factor means nothing to disconnect; leave it out
"""  # a table in one line, and what is said of it


def wrong_tables():
    lines = [line.strip().replace("{KEYS}", KEYS) for line in WRONG.strip().splitlines()]
    return list(zip(lines[::2], lines[1::2], strict=True))


@pytest.mark.parametrize(("text", "line"), wrong_tables())
def test_a_table_that_is_wrong_is_named_with_what_to_change(schedule, tmp_path, text, line):
    with pytest.raises(BadInput) as refusal:
        schedule(table(text))
    assert str(refusal.value) == f"{tmp_path / 'faults.toml'}:1: [[fault]] 1: {line}"


def test_everything_that_is_wrong_has_its_line(schedule, tmp_path):
    good = table('kind = "kill"; ranks = [3]; iteration = 1')
    bad = table('kind = "kill"; ranks = [3]; iteration = 2; colour = 3; seed = -1')
    twice = table('kind = "kill"; ranks = [2, 3]; iteration = 9')
    with pytest.raises(BadInput) as refusal:
        schedule("title = 1\n" + good + bad + twice)
    path = tmp_path / "faults.toml"
    killed = "rank 3 is killed by an earlier table; use other ranks, or a count"
    assert str(refusal.value).splitlines() == [
        f"{path}: there is no 'title'; use tables [[fault]]",
        f"{path}:6: [[fault]] 2: there is no key 'colour'; use {KEYS}",
        f"{path}:6: [[fault]] 2: seed is -1; use a whole number from 0 up",
        f"{path}:12: [[fault]] 3: {killed}",
    ]


def test_a_role_that_nobody_has_is_named(schedule, tmp_path):
    with pytest.raises(BadInput) as refusal:
        schedule(table('kind = "pause"; role = "servers"; seconds = 1; time = 1'), servers=0)
    assert str(refusal.value).endswith(
        "role: this run has no servers; use another role, or --servers"
    )


def test_servers_may_not_all_be_killed_little_by_little(schedule):
    half = table('kind = "kill"; role = "servers"; fraction = 0.5; iteration = 30')
    assert len(schedule(half).faults) == 2
    with pytest.raises(BadInput, match=r":6: \[\[fault\]\] 2: no server would be left"):
        schedule(half + half)


@pytest.mark.parametrize(
    "text", ["", "# nothing\n", "fault = []", "fault = 3", '[fault]\nkind = "kill"']
)
def test_a_file_without_tables_is_refused(schedule, text):
    with pytest.raises(BadInput, match=r"faults.toml: holds no faults; use tables \[\[fault\]\]$"):
        schedule(text)


def test_what_is_no_toml_is_refused_with_its_place(schedule):
    with pytest.raises(BadInput, match=r"faults.toml: not TOML \(.*line 2, column 8\)\); mend it"):
        schedule("[[fault]]\nkind = kill\n")


def test_what_is_no_text_is_refused(tmp_path):
    with pytest.raises(BadInput, match=r"none.toml: cannot be read as text \(.*No such file"):
        read(tmp_path / "none.toml", 6, 0)
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(BadInput, match=r"bytes.toml: cannot be read as text"):
        read(tmp_path / "bytes.toml", 6, 0)


# What faults do to the time of a rank


def watch(*struck):
    return Schedule(tuple(struck)).of(1)


def test_a_watch_sees_its_own_rank_only_and_hands_everything_out_once():
    early, late = Fault("corrupt", 1, iteration=5), Fault("kill", 1, iteration=7)
    timed = Fault("pause", 1, time=2.0, seconds=1.0)
    mine = watch(early, Fault("kill", 2, iteration=0), timed, late)
    assert mine.next_time() == 2.0
    assert mine.due(4, 1.9) == []
    assert mine.due(6, 1.9) == [early]
    assert mine.due(6, 2.0) == [timed]
    assert mine.next_time() == INF
    assert mine.due(6, 2.0) == []
    assert mine.due(100, 3.0) == [late]
    assert mine.due(100, 1e9) == []


def test_a_rank_without_faults_computes_as_long_as_it_needs():
    assert watch().finish(0.1, 0.2) == 0.1 + 0.2
    assert watch().reconnects(0.7) == 0.7
    assert watch().next_time() == INF


def test_a_pause_at_a_time_is_known_beforehand():
    mine = watch(Fault("pause", 1, time=2.0, seconds=1.0))
    assert mine.finish(0, 2.0) == 2.0
    assert mine.finish(1.5, 1.0) == 3.5
    assert mine.finish(2.0, 0.25) == 3.25
    assert mine.finish(2.5, 0.25) == 3.25
    assert mine.finish(3.0, 0.25) == 3.25


def test_what_begins_at_an_iteration_begins_when_the_rank_gets_there():
    mine = watch(Fault("slow", 1, iteration=3, seconds=2.0, factor=4.0))
    assert mine.finish(0, 10) == 10
    mine.due(3, 5.0)
    assert mine.finish(0, 5.0) == 5.0
    assert mine.finish(4.0, 1.25) == 6.0  # a second, and a quarter of one
    assert mine.finish(5.0, 1.0) == 7.5  # two seconds for half of it
    assert mine.finish(7.0, 1.0) == 8.0


def test_slow_to_the_end():
    mine = watch(Fault("slow", 1, time=1.0, seconds=INF, factor=3.0))
    assert mine.finish(0, 1.0) == 1.0
    assert mine.finish(0, 2.0) == 4.0
    assert mine.finish(100, 2.0) == 106.0


def test_a_disconnection_hinders_talking_and_not_computing():
    mine = watch(
        Fault("disconnect", 1, time=4.0, seconds=1.0),
        Fault("disconnect", 1, time=2.0, seconds=2.0),
        Fault("pause", 1, time=8.0, seconds=1.0),
    )
    assert mine.finish(2.0, 3.0) == 5.0
    assert [mine.reconnects(t) for t in (1.5, 2, 3.5, 4, 5, 8)] == [1.5, 5, 5, 5, 5, 8]


def test_overlapping_spells_end_where_small_steps_of_time_say():
    for seed in range(200):
        rng = np.random.default_rng(seed)
        begin, lasts = rng.integers(0, 8, 4).tolist(), rng.integers(1, 4, 4).tolist()
        kinds, factors = ("pause", "slow", "slow", "disconnect"), (1.0, 2.0, 4.0, 1.0)
        struck = [
            Fault(kind, 1, time=t, seconds=n, factor=factor)
            for kind, t, n, factor in zip(kinds, begin, lasts, factors, strict=True)
        ]
        start, seconds = float(rng.integers(0, 6)), float(rng.integers(1, 6))
        now, left, step = start, seconds, 1 / 64
        while left > 0:
            active = [f for f in struck if f.time <= now < f.time + f.seconds]
            paused = any(f.kind == "pause" for f in active)
            left -= 0.0 if paused else step / math.prod(f.factor for f in active)
            now += step
        assert abs(watch(*struck).finish(start, seconds) - now) < step, f"seed {seed}"
