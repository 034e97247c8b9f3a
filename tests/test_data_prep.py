"""Preparations as a whole: PCA, the manifest, and nothing half-written."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cbdybw.errors import BadInput
from cbdybw.storage import datasets
from data_prep.features import features
from data_prep.images import Images, Split
from data_prep.prepare import Preparation, prepare, summary
from tests import raw_data

DIGITS = Preparation(dataset="digits", pca=20, workers=6, batch_size=200)
BINARY = [sys.executable, "-m", "data_prep.prepare"]


def quiet(line):
    """A log that nobody reads."""


def names(folder):
    return sorted(path.name for path in Path(folder).iterdir())


@pytest.fixture
def tiny(tmp_path):
    """A preparation without PCA of a tiny MNIST in a folder of the user's."""
    raw = raw_data.idx_folder(tmp_path / "raw")
    return Preparation(dataset="mnist", pca=0, workers=3, batch_size=50, raw_dir=str(raw))


# What is prepared


def test_the_digits_are_prepared_and_loaded(tmp_path):
    manifest = prepare(DIGITS, tmp_path / "set", quiet)
    data = datasets.load(tmp_path / "set")
    assert data.manifest == manifest
    assert data.train_x.shape == (1547, 20)
    assert data.test_x.shape == (250, 20)
    counts = np.bincount(data.train_y) + np.bincount(data.test_y)
    assert counts.tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert data.train_y[:12].tolist() == [*range(10), 0, 1]
    assert [len(part) for part in data.parts] == [258] * 5 + [257]
    assert sorted(np.concatenate(data.parts).tolist()) == list(range(1547))
    assert manifest["parameters"]["pca"] == 20
    assert manifest["image_shape"] == [8, 8]
    assert manifest["notice"] is None
    assert manifest["source"]["name"] == "embedded"
    assert manifest["files"]["pca_components.npy"]["shape"] == [20, 64]
    assert manifest["versions"]["numpy"] == np.__version__
    assert json.loads((tmp_path / "set" / "manifest.json").read_text()) == manifest


def test_pca_is_that_of_the_training_split_alone():
    rng = np.random.default_rng(0)
    mixing = rng.normal(size=(30, 30)) * 8
    pixels = np.clip(rng.normal(size=(400, 30)) @ mixing + 128, 0, 255).astype(np.uint8)
    pixels = pixels.reshape(-1, 5, 6)
    labels = np.zeros(400, np.uint8)
    images = Images(Split(pixels[:300], labels[:300], "a"), Split(pixels[300:], labels[300:], "b"))
    ours = features(images, 7)

    train, test = (split.pixels.reshape(-1, 30) / 255 for split in (images.train, images.test))
    mean = train.mean(0)
    _, scale, rows = np.linalg.svd(train - mean, full_matrices=False)
    signs = np.sign((ours.arrays["pca_components.npy"] * rows[:7]).sum(1))
    rows = rows[:7] * signs[:, None]
    np.testing.assert_allclose(ours.arrays["pca_mean.npy"], mean, atol=1e-6)
    np.testing.assert_allclose(ours.arrays["pca_components.npy"], rows, atol=1e-4)
    np.testing.assert_allclose(ours.train, (train - mean) @ rows.T, atol=2e-4)
    np.testing.assert_allclose(ours.test, (test - mean) @ rows.T, atol=2e-4)
    explained = (scale[:7] ** 2).sum() / (scale**2).sum()
    assert ours.about["pca"]["explained_variance"] == pytest.approx(explained, abs=1e-5)
    assert ours.train.dtype == ours.test.dtype == np.float32


def test_without_pca_the_features_are_the_pixels_between_0_and_1(tmp_path, tiny):
    manifest = prepare(tiny, tmp_path / "set", quiet)
    data = datasets.load(tmp_path / "set")
    pixels, labels = raw_data.images(300, 0)
    assert manifest["image_shape"] == [4, 5]
    np.testing.assert_allclose(data.train_x.reshape(-1, 4, 5), pixels / 255, rtol=1e-6)
    np.testing.assert_array_equal(data.train_y, labels)
    assert manifest["pca"] is None
    assert manifest["scaling"] == "pixels / 255"
    digits = prepare(replace(DIGITS, pca=0), tmp_path / "digits", quiet)
    assert digits["scaling"] == "pixels / 16"
    assert datasets.load(tmp_path / "digits").train_x.max() == 1


def test_the_same_preparation_twice_gives_the_same_files(tmp_path):
    one = prepare(DIGITS, tmp_path / "one", quiet)
    two = prepare(DIGITS, tmp_path / "two", quiet)
    other = prepare(replace(DIGITS, seed=1), tmp_path / "other", quiet)
    assert one == two
    changed = {n for n, facts in other["files"].items() if facts != one["files"][n]}
    assert changed == {"partition.npy"}


def test_more_components_than_features_are_refused(tmp_path, tiny):
    with pytest.raises(BadInput, match=r"--pca=21: .* 20 pixels have at most 20 .*use --pca=20"):
        prepare(replace(tiny, pca=21), tmp_path / "set", quiet)
    prepare(replace(tiny, pca=20), tmp_path / "set", quiet)
    assert names(tmp_path) == ["raw", "set"]


def test_pca_of_images_that_are_all_alike_is_refused():
    alike = Split(np.full((9, 4, 4), 7, np.uint8), np.zeros(9, np.uint8), "train.gz")
    with pytest.raises(BadInput, match=r"train\.gz: all training images are alike"):
        features(Images(alike, alike), 2)


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        ({"dataset": "imagenet"}, "--dataset=imagenet: unknown; use auto, mnist, "),
        ({"partition": "random"}, "--partition=random: unknown"),
        ({"pca": -1}, "--pca=-1: use 0 or more"),
        ({"workers": 0}, "--workers=0: use 1 or more"),
        ({"batch_size": 0}, "--batch_size=0: use 1 or more"),
        ({"seed": -1}, "--seed=-1: use 0 or more"),
        ({"dataset": "digits", "raw_dir": "x"}, "leave --raw_dir out"),
    ],
)
def test_a_preparation_that_makes_no_sense_cannot_be_described(flags, complaint):
    with pytest.raises(BadInput, match=complaint):
        Preparation(**flags)


# Where the folder stands already


def test_preparing_again_writes_nothing_and_verifies_everything(tmp_path):
    first = prepare(DIGITS, tmp_path / "set", quiet)
    before = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "set").iterdir()}
    log = []
    assert prepare(DIGITS, tmp_path / "set", log.append) == first
    assert {p.name: p.stat().st_mtime_ns for p in (tmp_path / "set").iterdir()} == before
    assert "prepared before; all checksums hold" in log[-1]
    path = tmp_path / "set" / "train_x.npy"
    path.write_bytes(path.read_bytes()[:-1] + b"\x99")
    with pytest.raises(BadInput, match=r"train_x\.npy is damaged"):
        prepare(DIGITS, tmp_path / "set", quiet)


def test_other_parameters_are_refused_and_named(tmp_path):
    prepare(DIGITS, tmp_path / "set", quiet)
    other = replace(DIGITS, pca=10, partition="shards:2")
    with pytest.raises(BadInput) as error:
        prepare(other, tmp_path / "set", quiet)
    assert "pca is 20 there, 10 asked for" in str(error.value)
    assert "partition is iid there, shards:2 asked for" in str(error.value)
    assert "seed" not in str(error.value)


def test_a_set_from_another_raw_dir_is_refused_but_no_raw_dir_asks_for_no_particular_one(
    tmp_path, tiny
):
    prepare(tiny, tmp_path / "set", quiet)
    prepare(replace(tiny, raw_dir=""), tmp_path / "set", quiet)
    other = raw_data.idx_folder(tmp_path / "other")
    with pytest.raises(BadInput, match=r"raw_dir is .*raw there, .*other asked for"):
        prepare(replace(tiny, raw_dir=str(other)), tmp_path / "set", quiet)


def test_auto_is_content_with_mnist(tmp_path, tiny):
    prepare(tiny, tmp_path / "set", quiet)
    prepare(replace(tiny, dataset="auto", raw_dir=""), tmp_path / "set", quiet)
    with pytest.raises(BadInput, match="dataset is mnist there, digits asked for"):
        prepare(replace(tiny, dataset="digits", raw_dir=""), tmp_path / "set", quiet)


def test_a_folder_of_other_things_is_not_touched(tmp_path):
    (tmp_path / "thesis").write_text("chapter 1")
    with pytest.raises(BadInput, match="holds other files; name a new folder"):
        prepare(DIGITS, tmp_path, quiet)
    with pytest.raises(BadInput, match="is a file; name a folder"):
        prepare(DIGITS, tmp_path / "thesis", quiet)
    with pytest.raises(BadInput, match="cannot be written"):
        prepare(DIGITS, tmp_path / "thesis" / "set", quiet)
    assert names(tmp_path) == ["thesis"]


# Features that are there already


def inodes(folder):
    return {path.name: path.stat().st_ino for path in folder.glob("*.npy")}


def test_another_partition_of_the_same_data_shares_the_files_of_its_features(tmp_path, tiny):
    log = []
    prepare(tiny, tmp_path / "one", quiet)
    reused = prepare(replace(tiny, workers=2, seed=5), tmp_path / "two", log.append)
    assert f"features are those of {tmp_path / 'one'}" in log[-1]
    one, two = inodes(tmp_path / "one"), inodes(tmp_path / "two")
    assert {name for name in one if one[name] != two[name]} == {"partition.npy"}
    alone = prepare(replace(tiny, workers=2, seed=5), tmp_path / "elsewhere" / "two", quiet)
    assert reused == alone
    datasets.verify(tmp_path / "two")
    assert [len(part) for part in datasets.load(tmp_path / "two").parts] == [150, 150]


def test_features_are_shared_by_copies_where_there_are_no_hard_links(tmp_path, tiny, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    one = prepare(tiny, tmp_path / "one", quiet)
    monkeypatch.setattr(os, "link", refuse)
    two = prepare(replace(tiny, seed=1), tmp_path / "two", quiet)
    assert not set(inodes(tmp_path / "one").values()) & set(inodes(tmp_path / "two").values())
    assert one["files"]["train_x.npy"] == two["files"]["train_x.npy"]
    datasets.verify(tmp_path / "two")


def test_damaged_features_are_not_reused(tmp_path, tiny):
    prepare(tiny, tmp_path / "one", quiet)
    path = tmp_path / "one" / "test_x.npy"
    path.write_bytes(path.read_bytes()[:-1] + b"\x99")
    log = []
    prepare(replace(tiny, seed=1), tmp_path / "two", log.append)
    assert "one/test_x.npy is damaged" in log[0]
    assert any("computing features" in line for line in log)
    datasets.verify(tmp_path / "two")


@pytest.mark.parametrize("change", ["pca", "raw_dir", "versions", "notice"])
def test_other_features_are_not_reused(tmp_path, tiny, change):
    prepare(tiny, tmp_path / "one", quiet)
    other = tiny
    if change == "pca":
        other = replace(tiny, pca=3)
    elif change == "raw_dir":
        other = replace(tiny, raw_dir=str(raw_data.idx_folder(tmp_path / "other")))
    else:
        path = tmp_path / "one" / "manifest.json"
        manifest = json.loads(path.read_text())
        manifest[change] = {"versions": {"numpy": "1.0"}, "notice": "a stand-in"}[change]
        path.write_text(json.dumps(manifest))
    log = []
    prepare(other, tmp_path / "two", log.append)
    assert any("computing features" in line for line in log)


def test_the_folder_of_a_run_beside_a_set_is_no_sibling(tmp_path, tiny):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "manifest.json").write_text('{"status": "finished"}')
    prepare(tiny, tmp_path / "set", quiet)
    datasets.verify(tmp_path / "set")


def test_two_partitions_made_at_once_from_a_third_are_both_sound(tmp_path, tiny):
    prepare(tiny, tmp_path / "first", quiet)
    both = [
        subprocess.Popen(
            [*BINARY, *arguments(replace(tiny, seed=seed), tmp_path / f"set{seed}")],
            stderr=subprocess.PIPE,
            text=True,
        )
        for seed in (1, 2)
    ]
    said = [process.communicate()[1] for process in both]
    assert all("features are those of" in text for text in said)
    for seed in (1, 2):
        datasets.verify(tmp_path / f"set{seed}")


# The binary, two at once, and kill -9


def arguments(spec, out):
    given = {name: getattr(spec, name) for name in spec.__annotations__}
    return [f"--{name}={value}" for name, value in given.items()] + [f"--out={out}"]


def test_the_binary_ends_with_a_one_line_summary(tmp_path, tiny):
    done = subprocess.run(
        [*BINARY, *arguments(tiny, tmp_path / "set")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == summary(datasets.read_manifest(tmp_path / "set"), tmp_path / "set") + "\n"
    assert "300 + 20 samples of 20 features (no PCA), iid over 3 workers" in done.stdout
    assert "mnist: read from raw_dir" in done.stderr


@pytest.mark.parametrize(
    ("flag", "complaint"),
    [
        ("--workers=two", "flag --workers=two: invalid literal"),
        ("--workers=7", "--workers=7 --batch_size=50: one batch each takes 350 samples"),
        ("--partition=nan", "--partition=nan: unknown; use iid"),
        ("--colour=red", "Unknown command line flag 'colour'"),
        ("mnist", "mnist: not a flag"),
    ],
)
def test_a_bad_flag_ends_the_binary_with_one_line_and_exit_code_2(tmp_path, tiny, flag, complaint):
    command = [*BINARY, *arguments(tiny, tmp_path / "set"), flag]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert complaint in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert names(tmp_path) == ["raw"]


def test_a_damaged_file_ends_the_binary_with_one_line_and_leaves_nothing(tmp_path, tiny):
    path = tmp_path / "raw" / "train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:-9])
    command = [*BINARY, *arguments(tiny, tmp_path / "set")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(f"{path}: truncated or damaged")
    assert "Traceback" not in done.stderr
    assert names(tmp_path) == ["raw"]


def test_two_preparations_at_once_make_one_sound_set(tmp_path, tiny):
    command = [*BINARY, *arguments(tiny, tmp_path / "set")]
    both = [subprocess.Popen(command) for _ in range(2)]
    assert [process.wait() for process in both] == [0, 0]
    datasets.load(tmp_path / "set")
    datasets.verify(tmp_path / "set")
    assert names(tmp_path) == ["raw", "set"]


def test_of_two_different_preparations_at_once_one_is_refused(tmp_path, tiny):
    specs = (tiny, replace(tiny, seed=1))
    both = [
        subprocess.Popen([*BINARY, *arguments(spec, tmp_path / "set")], stderr=subprocess.PIPE)
        for spec in specs
    ]
    complaints = [process.communicate()[1].decode() for process in both]
    codes = [process.returncode for process in both]
    assert sorted(codes) == [0, 2]
    assert "prepared with other parameters (seed is " in complaints[codes.index(2)]
    winner = specs[codes.index(0)]
    assert datasets.load(tmp_path / "set").manifest["parameters"]["seed"] == winner.seed
    assert names(tmp_path) == ["raw", "set"]


def test_a_set_published_while_we_worked_is_taken_when_it_is_the_same(tmp_path, tiny):
    """The other one comes between our look at the folder and our publishing."""

    def overtake(line):
        if "writing" in line:
            prepare(spec_of_the_other, tmp_path / "set", quiet)

    spec_of_the_other = tiny
    theirs = prepare(tiny, tmp_path / "set", overtake)
    assert theirs == datasets.read_manifest(tmp_path / "set")
    shutil.rmtree(tmp_path / "set")
    spec_of_the_other = replace(tiny, workers=2)
    with pytest.raises(BadInput, match="workers is 2 there, 3 asked for"):
        prepare(tiny, tmp_path / "set", overtake)
    assert names(tmp_path) == ["raw", "set"]


KILLED = """
import os, signal, sys
from data_prep.prepare import Preparation, prepare

fsync, left = os.fsync, int(sys.argv[1])

def fsync_or_die(descriptor):
    global left
    left -= 1
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    fsync(descriptor)

os.fsync = fsync_or_die
prepare(Preparation("mnist", 0, "iid", 3, 50, 0, sys.argv[2]), sys.argv[3])
"""


@pytest.mark.parametrize("syncs", [0, 1, 5, 9, 11])
def test_kill_9_in_the_middle_leaves_nothing_to_load_and_the_next_one_tidies_up(
    tmp_path, tiny, syncs
):
    """Each of the six files is synced, and then its folder: twelve moments to die."""
    out = tmp_path / "set"
    command = [sys.executable, "-c", KILLED, str(syncs), tiny.raw_dir, str(out)]
    assert subprocess.run(command, capture_output=True).returncode == -signal.SIGKILL
    assert len(names(tmp_path)) == 2
    with pytest.raises(BadInput, match=r"manifest\.json is missing"):
        datasets.load(out)
    prepare(tiny, out, quiet)
    datasets.load(out)
    assert names(tmp_path) == ["raw", "set"]
