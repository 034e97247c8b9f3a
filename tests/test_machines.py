"""Files of machines: what the shipped ones say, and what is wrong with others."""

from pathlib import Path

import pytest

import experiments.adsp as adsp
from cbdybw.clusters.machines import load
from cbdybw.commit_theory import heterogeneity
from cbdybw.errors import BadInput
from experiments.adsp import machines
from experiments.adsp.published import HETEROGENEITIES, THREE_SPEEDS

FOLDER = Path(adsp.__path__[0], "machines")
CNN_BYTES = 148_298 * 4


def test_the_eighteen_machines_are_the_authors_with_the_slowed_group_last():
    eighteen = load(FOLDER / "eighteen.toml")
    assert {name: eighteen.names.count(name) for name in eighteen.names} == {
        "t2.xlarge": 5,
        "t2.2xlarge": 4,
        "t3.xlarge": 2,
        "t2.large": 7,
    }
    assert eighteen.slowed.tolist() == [False] * 11 + [True] * 7
    assert set(eighteen.names[11:]) == {"t2.large"}


def test_the_eighteen_machines_can_be_slowed_to_every_heterogeneity_of_the_paper():
    eighteen = load(FOLDER / "eighteen.toml")
    assert heterogeneity(eighteen.speeds) == pytest.approx(1.38, abs=5e-3)
    factors = [eighteen.slowdown(wanted) for wanted in HETEROGENEITIES]
    assert factors == pytest.approx([1.07, 1.62, 2.23, 2.83], abs=5e-3)
    for wanted in HETEROGENEITIES:
        for processes in (1, 2):
            steps = eighteen.step_seconds(wanted, processes)
            assert len(steps) == 18 * processes
            assert heterogeneity(1 / steps) == pytest.approx(wanted)


def test_a_commit_of_the_cnn_takes_a_tenth_of_a_second():
    eighteen = load(FOLDER / "eighteen.toml")
    both_ways = 2 * (CNN_BYTES / eighteen.bandwidth + eighteen.latency)
    assert both_ways == pytest.approx(0.115, abs=5e-4)


def test_the_three_machines_have_the_published_speeds_and_the_ratio_its_h():
    assert load(FOLDER / "three.toml").speeds == pytest.approx(THREE_SPEEDS, rel=2e-4)
    assert heterogeneity(load(FOLDER / "ratio.toml").speeds) == pytest.approx(7 / 3)


def test_the_figure_shows_the_steps_of_every_worker_at_each_heterogeneity():
    axes = machines.draw().axes[0]
    natural, *slowed = [line.get_ydata() for line in axes.lines]
    assert len(slowed) == len(HETEROGENEITIES)
    assert natural == pytest.approx(load(FOLDER / "eighteen.toml").step_seconds())
    for steps, wanted in zip(slowed, HETEROGENEITIES, strict=True):
        assert heterogeneity(1 / steps) == pytest.approx(wanted)


GOOD = """
description = "two"
[network]
bandwidth = 1e6
latency = 0
[[machines]]
name = "a"
count = 1
seconds = 1
slowed = false
[[machines]]
name = "b"
count = 1
seconds = 0.5
slowed = true
"""


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("[network]", "[network", "not TOML"),
        ('description = "two"', "", "description is missing; use a text"),
        ('"two"', "2", "description is 2; use a text"),
        ('"two"', '"two"\ncolour = 1', "there is no key 'colour'; use description, network, mach"),
        ("[network]", "[net]", "there is no key 'net'"),
        ("1e6", "0", "[network]: bandwidth is 0; use a number above 0 to 1e12"),
        ("1e6", "inf", "[network]: bandwidth is inf; use a number above 0 to 1e12"),
        ("latency = 0", "", "[network]: latency is missing; use a number from 0 to 1e12"),
        ("latency = 0", "latency = -1", "[network]: latency is -1; use a number from 0 to 1e12"),
        ("seconds = 0.5", "", "[[machines]] 2: seconds is missing; use a number above 0"),
        ("seconds = 0.5", "seconds = nan", "[[machines]] 2: seconds is nan; use a number above 0"),
        ("seconds = 0.5", "seconds = true", "[[machines]] 2: seconds is True; use a number"),
        ("seconds = 1\n", "seconds = '1'\n", "[[machines]] 1: seconds is '1'; use a number"),
        ("count = 1", "count = 0", "[[machines]] 1: count is 0; use a whole number, 1 to 100000"),
        ("count = 1", "count = 1.0", "[[machines]] 1: count is 1.0; use a whole number"),
        ("slowed = true", "slowed = 1", "[[machines]] 2: slowed is 1; use true or false"),
        ('name = "b"', "name = 'b'\nspeed = 2", "[[machines]] 2: there is no key 'speed'"),
    ],
)
def test_a_bad_file_is_refused_in_one_line_that_says_what_to_change(tmp_path, old, new, complaint):
    path = tmp_path / "two.toml"
    path.write_text(GOOD)
    assert load(path).seconds.tolist() == [1, 0.5]
    path.write_text(GOOD.replace(old, new, 1))
    with pytest.raises(BadInput) as error:
        load(path)
    assert str(error.value).startswith(f"{path}: ")
    assert complaint in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_without_machines_and_one_that_is_not_there_are_refused(tmp_path):
    path = tmp_path / "none.toml"
    with pytest.raises(BadInput, match=r"none.toml: cannot be read as text"):
        load(path)
    path.write_text('machines = []\ndescription = ""\n[network]\nbandwidth = 1\nlatency = 1\n')
    with pytest.raises(BadInput, match=r"machines is \[\]; use tables \[\[machines\]\]"):
        load(path)
