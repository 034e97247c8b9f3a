"""Flags: what they say survives a flagfile, and what is wrong ends in one line and exit code 2."""

import dataclasses
import math

import pytest
from absl import flags

from cbdybw.errors import BadInput
from experiments import building, settings
from experiments.settings import Settings
from tests.runs import binary, on_ranks, run


def parsed(*argv: str) -> Settings:
    """The settings that absl makes of a command line."""
    values = flags.FlagValues()
    settings.define_flags(values)
    settings.parse_flags(["train", *argv], values)
    return settings.from_flags(values)


UNUSUAL = Settings(
    cluster="mpi",
    algorithm="cb_full",
    workload="2nn:width=8,depth=3",
    data_dir="a folder: with=blanks, commas/é",
    partition="dirichlet:0.1",
    graph="file:edges.txt",
    delay="persistent:ranks=0+3,slowdown=6,base=1",
    eta0=1e-07,
    eta_decay=1 / 3,
    max_time=12.5,
    target_loss=-0.1,
    seed=2**32 - 1,
    run_dir="-x",
    resume=True,
    checkpoint_every=3,
)


@pytest.mark.parametrize("given", [Settings(), UNUSUAL], ids=["defaults", "unusual"])
def test_a_flagfile_gives_the_same_settings_again(tmp_path, given):
    path = tmp_path / "flags.txt"
    path.write_text(given.flagfile(), encoding="utf-8")
    assert settings.from_flagfile(given.flagfile()) == given
    assert parsed(f"--flagfile={path}") == given
    assert parsed(f"--flagfile={path}").flagfile() == given.flagfile()


def test_a_flagfile_names_every_setting():
    names = [line.split("=")[0] for line in Settings().flagfile().splitlines()]
    assert names == [f"--{field.name}" for field in dataclasses.fields(Settings)]
    assert "--max_time=inf\n" in Settings().flagfile()
    assert "--resume=false\n" in Settings().flagfile()


def test_flags_given_after_a_flagfile_win(tmp_path):
    path = tmp_path / "flags.txt"
    path.write_text(UNUSUAL.flagfile(), encoding="utf-8")
    again = parsed(f"--flagfile={path}", "--seed=5", "--noresume")
    assert again == dataclasses.replace(UNUSUAL, seed=5, resume=False)


@pytest.mark.parametrize("text", ["a\nb", " a", "a ", "\tb", "a\x00", "\udce4"])
def test_a_text_that_no_flagfile_could_hold_is_refused(text):
    with pytest.raises(BadInput, match=r"--run_dir=.*flagfile"):
        Settings(run_dir=text)


def test_a_line_that_is_no_flag_is_refused():
    with pytest.raises(BadInput, match="--colour=red: no flag"):
        settings.from_flagfile("--colour=red\n")


NUMBERS = {
    "workers": (-1, 0, 2**17 + 1, 10**30),
    "servers": (-1, 0, 2**17, 10**30),
    "backup_workers": (-1,),
    "staleness": (-1,),
    "local_steps": (-1, 0),
    "pca": (-1,),
    "batch_size": (-5, 0),
    "iterations": (-1, 0, 2**25, 10**30),
    "seed": (-1, 2**32, 10**30),
    "eval_every": (-1,),
    "checkpoint_every": (-1,),
    "eta0": (-0.1, 0.0, math.inf, -math.inf, math.nan),
    "eta_decay": (-0.1, 0.0, 1.01, math.inf, math.nan),
    "max_time": (-1.0, 0.0, -math.inf, math.nan),
    "target_loss": (math.nan,),
    "tau": (-1, 0, 10**10),
    "commit_rate": (-1, 10**22),
    "reward_points": (-1, 2, 10**5),
    "check_period": (-1.0, 0.0, 1e-17, 1e300, math.inf, math.nan),
    "probe_window": (-1.0, 0.0, 1e-17, 1e300, math.inf, math.nan),
    "search_epoch": (-1.0, 0.0, 1e-17, 1e300, math.inf, math.nan),
    "time_factor": (-1.0, 0.0, math.inf, math.nan),
    "global_eta": (-0.1, math.inf, math.nan),
    "server_momentum": (-0.1, 1.0, math.inf, math.nan),
    "eval_seconds": (-1.0, 1e-9, math.inf, math.nan),
    "checkpoint_fraction": (-0.1, 0.0, 1.01, math.inf, math.nan),
    "checkpoint_period": (-1, 0),
    "failure_rate": (-0.1, 1.01, math.nan),
    "lost_share": (-0.1, 0.0, 1.01, math.nan),
}


def test_every_number_among_the_settings_has_a_test_of_its_limits():
    numbers = {
        field.name for field in dataclasses.fields(Settings) if field.type in ("int", "float")
    }
    assert numbers == NUMBERS.keys()


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in NUMBERS.items() for value in values]
)
def test_a_number_out_of_range_is_named_with_what_is_allowed(name, value):
    with pytest.raises(BadInput, match=f"--{name}={value}".replace("+", r"\+") + ".*use"):
        Settings(**{name: value})


REFUSED = {
    "--cluster=moon": "virtual or mpi",
    "--algorithm=adam": "cb_full or cb_dybw",
    "--algorithm=cb_static --backup_workers=3": "has 2 neighbours only; use at most 2",
    "--algorithm=cb_static --backup_workers=-1": "use 0 or more",
    "--algorithm=cb_static --clock=paper": "use --straggler_policy=carry or drop or late",
    "--algorithm=dsgd_aau --straggler_policy=drop": "use --straggler_policy=carry",
    "--algorithm=ps_backup --backup_workers=6": "use at most 5",
    "--algorithm=ps_backup --straggler_policy=late": "use --straggler_policy=carry or drop",
    "--algorithm=dbw --clock=paper": "use --straggler_policy=carry or drop",
    "--algorithm=ssp --staleness=-1": "--staleness=-1: use 0 or more",
    "--algorithm=bsp --servers=0": "--servers=0: use 1",
    "--algorithm=bsp --workload=quadratic:dim=3 --servers=4": "use at most 3",
    "--algorithm=bsp --combine=cta": "has one order of a step",
    "--algorithm=ad_psgd --combine=cta": "has one order of a step",
    "--algorithm=adsp --servers=2 --delay=constant:mean=1": "use --servers=1",
    "--algorithm=adacomm --servers=3": "looks at the whole model; use --servers=1",
    "--algorithm=adsp": "the steps of worker 0 take no time",
    "--algorithm=adsp_plus --delay=constant:mean=0": "give a --delay",
    "--algorithm=cb_adsp --commit_rate=2": "the steps of worker 0 take no time",
    "--algorithm=cb_adsp --delay=constant:mean=1": "give a whole number from 1 up",
    "--algorithm=fixed_adacomm --combine=cta": "has one order of a step",
    "--algorithm=adsp --batch_tune --delay=constant:mean=1": "use bsp or fixed_adacomm",
    "--algorithm=adsp --local_steps=5 --delay=constant:mean=1": "has steps of its own",
    "--algorithm=bsp --batch_tune --local_steps=5": "--batch_tune has steps of its own",
    "--algorithm=cb_adsp --commit_rate=1 --combine=cta": "has one order of a step",
    "--algorithm=cb_adsp --commit_rate=2 --max_time=20": "is due at 30 s",
    "--algorithm=adsp --commit_timer=restart --probe_window=10": "use more than that",
    "--check_period=1e-2 --time_factor=1e-2": "use 0.001 … 1e+09 seconds in all",
    "--commit_timer=never": "due or restart",
    "--local_steps=0": "--local_steps=0: use 1",
    "--workload=vgg": "lrm, 2nn, cnn, rnn, svm, timing, quadratic",
    "--workload=lrm:width=3": "no key 'width'",
    "--workload=2nn:width=0": "whole number from 1",
    "--dataset=cats": "--dataset=cats",
    "--partition=halves": "--partition=halves",
    "--partition=shards:0": "--partition=shards:0",
    "--graph=torus": "use one of ring",
    "--graph=grid --workers=7": "use 6, 8 or 9",
    "--graph=hypercube --workers=6": "use 4 or 8",
    "--graph=erdos_renyi:p=0.01": "none of 100 draws is connected",
    "--graph=file:absent.txt": "absent.txt",
    "--graph=file:pieces.txt --workers=4": "not connected",
    "--delay=gamma:mean=1": "'gamma' is not known",
    "--delay=exponential:rate=1": "no key 'rate'",
    "--delay=exponential": "mean is missing",
    "--delay=exponential:mean=nan": "finite number",
    "--delay=exponential:mean=-1": "from 0",
    "--delay=persistent:ranks=9,slowdown=2": "use ranks 0 … 5",
    "--delay=trace:absent": "--delay=trace:absent: no trace there",
    "--network=latency=-1": "latency",
    "--network=bandwidth=0": "bytes per second above 0",
    "--network=speed=1": "no key 'speed'",
    "--network=links=absent.txt": "absent.txt",
    "--straggler_policy=wait": "carry or drop or late",
    "--clock=paper --straggler_policy=drop": "give one of them",
    "--edge_rule=two": "one or all",
    "--barrier=none": "global or neighbours",
    "--eta_decay_every=day": "epoch or iteration",
    "--combine=both": "atc or cta",
    "--batch_size=400": "use at most --batch_size=257",
    "--checkpoint_every=5 --run_dir=": "give --run_dir",
    "--resume --run_dir=": "give --run_dir",
    "--resume": "holds no run",
    "--cluster=mpi --clock=paper": "use --cluster=virtual",
    "--cluster=mpi --network=latency=1": "use --cluster=virtual",
    "--cluster=mpi": "mpirun -n 6",
    "--replay=absent": "holds no run",
    "--replay=pieces.txt": "holds no run",
    "--data_dir=elsewhere": "elsewhere",
    "--run_dir=pieces.txt": "exists already",
    "--run_dir=elsewhere": "exists already",
    "--workload=quadratic --run_dir=pieces.txt/run": "name another",
    "--workload=quadratic --run_dir=/proc/run": "name another",
}
"""Flags, and words of the line that refuses them."""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder to run in, with some files that are not ours."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pieces.txt").write_text("0 1\n2 3\n")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "notes.txt").write_text("mine")
    return tmp_path


def tree(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize("argv", REFUSED, ids=lambda argv: argv)
def test_bad_flags_are_refused_in_one_line_before_anything_is_written(place, argv):
    before = tree(place)
    flagged = ["--dataset=digits", "--batch_size=256", "--run_dir=run", *argv.split()]
    with pytest.raises(BadInput) as refusal:
        run(**dataclasses.asdict(parsed(*flagged)))
    assert REFUSED[argv] in str(refusal.value)
    assert len(str(refusal.value).splitlines()) == 1
    assert tree(place) == before


def refused_in_one_line(process) -> str:
    assert process.returncode == 2, process.stderr
    assert process.stdout == ""
    assert len(process.stderr.splitlines()) == 1, process.stderr
    return process.stderr


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("--colour=red",), "Unknown command line flag 'colour'"),
        (("--worker=3",), "Did you mean: workers"),
        (("--workers=many",), "--workers=many"),
        (("--eta0=fast",), "--eta0=fast"),
        (("--flagfile=absent.txt",), "absent.txt"),
        (("--run_dir",), "run_dir"),
        (("ring",), "ring: not a flag"),
        (("--graph=grid", "--workers=7"), "use 6, 8 or 9"),
        (("--eta0=nan",), "--eta0=nan"),
    ],
)
def test_the_binary_says_one_line_and_leaves_with_2(place, argv, words):
    before = tree(place)
    assert words in refused_in_one_line(binary(*argv, cwd=place))
    assert tree(place) == before


def test_help_lists_every_flag_and_the_tables_to_choose_from(tmp_path):
    said = binary("--help", cwd=tmp_path).stdout
    for field in dataclasses.fields(Settings):
        assert f"--{field.name}" in said or f"--[no]{field.name}" in said
    for words in ("2nn:width=256,depth=2", "erdos_renyi:p=", "shifted_exponential:base=,mean="):
        assert words in said


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("--workers=4",), "--workers=4: 2 MPI ranks are running"),
        (("--cluster=virtual",), "--cluster=virtual: needs no mpirun"),
        (("--algorithm=bsp",), "--workers=2 --servers=1: 2 MPI ranks are running"),
        (("--algorithm=bsp", "--servers=5"), "start with mpirun -n 7"),
        (("--delay=exponential:mean=nan",), "mean is 'nan'"),
        (("--run_dir=elsewhere",), "exists already"),
        (("--workload=lrm", "--dataset=digits", "--batch_size=2000"), "--batch_size"),
        (("--colour=red",), "Unknown command line flag"),
    ],
)
def test_all_ranks_leave_and_one_line_is_said_on_mpi(place, argv, words):
    before = tree(place)
    process = on_ranks(2, "--workload=quadratic", "--graph=path", *argv, cwd=place)
    assert words in refused_in_one_line(process)
    assert tree(place) == before


def test_a_worker_of_scar_has_no_file_to_corrupt(tmp_path):
    (tmp_path / "faults.toml").write_text(
        '[[fault]]\nkind = "corrupt"\nranks = [1]\niteration = 5\n'
    )
    given = Settings(
        algorithm="scar",
        workload="qp",
        workers=3,
        servers=4,
        faults=str(tmp_path / "faults.toml"),
        run_dir=str(tmp_path / "run"),
    )
    with pytest.raises(BadInput, match=r"rank 1 is a worker of scar.*role = .servers."):
        building.build(given, log=print)


def test_steps_of_its_own_leave_no_room_for_local_ones():
    with pytest.raises(BadInput, match="--local_steps=3: --algorithm=scar has steps of its own"):
        Settings(algorithm="scar", workload="qp", local_steps=3)
