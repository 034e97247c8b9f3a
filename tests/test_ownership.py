"""Who may write to a run folder, and how it is known that the owner is dead."""

import json
import multiprocessing
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from cbdybw.errors import BadInput, Evicted, Unwritable
from cbdybw.storage import ownership
from cbdybw.storage.ownership import Job, Owner, check_is_free, new, take

LONG_AGO = time.time() - 3600


@pytest.fixture
def quick(monkeypatch):
    """Owners that are given up after less than a second."""
    monkeypatch.setattr(ownership, "BEAT", 0.05)
    monkeypatch.setattr(ownership, "_WATCHED", 0.4)
    monkeypatch.setattr(ownership, "_LOOK", 0.02)


def owner_file(folder: Path, number: int, touched: float | None = None, **said) -> Path:
    """The file of an owner on another machine."""
    about = {"host": "far", "process": 7, "job": "17_2", "restarts": 0}
    about |= {"started": "2026-01-01T00:00:00+00:00"}
    path = folder / f"owner.{number}.json"
    path.write_text(json.dumps(about | {"machine": "another boot", "born": "1"} | said))
    if touched is not None:
        os.utime(path, times=(touched, touched))
    return path


def owners(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def taken(folder: Path, job: Job | None = None) -> int:
    return take(folder, job, "--run_dir=x", log=lambda line: None)


def check_lives(folder: Path) -> None:
    with pytest.raises(BadInput, match="in use"):
        check_is_free(folder, None, "")


def test_a_free_folder_is_taken_and_given_back(tmp_path):
    number = taken(tmp_path, Job("5"))
    said = json.loads((tmp_path / "owner.1.json").read_text())
    assert (number, said["process"], said["job"]) == (1, os.getpid(), "5")
    with Owner(tmp_path, number, lose=pytest.fail):
        check_lives(tmp_path)
    check_is_free(tmp_path, None, "")
    assert taken(tmp_path) == 2  # a number is never given twice
    assert owners(tmp_path) == ["owner.2.json"]


def test_a_living_owner_is_named_with_host_process_and_job(tmp_path):
    owner_file(tmp_path, 3)
    refusal = (
        "--run_dir=x: in use by process 7 on far (job 17_2) since 2026-01-01T00:00:00+00:00; "
        "wait for it, or name another folder"
    )
    for attempt in (lambda: taken(tmp_path), lambda: check_is_free(tmp_path, None, "--run_dir=x")):
        with pytest.raises(BadInput, match=f"^{re.escape(refusal)}$"):
            attempt()
    assert owners(tmp_path) == ["owner.3.json"]


def test_an_owner_of_this_machine_lives_as_long_as_its_process(tmp_path):
    child = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys, pathlib; from cbdybw.storage import ownership\n"
            "ownership.new(pathlib.Path(sys.argv[1]), None); print(flush=True); input()",
            str(tmp_path),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[1],
    )
    child.stdout.readline()
    os.utime(tmp_path / "owner.1.json", times=(LONG_AGO, LONG_AGO))  # no matter
    with pytest.raises(BadInput, match=f"in use by process {child.pid} on "):
        taken(tmp_path)
    child.kill()
    child.wait()
    assert taken(tmp_path) == 2
    assert owners(tmp_path) == ["owner.2.json"]


def test_a_process_that_has_only_the_number_of_the_owner_is_another(tmp_path):
    said = ownership._about(None)
    owner_file(tmp_path, 1, **said | {"born": str(int(said["born"]) - 1)})
    assert taken(tmp_path) == 2


def test_an_owner_elsewhere_is_dead_without_a_sign_of_life(tmp_path, quick):
    owner_file(tmp_path, 4, LONG_AGO)
    check_is_free(tmp_path, None, "")
    assert taken(tmp_path) == 5
    assert owners(tmp_path) == ["owner.5.json"]


def test_an_owner_that_was_cut_off_from_the_server_shows_that_it_lives(tmp_path, quick):
    path = owner_file(tmp_path, 4, LONG_AGO)
    threading.Timer(0.2, os.utime, (path,)).start()
    with pytest.raises(BadInput, match="in use by process 7 on far"):
        taken(tmp_path)


@pytest.mark.parametrize("skew", [-3600, 3600])
def test_clocks_of_machines_do_not_matter(tmp_path, quick, skew, monkeypatch):
    """Both stamps are the server's: what this machine takes for the time is never asked."""
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + skew)
    owner_file(tmp_path, 1)
    with pytest.raises(BadInput, match="in use"):
        taken(tmp_path)
    owner_file(tmp_path, 1, LONG_AGO)
    assert taken(tmp_path) == 2


def test_a_job_that_is_started_again_waits_for_its_own_end(tmp_path, quick, monkeypatch):
    monkeypatch.setattr(ownership, "STALE", 0.5)
    path, lines = owner_file(tmp_path, 1), []
    beats = [threading.Timer(n / 5, os.utime, (path,)) for n in range(6)]
    for beat in beats:
        beat.start()
    began = time.monotonic()
    assert take(tmp_path, Job("17_2", 1), "--run_dir=x", lines.append) == 2
    assert time.monotonic() - began > 1.0  # it was alive for that long
    assert lines == ["--run_dir=x: waits for the end of process 7 on far (job 17_2)"]


def test_the_same_start_of_a_job_is_refused_like_any_other(tmp_path):
    owner_file(tmp_path, 1)
    with pytest.raises(BadInput, match=r"in use by process 7 on far \(job 17_2\)"):
        taken(tmp_path, Job("17_2", 0))


@pytest.mark.parametrize("text", ["", "{", "[]", "{}"])
def test_a_damaged_owner_counts_as_long_as_it_is_fresh(tmp_path, quick, text):
    path = tmp_path / "owner.1.json"
    path.write_text(text)
    with pytest.raises(BadInput, match="in use by a process of which its owner file says nothing"):
        taken(tmp_path)
    os.utime(path, times=(LONG_AGO, LONG_AGO))
    assert taken(tmp_path) == 2


def _race(folder: str, barrier, won) -> None:
    for round_ in range(40):
        barrier.wait()
        try:
            taken(Path(folder, str(round_)))
        except BadInput:
            continue
        with won.get_lock():
            won.value += 1
    barrier.wait()  # an owner lives as long as its process


def test_of_many_that_find_a_dead_owner_one_takes_over(tmp_path):
    context = multiprocessing.get_context("fork")
    for round_ in range(40):
        (tmp_path / str(round_)).mkdir()
        owner_file(tmp_path / str(round_), 1, **ownership._about(None) | {"born": "0"})
    barrier, won = context.Barrier(4), context.Value("i", 0)
    racers = [context.Process(target=_race, args=(str(tmp_path), barrier, won)) for _ in range(4)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join(60)
    assert won.value == 40
    for round_ in range(40):
        assert len(owners(tmp_path / str(round_))) == 1


def test_a_slow_taker_yields_to_who_came_later(tmp_path, quick, monkeypatch):
    """It found owner 1 dead, slept, and woke when 2 had come and gone and 3 was at work."""
    owner_file(tmp_path, 1, LONG_AGO)

    judges = ownership._is_dead

    def sleeps(*args):
        monkeypatch.setattr(ownership, "_is_dead", judges)
        (tmp_path / "owner.1.json").unlink()
        owner_file(tmp_path, 3)
        return True

    monkeypatch.setattr(ownership, "_is_dead", sleeps)
    with pytest.raises(BadInput, match="in use by process 7 on far"):
        taken(tmp_path)
    assert owners(tmp_path) == ["owner.3.json"]


def test_a_taker_that_is_overtaken_by_one_that_has_left_tries_again(tmp_path, quick, monkeypatch):
    owner_file(tmp_path, 1, LONG_AGO)
    links = ownership._link

    def slowly(folder, number, job):
        monkeypatch.setattr(ownership, "_link", links)
        (folder / "owner.1.json").unlink()
        owner_file(folder, 3, 0.0)
        return links(folder, number, job)

    monkeypatch.setattr(ownership, "_link", slowly)
    assert taken(tmp_path) == 4
    assert owners(tmp_path) == ["owner.4.json"]


def test_an_owner_that_comes_back_does_nothing_to_those_who_came_after_it(tmp_path, quick):
    """It was cut off; a second one came and left, and a third one is at work."""
    number = new(tmp_path, None)
    lost = threading.Event()
    with Owner(tmp_path, number, lose=lambda loss: lost.set()):
        (tmp_path / "owner.1.json").unlink()
        path = owner_file(tmp_path, 3)
        assert lost.wait(20)
    assert path.stat().st_mtime > LONG_AGO
    assert owners(tmp_path) == ["owner.3.json"]


@pytest.mark.parametrize("said", [{"process": None}, {"machine": None}, {"born": "x"}])
def test_an_owner_that_says_nonsense_counts_as_long_as_it_is_fresh(tmp_path, quick, said):
    path = owner_file(tmp_path, 1, **said)
    with pytest.raises(BadInput, match="in use by process"):
        taken(tmp_path)
    os.utime(path, times=(LONG_AGO, LONG_AGO))
    assert taken(tmp_path) == 2


def test_a_folder_in_the_place_of_an_owner_is_no_reason_to_fall_over(tmp_path, quick):
    (tmp_path / "owner.1.json").mkdir()
    with pytest.raises(BadInput, match="in use by a process of which its owner file says nothing"):
        taken(tmp_path)


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "not a folder").write_text("")
    with pytest.raises(Unwritable, match="not a folder: cannot be written"):
        ownership._link(tmp_path / "not a folder", 1, None)


def test_an_owner_gives_signs_of_life(tmp_path, quick):
    path = tmp_path / f"owner.{new(tmp_path, None)}.json"
    os.utime(path, times=(LONG_AGO, LONG_AGO))
    with Owner(tmp_path, 1, lose=pytest.fail):
        end = time.monotonic() + 20
        while path.stat().st_mtime < LONG_AGO + 60 and time.monotonic() < end:
            time.sleep(0.02)
    assert time.monotonic() < end


@pytest.mark.parametrize(
    ("how", "kind", "words"),
    [
        ("taken", Evicted, r"process 7 on far \(job 17_2\) has taken over this run folder"),
        ("half gone", Unwritable, "its folder is gone: begin anew in another one"),
        ("gone", Unwritable, "its folder is gone: begin anew in another one"),
    ],
)
def test_an_owner_learns_that_its_folder_is_no_longer_its_own(tmp_path, quick, how, kind, words):
    folder, losses, told = tmp_path / "a", [], threading.Event()
    folder.mkdir()
    number = new(folder, None)

    def lose(loss):
        losses.append(loss)
        told.set()

    with Owner(folder, number, lose) as owner:
        owner.check()
        if how == "taken":
            owner_file(folder, 2)
        else:
            (folder / "owner.1.json").unlink()
        if how == "gone":
            folder.rmdir()
        assert told.wait(20)
        with pytest.raises(kind, match=words):
            owner.check()
    assert [type(loss) for loss in losses] == [kind]
    if how == "taken":
        check_lives(folder)
