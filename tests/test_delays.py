"""Delay laws, and the flags that name them."""

import math
import random
from pathlib import Path

import numpy as np
import pytest

import experiments.adsp as adsp
from cbdybw import specs
from cbdybw.clusters.delays import BLOCK, LAWS, parse
from cbdybw.clusters.trace import Span, Trace
from cbdybw.errors import BadInput

MACHINES = Path(adsp.__path__[0], "machines")
LAW_SPECS = [
    "none",
    "constant:mean=0.5",
    "exponential:mean=2",
    "shifted_exponential:base=0.5,mean=0.5",
    "pareto:scale=1,alpha=3",
    "lognormal:mean=2,sigma=0.5",
    "persistent:ranks=0+3,slowdown=6,base=1,jitter=0.05",
    "random_straggler:count=2,slowdown=6,base=1,jitter=0.05",
    f"machines:path={MACHINES / 'three.toml'},processes=2",
]


def table(spec, workers=6, iterations=200, seed=0):
    law = parse(spec, workers, seed)
    return np.array([[law(rank, k) for k in range(iterations)] for rank in range(workers)])


@pytest.mark.parametrize("spec", LAW_SPECS)
def test_a_draw_depends_on_rank_and_index_and_not_on_the_order_of_calls(spec):
    in_order = table(spec)
    calls = [(rank, k) for rank in range(6) for k in range(200)] * 2
    random.Random(0).shuffle(calls)
    law = parse(spec, 6, 0)
    assert all(law(rank, k) == in_order[rank, k] for rank, k in calls)
    assert isinstance(law(0, 0), float)


@pytest.mark.parametrize("spec", ["exponential:mean=1", *LAW_SPECS[3:]])
def test_seeds_ranks_and_blocks_have_draws_of_their_own(spec):
    draws = np.concatenate([table(spec, seed=seed).ravel() for seed in range(3)])
    assert len(np.unique(draws)) == len(draws)


def test_a_worker_draws_the_same_whatever_the_number_of_workers():
    few, many = (table("exponential:mean=1", workers) for workers in (3, 50))
    assert np.array_equal(few, many[:3])


@pytest.mark.parametrize(
    ("spec", "mean", "deviation"),
    [
        ("exponential:mean=2", 2, 2),
        ("shifted_exponential:base=0.5,mean=0.5", 1, 0.5),
        ("pareto:scale=1,alpha=3", 1.5, math.sqrt(3 / 4)),
        ("lognormal:mean=2,sigma=0.5", 2, 2 * math.sqrt(math.exp(0.25) - 1)),
    ],
)
def test_the_mean_is_that_of_the_law(spec, mean, deviation):
    draws = table(spec, 40, 2000)
    assert draws.mean() == pytest.approx(mean, abs=4 * deviation / math.sqrt(draws.size))


@pytest.mark.parametrize(
    ("spec", "x", "beyond"),
    [
        ("exponential:mean=2", 2, math.exp(-1)),
        ("shifted_exponential:base=0.5,mean=0.5", 1.5, math.exp(-2)),
        ("pareto:scale=2,alpha=3", 4, 1 / 8),
        ("lognormal:mean=2,sigma=0.5", 2 * math.exp(-0.125), 0.5),
    ],
)
def test_the_tail_is_that_of_the_law(spec, x, beyond):
    draws = table(spec, 40, 2000)
    tolerance = 4 * math.sqrt(beyond * (1 - beyond) / draws.size)
    assert (draws > x).mean() == pytest.approx(beyond, abs=tolerance)


def test_neighbouring_indices_and_ranks_are_uncorrelated():
    draws = table("exponential:mean=1", 100, 10 * BLOCK) - 1
    tolerance = 4 / math.sqrt(draws.size)
    assert abs((draws[:, :-1] * draws[:, 1:]).mean()) < tolerance
    assert abs((draws[:-1] * draws[1:]).mean()) < tolerance
    assert abs((draws[:, :-BLOCK] * draws[:, BLOCK:]).mean()) < tolerance


def test_none_and_constant_are_what_they_say():
    assert not table("none").any()
    assert (table("constant:mean=0.5") == 0.5).all()


def test_persistent_stragglers_are_the_ranks_named():
    times = table("persistent:ranks=0+3,slowdown=6,base=0.5")
    assert (times == np.array([3, 0.5, 0.5, 3, 0.5, 0.5])[:, None]).all()


def test_jitter_is_a_uniform_factor():
    times = table("persistent:ranks=1,slowdown=6,base=2,jitter=0.1", 2, 5000)
    factors = times / [[2.0], [12.0]]
    assert factors.min() >= 1
    assert factors.max() < 1.1
    assert factors.mean() == pytest.approx(1.05, abs=4 * 0.1 / math.sqrt(12 * factors.size))


def test_each_iteration_has_its_own_random_stragglers():
    slow = table("random_straggler:count=2,slowdown=6,base=1", 6, 6000) == 6
    assert (slow.sum(axis=0) == 2).all()
    assert slow.mean(axis=1) == pytest.approx([1 / 3] * 6, abs=4 * math.sqrt(2 / 9 / 6000))
    repeated = (slow[:, 1:] & slow[:, :-1]).sum(axis=0)  # hypergeometric
    assert repeated.mean() == pytest.approx(2 / 3, abs=4 * math.sqrt(16 / 45 / 6000))


def test_random_stragglers_are_one_worker_and_one_second_unless_told_otherwise():
    assert np.array_equal(
        table("random_straggler:slowdown=6"),
        table("random_straggler:count=1,slowdown=6,base=1,jitter=0"),
    )


def test_machines_are_those_of_the_file_with_their_group_slowed():
    eighteen = f"machines:path={MACHINES / 'eighteen.toml'}"
    steps = [0.71] * 5 + [0.5] * 4 + [0.71] * 2
    as_it_is = table(f"{eighteen},jitter=0", 18, 3)
    assert as_it_is.tolist() == [[s] * 3 for s in [*steps, *[1.0] * 7]]
    slowed = table(f"{eighteen},heterogeneity=3.2,scale=0.1,jitter=0", 18, 1)[:, 0]
    assert slowed[:11] == pytest.approx([0.1 * s for s in steps])
    assert len(set(slowed[11:])) == 1
    speeds = 1 / slowed
    assert speeds.mean() / speeds.min() == pytest.approx(3.2)


def test_two_workers_on_a_machine_are_neighbours_and_each_as_fast_as_one():
    path = f"machines:path={MACHINES / 'ratio.toml'}"
    steps = table(f"{path},processes=2,jitter=0", 6, 1)[:, 0]
    assert steps.tolist() == [0.5, 0.5, 0.5, 0.5, 1.5, 1.5]
    jittered = table(f"{path},processes=2", 6, 1000) / steps[:, None]
    assert jittered.min() >= 1
    assert jittered.max() < 1.05
    assert jittered.mean() == pytest.approx(1.025, abs=4 * 0.05 / math.sqrt(12 * jittered.size))


@pytest.mark.parametrize(
    ("keys", "complaint"),
    [
        ("", "three.toml has 3 machines, which makes 3 workers, not 18; use --workers=3"),
        (",processes=2", "has 3 machines, which makes 6 workers, not 18; use --workers=6"),
        (",processes=0", "processes is '0'; use a whole number from 1 up"),
        (",scale=0", "scale is '0'; use a finite number above 0"),
        (",heterogeneity=3", "heterogeneity=3: 0 of 3 workers are slowed; slow some"),
        (",H=3", "there is no key 'H'; use machines:path=,heterogeneity=0,processes=1"),
    ],
)
def test_machines_that_do_not_fit_the_run_are_refused(keys, complaint):
    with pytest.raises(BadInput) as error:
        parse(f"machines:path={MACHINES / 'three.toml'}{keys}", 18, 0)
    assert complaint in str(error.value)
    assert "\n" not in str(error.value)


@pytest.fixture
def recorded(tmp_path):
    """The run folder of two workers; worker 1 skipped iterations 1 and 2."""
    trace = Trace()
    for rank, iteration, seconds in [
        (0, 0, 1.0),
        (1, 1, 4.0),
        (0, 1, 2.0),
        (0, 2, 3.0),
        (1, 4, 5.0),
    ]:
        trace.span(rank, Span.COMPUTE, iteration, 10.0, 10.0 + seconds)
        trace.span(rank, Span.WAIT, iteration, 10.0 + seconds, 50.0)
        trace.event(rank, 50.0, 0, iteration, rank)
    trace.span(2, Span.WAIT, 0, 0.0, 1.0)
    (tmp_path / "trace").mkdir()
    trace.flush(tmp_path / "trace", 0, 5)
    return tmp_path


def test_a_trace_gives_the_time_recorded_or_the_latest_before_it(recorded):
    law = parse(f"trace:{recorded}", 2, 0)
    assert [law(0, k) for k in range(5)] == [1, 2, 3, 3, 3]
    assert [law(1, k) for k in (0, 1, 2, 3, 4, 5, 1000)] == [4, 4, 4, 4, 5, 5, 5]


@pytest.mark.parametrize("workers", [3, 4])
def test_a_trace_of_too_few_workers_is_refused(recorded, workers):
    with pytest.raises(BadInput, match=f"worker 2 of {workers} computed nothing there"):
        parse(f"trace:{recorded}", workers, 0)


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        ("gamma:mean=1", "'gamma' is not known; use one of none, constant, exponential"),
        ("", "'' is not known"),
        ("exponential", "mean is missing; use exponential:mean="),
        ("exponential:maen=1", "there is no key 'maen'; use exponential:mean="),
        ("exponential:mean", "'mean' is no pair key=value"),
        ("exponential:mean=", "'mean=' is no pair key=value"),
        ("exponential:mean=1,", "'' is no pair key=value"),
        ("exponential:mean=1,mean=2", "mean is given twice"),
        ("exponential:mean=-1", "mean is '-1'; use a finite number from 0"),
        ("exponential:mean=nan", "mean is 'nan'; use a finite number from 0"),
        ("exponential:mean=inf", "mean is 'inf'; use a finite number from 0"),
        ("exponential:mean=fast", "mean is 'fast'; use a finite number from 0"),
        ("shifted_exponential:mean=1", "base is missing"),
        ("pareto:scale=1,alpha=1", "alpha is '1'; use a finite number above 1"),
        ("lognormal:mean=0,sigma=1", "mean is '0'; use a finite number above 0"),
        ("lognormal:mean=1,sigma=-1", "sigma is '-1'; use a finite number from 0"),
        ("persistent:slowdown=6", "ranks is missing; use persistent:ranks=,slowdown=,base=1"),
        ("persistent:ranks=6,slowdown=6", "there is no worker 6; use ranks 0 … 5"),
        ("persistent:ranks=-1,slowdown=6", "ranks is '-1'; use different ranks joined by +"),
        ("persistent:ranks=1+1,slowdown=6", "ranks is '1+1'; use different ranks joined by +"),
        ("persistent:ranks=0,slowdown=0.5", "slowdown is '0.5'; use a finite number from 1"),
        ("random_straggler:count=7,slowdown=6", "7 of 6 workers cannot straggle"),
        ("random_straggler:count=0,slowdown=6", "count is '0'; use a whole number from 1 up"),
        ("random_straggler:count=1.5,slowdown=6", "count is '1.5'; use a whole number from 1 up"),
        ("random_straggler:slowdown=6,jitter=-1", "jitter is '-1'; use a finite number from 0"),
        ("machines:heterogeneity=2", "path is missing; use machines:path=,heterogeneity=0"),
        ("trace:", "path is ''; use the path of a file or folder"),
    ],
)
def test_a_bad_law_is_refused_in_one_line_that_says_what_to_change(spec, complaint):
    with pytest.raises(BadInput) as error:
        parse(spec, 6, 0)
    message = str(error.value)
    assert message.startswith(f"--delay={spec}: ")
    assert complaint in message
    assert "\n" not in message


def test_keys_may_stand_without_a_name_and_in_any_order():
    assert specs.parse("latency=0.001,bandwidth=1e9", "--network") == (
        "",
        {"latency": "0.001", "bandwidth": "1e9"},
    )
    assert specs.parse("ring", "--graph") == ("ring", {})
    assert np.array_equal(
        table("shifted_exponential:mean=1,base=2"), table("shifted_exponential:base=2,mean=1")
    )


def test_the_help_names_every_law_with_its_keys_and_defaults():
    lines = specs.help_text(LAWS).splitlines()
    assert [line.split(":")[0].split()[0] for line in lines] == list(LAWS)
    assert any(line.startswith("persistent:ranks=,slowdown=,base=1,jitter=0 ") for line in lines)
    assert any(
        line.startswith("machines:path=,heterogeneity=0,processes=1,scale=1,") for line in lines
    )
    assert any(line.startswith("trace:PATH ") for line in lines)
