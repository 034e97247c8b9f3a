"""A folder that others share: permissions, links, planted code, and paths that are odd."""

import os
import pickle
import stat
from pathlib import Path

import numpy as np
import pytest

from cbdybw.clusters import faults, trace
from cbdybw.errors import BadInput
from cbdybw.scar.blocks import Blocks
from cbdybw.scar.log import Log
from cbdybw.storage import atomic, datasets
from cbdybw.storage.run_directory import RunDirectory
from data_prep.prepare import Preparation, prepare
from tests.runs import binary, on_ranks, result, run

FLAGS = {"workload": "quadratic", "iterations": 25, "checkpoint_every": 10}
ODD = {
    "blanks": "two  words and 'quotes'",
    "unicode": "läufe-θ-日本",
    "long": "n" * 200,
    "shell": "$(touch planted);&|*",
}


@pytest.mark.parametrize("odd", ODD)
def test_a_run_folder_may_have_an_odd_name(tmp_path, odd):
    folder = tmp_path / ODD[odd]
    done = binary(cwd=tmp_path, run_dir=ODD[odd], **FLAGS)
    assert done.returncode == 0, done.stderr
    assert os.listdir(tmp_path) == [ODD[odd]]
    directory = RunDirectory(folder)
    assert directory.manifest()["result"] == result(done)
    again = binary("--resume", cwd=tmp_path, **FLAGS | {"run_dir": ODD[odd], "iterations": 35})
    assert (again.returncode, directory.manifest()["resumed_from"]) == (0, 20)
    replayed = binary(f"--replay={ODD[odd]}", cwd=tmp_path)
    assert result(replayed)["replay_identical"]


@pytest.mark.mpi
def test_ranks_know_an_odd_folder_too(tmp_path):
    name = f"{ODD['blanks']} {ODD['unicode']} {'n' * 120}"
    done = on_ranks(2, cwd=tmp_path, run_dir=name, graph="complete", **FLAGS)
    assert done.returncode == 0, done.stderr
    assert RunDirectory(tmp_path / name).manifest()["result"] == result(done)


@pytest.mark.parametrize("odd", ODD)
def test_prepared_data_may_have_an_odd_place(tmp_path, odd):
    wanted = Preparation(dataset="digits", pca=5, partition="iid", workers=2, batch_size=64, seed=0)
    manifest = prepare(wanted, str(tmp_path / ODD[odd] / "set"), log=lambda line: None)
    assert datasets.load(tmp_path / ODD[odd] / "set").manifest == manifest


def test_a_name_without_room_for_an_owner_gets_a_short_temporary_one(tmp_path):
    path = tmp_path / ("θ" * 120)  # 240 bytes of the 255 that a name may have
    atomic.write_text(path, "x")
    with atomic.replacing(path) as file:
        file.write(b"new")
        (partial,) = (name for name in os.listdir(tmp_path) if name != path.name)
    assert partial.startswith(f".{'θ' * 20}-")
    assert path.read_text() == "new"


@pytest.mark.parametrize("umask", [0o077, 0o027, 0o002])
def test_files_and_folders_have_the_permissions_that_the_user_wants(tmp_path, umask):
    before = os.umask(umask)
    try:
        run(run_dir=str(tmp_path / "a"), **FLAGS)
        with atomic.publishing_folder(tmp_path / "set"):
            pass
    finally:
        os.umask(before)
    made = [tmp_path / "a", tmp_path / "set", *(tmp_path / "a").rglob("*")]
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in made}
    assert modes == {p: (0o777 if p.is_dir() else 0o666) & ~umask for p in made}
    assert len(made) > 10


@pytest.mark.parametrize("what", ["checkpoints", "trace", "metrics.jsonl", "result.npz"])
def test_a_link_out_of_the_run_folder_is_not_followed(tmp_path, what):
    run(run_dir=str(tmp_path / "a"), **FLAGS)
    inside, outside = tmp_path / "a" / what, tmp_path / "outside"
    inside.rename(outside)
    inside.symlink_to(outside)
    content = {path: path.read_bytes() for path in outside.rglob("*") if path.is_file()}
    with pytest.raises(BadInput, match=rf"{what} is a symbolic link to {outside}, out of the fo"):
        run(run_dir=str(tmp_path / "a"), resume=True, **FLAGS | {"iterations": 35})
    assert {path: path.read_bytes() for path in outside.rglob("*") if path.is_file()} == content


def test_a_link_in_the_place_of_a_file_is_replaced_and_not_what_it_leads_to(tmp_path):
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "manifest.json").symlink_to("mine")
    atomic.write_text(tmp_path / "manifest.json", "new")
    assert (tmp_path / "mine").read_text() == "mine"
    assert not (tmp_path / "manifest.json").is_symlink()
    (tmp_path / "metrics.jsonl").symlink_to("mine")
    with pytest.raises(OSError, match=r"metrics\.jsonl: cannot be written"):
        atomic.append_text(tmp_path / "metrics.jsonl", "{}\n")
    assert (tmp_path / "mine").read_text() == "mine"


def test_a_run_root_may_be_reached_through_a_link(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "runs").symlink_to("disk")
    run(run_dir=str(tmp_path / "runs" / "a"), **FLAGS)
    run(run_dir=str(tmp_path / "runs" / "a"), resume=True, **FLAGS | {"iterations": 35})
    assert RunDirectory(tmp_path / "disk" / "a").manifest()["resumed_from"] == 20


class Planted:
    """Makes a file where it is unpickled."""

    def __init__(self, mark: Path):
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (str(self.mark),)


def planted(mark: Path) -> np.ndarray:
    return np.array([Planted(mark)], dtype=object)


def test_a_planted_pickle_is_refused_wherever_a_run_reads(tmp_path):
    mark = tmp_path / "ran"
    run(run_dir=str(tmp_path / "a"), **FLAGS)
    directory = RunDirectory(tmp_path / "a")
    part = tmp_path / "a" / "checkpoints" / "000000020" / "process-00000.npz"
    for path in (part, tmp_path / "a" / "result.npz"):
        with open(path, "wb") as file:
            np.savez(file, w=planted(mark))
    segment = next((tmp_path / "a" / "trace").glob("events-*"))
    np.save(segment, planted(mark))
    attempts = (
        lambda: directory.load_part(20, "process-00000"),
        directory.read_result,
        lambda: trace.load(tmp_path / "a" / "trace"),
        lambda: run(run_dir=str(tmp_path / "a"), resume=True, **FLAGS | {"iterations": 35}),
    )
    for attempt in attempts:
        with pytest.raises(BadInput, match=r"cannot be read \(Object arrays cannot be loaded"):
            attempt()
    assert not mark.exists()
    np.load(part, allow_pickle=True)["w"]  # it is a real one
    assert mark.exists()


def test_a_planted_pickle_is_refused_in_prepared_data_and_checkpoints(tmp_path):
    mark = tmp_path / "ran"
    wanted = Preparation(dataset="digits", pca=5, partition="iid", workers=2, batch_size=64, seed=0)
    prepare(wanted, str(tmp_path / "set"), log=lambda line: None)
    path = tmp_path / "set" / "train_x.npy"
    np.save(path, planted(mark))
    manifest = atomic.read_json(tmp_path / "set" / "manifest.json")
    facts = manifest["files"]["train_x.npy"]
    facts |= {"bytes": path.stat().st_size, "sha256": datasets._sha256(path)}
    atomic.write_json(tmp_path / "set" / "manifest.json", manifest)
    with pytest.raises(BadInput, match=r"train_x\.npy is no \.npy file"):
        datasets.load(tmp_path / "set")
    blocks = Blocks.rows(2, 2)
    log = Log(tmp_path / "log", blocks, "x")
    log.write(1, np.arange(2), np.zeros(4, np.float32))
    log.flush()
    saved = tmp_path / "log" / "000000001.blocks"
    saved.write_bytes(pickle.dumps(Planted(mark)))
    with pytest.raises(BadInput, match=r"000000001\.blocks"):
        Log(tmp_path / "log", blocks, "x").read(np.arange(2))
    assert not mark.exists()


@pytest.mark.parametrize(
    "line",
    [
        "--workload=$(mkdir ran)",
        "--workload=`mkdir ran`",
        "--algorithm=__import__('os').mkdir('ran')",
        "!mkdir ran",
        "import os; os.mkdir('ran')",
    ],
)
def test_a_flag_file_is_data(tmp_path, line):
    (tmp_path / "evil.flags").write_text(line + "\n")
    done = binary("--flagfile=evil.flags", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert os.listdir(tmp_path) == ["evil.flags"]


@pytest.mark.parametrize(
    "text",
    [
        "[[fault]]\nkind = \"__import__('os').mkdir('ran')\"\nranks = [1]\niteration = 1\n",
        "import os; os.mkdir('ran')\n",
        "!!python/object/apply:os.mkdir ['ran']\n",
    ],
)
def test_a_fault_file_is_data(tmp_path, monkeypatch, text):
    monkeypatch.chdir(tmp_path)
    Path("evil.toml").write_text(text)
    with pytest.raises(BadInput, match=r"^evil\.toml"):
        faults.read("evil.toml", 3, 0)
    assert os.listdir() == ["evil.toml"]
