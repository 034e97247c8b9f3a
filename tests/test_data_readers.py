"""Readers of the original formats: what they read, and what they refuse and how."""

import gzip
import os
import pickle
import pickletools
import struct

import numpy as np
import pytest

from cbdybw.errors import BadInput
from data_prep import cifar, idx, npz, sources
from data_prep.files import File
from tests import raw_data

BATCH = pickle.dumps(raw_data.cifar_batch(4, 0), protocol=4)


def found(dataset, folder):
    """What the user gets who names `folder`."""
    return sources.find(dataset, str(folder), log=lambda line: None)


@pytest.fixture
def mnist(tmp_path):
    return raw_data.idx_folder(tmp_path / "mnist")


def test_idx_gzipped_idx_and_npz_give_the_same_images(tmp_path, mnist):
    zipped = raw_data.idx_folder(tmp_path / "zipped", zipped=True)
    packed = raw_data.npz_folder(tmp_path / "packed")
    pixels, labels = raw_data.images(300, 0)
    test_pixels, test_labels = raw_data.images(20, 1)
    for folder in (mnist, zipped, packed):
        images = found("mnist", folder).images
        np.testing.assert_array_equal(images.train.pixels, pixels)
        np.testing.assert_array_equal(images.train.labels, labels)
        np.testing.assert_array_equal(images.test.pixels, test_pixels)
        np.testing.assert_array_equal(images.test.labels, test_labels)


def test_a_cifar_folder_and_its_archive_give_the_same_images_with_channels_last(tmp_path):
    batches = [raw_data.cifar_batch(4, seed) for seed in range(6)]
    folder = raw_data.cifar_folder(tmp_path / "cifar-10-batches-py")
    archive = raw_data.cifar_archive(tmp_path / "archive")
    for place in (folder, folder.parent, archive):
        images = found("cifar10", place).images
        assert images.train.pixels.shape == (20, 32, 32, 3)
        assert images.train.labels.tolist() == [y for b in batches[:5] for y in b[b"labels"]]
        assert images.test.labels.tolist() == batches[5][b"labels"]
        for channel in range(3):
            plane = batches[5][b"data"][:, channel * 1024 : (channel + 1) * 1024]
            np.testing.assert_array_equal(images.test.pixels[..., channel].reshape(4, 1024), plane)


def test_pickles_that_python_2_wrote_under_numpys_old_names_are_read():
    old = BATCH.replace(b"\x8c\x16numpy._core.multiarray", b"\x8c\x15numpy.core.multiarray")
    # The frame around the pickle is now one byte shorter; protocol 2 had no frames at all.
    old = old.replace(old[2:11], b"", 1)
    names = {argument for _, argument, _ in pickletools.genops(old) if isinstance(argument, str)}
    assert "numpy.core.multiarray" in names
    assert "numpy._core.multiarray" not in names
    pixels = cifar.batch(File("data_batch_1", old)).pixels
    np.testing.assert_array_equal(pixels, cifar.batch(File("data_batch_1", BATCH)).pixels)


def test_a_pickle_that_would_run_something_is_refused_and_runs_nothing(tmp_path):
    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "ran"),)

    folder = raw_data.cifar_folder(tmp_path / "cifar")
    (folder / "data_batch_3").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(BadInput, match=r"data_batch_3: .*asks for posix\.mkdir, .*not allowed"):
        found("cifar10", folder)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (BATCH[: len(BATCH) // 2], "truncated or unreadable pickle"),
        (b"", "truncated or unreadable pickle"),
        (pickle.dumps([1, 2]), "no dict with data and labels"),
        (pickle.dumps({b"data": 1}), "no dict with data and labels"),
    ],
)
def test_a_batch_that_is_none_is_refused(content, complaint):
    with pytest.raises(BadInput, match=f"data_batch_1: .*{complaint}"):
        cifar.batch(File("data_batch_1", content))


@pytest.mark.parametrize(
    ("replaced", "complaint"),
    [
        ({b"labels": [1, 2, 3]}, "3 labels for the 4 images"),
        ({b"labels": [1, 2, 3, 10]}, "label 10 of sample 3 is out of range"),
        ({b"labels": [1.0, 2.0, 3.0, 4.0]}, "labels must be integers; these are float64"),
        ({b"data": np.zeros((4, 3071), np.uint8)}, r"shape \(4, 3071\)"),
        ({b"data": np.zeros((0, 3072), np.uint8), b"labels": np.zeros(0, int)}, "no pixels"),
        ({b"data": np.full((4, 3072), np.nan)}, "float64 with NaN"),
    ],
)
def test_a_batch_with_wrong_content_is_refused(replaced, complaint):
    content = pickle.dumps(raw_data.cifar_batch(4, 0) | replaced, protocol=4)
    with pytest.raises(BadInput, match=f"data_batch_1: .*{complaint}"):
        cifar.batch(File("data_batch_1", content))


def test_a_damaged_archive_or_one_without_a_batch_is_named(tmp_path):
    path = raw_data.cifar_archive(tmp_path) / cifar.ARCHIVE
    content = path.read_bytes()
    for damaged in (content[: len(content) // 2], b"no archive"):
        path.write_bytes(damaged)
        with pytest.raises(BadInput, match=r"cifar-10-python\.tar\.gz: truncated or damaged"):
            found("cifar10", tmp_path)
    with pytest.raises(BadInput, match=r"tar\.gz: holds no file cifar-10-batches-py/data_batch_1"):
        cifar.read_archive(lambda name: File(name, gzip.compress(bytes(1024))))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda data: data[:7], "truncated in its header, after 7 bytes"),
        (lambda data: data[:-1], r"announces 6000 values \(300, 4, 5\), 5999 follow"),
        (lambda data: data + b"\0", "announces 6000 values .* 6001 follow"),
        (lambda data: struct.pack(">I", 2049) + data[4:], "magic number 2049; .* 2051"),
        (lambda data: data[:4] + struct.pack(">I", 2**31) + data[8:], "truncated or damaged"),
        (lambda data: gzip.compress(data)[:-20], "truncated or damaged gzip file"),
        (lambda data: gzip.compress(data)[:-8] + bytes(8), "truncated or damaged gzip file"),
        (lambda data: b"", "truncated in its header"),
    ],
)
def test_a_damaged_idx_file_is_named_with_what_is_wrong(mnist, change, complaint):
    path = mnist / "train-images-idx3-ubyte"
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(BadInput, match=f"train-images-idx3-ubyte: .*{complaint}"):
        found("mnist", mnist)


def test_labels_that_do_not_fit_are_refused(mnist):
    path = mnist / "t10k-labels-idx1-ubyte"
    labels = raw_data.images(20, 1)[1]
    path.write_bytes(raw_data.idx(labels[:-1]))
    with pytest.raises(BadInput, match="t10k-labels-idx1-ubyte: 19 labels for the 20 images"):
        found("mnist", mnist)
    labels[7] = 10
    path.write_bytes(raw_data.idx(labels))
    with pytest.raises(BadInput, match="labels-idx1-ubyte: label 10 of sample 7 is out of range"):
        found("mnist", mnist)


def test_training_and_test_images_of_different_sizes_are_refused(mnist):
    (mnist / "t10k-images-idx3-ubyte").write_bytes(raw_data.idx(np.zeros((20, 5, 5), np.uint8)))
    with pytest.raises(BadInput, match=r"t10k-images-idx3-ubyte: images of shape 5×5, .* 4×5"):
        found("mnist", mnist)


@pytest.mark.parametrize(
    ("replaced", "complaint"),
    [
        ({"x_train": np.full((300, 4, 5), np.nan)}, r"\[x_train\].*float64 with NaN"),
        ({"x_test": np.zeros((20, 4, 5), np.float32)}, r"\[x_test\].*must be uint8.*float32"),
        ({"y_train": np.full(300, np.nan)}, r"\[y_train\].*integers.*NaN"),
        ({"y_train": np.full(300, -1)}, r"\[y_train\].*label -1 of sample 0"),
        ({"y_train": np.zeros(299, int)}, r"\[y_train\].*299 labels for the 300 images"),
        ({"x_train": np.zeros((300, 20), np.uint8)}, r"\[x_train\].*\(300, 20\)"),
        ({"x_train": np.array([{}])}, "Object arrays cannot be loaded"),
    ],
)
def test_an_npz_with_wrong_content_is_refused(tmp_path, replaced, complaint):
    with pytest.raises(BadInput, match=rf"mnist\.npz.*{complaint}"):
        found("mnist", raw_data.npz_folder(tmp_path, **replaced))


def test_an_npz_that_lacks_an_array_or_is_damaged_is_refused(tmp_path):
    path = tmp_path / "mnist.npz"
    np.savez(path, x_train=np.zeros((3, 4, 5), np.uint8))
    with pytest.raises(BadInput, match=r"mnist\.npz: y_train .*needed are"):
        found("mnist", tmp_path)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(BadInput, match=r"mnist\.npz: truncated"):
        found("mnist", tmp_path)


@pytest.mark.parametrize("dataset", ["mnist", "cifar10"])
def test_a_raw_dir_without_the_files_says_which_are_needed(tmp_path, dataset):
    with pytest.raises(BadInput, match=rf"--raw_dir=.*: no {dataset} there; name a folder with"):
        found(dataset, tmp_path)
    with pytest.raises(BadInput, match=rf"no {dataset} there"):
        found(dataset, tmp_path / "nowhere")


def test_one_missing_file_is_named(tmp_path, mnist):
    (mnist / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(BadInput, match="t10k-labels-idx1-ubyte is missing"):
        found("mnist", mnist)
    cifar10 = raw_data.cifar_folder(tmp_path / "cifar")
    (cifar10 / "data_batch_4").unlink()
    with pytest.raises(BadInput, match="data_batch_4 is missing"):
        found("cifar10", cifar10)


def test_files_that_are_not_the_published_ones_are_taken_and_marked(mnist):
    log = []
    source = sources.find("mnist", str(mnist), log.append).source
    assert (source["name"], source["original"]) == ("raw_dir", False)
    assert "not the published mnist" in log[-1]


def test_one_data_set_is_not_taken_for_another(mnist, monkeypatch):
    """Fashion-MNIST's files have MNIST's names; only the content tells them apart."""
    monkeypatch.setitem(sources.ORIGINALS, "mnist", found("mnist", mnist).images.sha256())
    with pytest.raises(BadInput, match="this is mnist; use --dataset=mnist"):
        found("fashion_mnist", mnist)


@pytest.mark.parametrize("seed", range(4))
def test_random_damage_is_refused_in_one_line_or_goes_unnoticed(tmp_path, seed):
    rng = np.random.default_rng(seed)
    packed = (raw_data.npz_folder(tmp_path) / npz.NAME).read_bytes()
    archive = (raw_data.cifar_archive(tmp_path) / cifar.ARCHIVE).read_bytes()
    pixels = raw_data.idx(raw_data.images(30)[0])
    readers = [
        (pixels, lambda data: idx.parse(File("f", data), 3)),
        (gzip.compress(pixels), lambda data: idx.parse(File("f", data), 3)),
        (packed, lambda data: npz.read(lambda name: File(name, data))),
        (BATCH, lambda data: cifar.batch(File("f", data))),
        (archive, lambda data: cifar.read_archive(lambda name: File(name, data))),
    ]
    refusals = []
    for content, read in readers:
        for _ in range(40):
            damaged = bytearray(content)
            for place in rng.integers(0, len(content), 2):
                damaged[place] = rng.integers(0, 256)
            try:
                read(bytes(damaged))
            except BadInput as error:
                refusals.append(str(error))
    assert len(refusals) > 60
    assert not any("\n" in refusal for refusal in refusals)
