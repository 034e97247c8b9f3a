"""Published tables of numbers: Jester, MovieLens and cover types, whole and damaged."""

import gzip
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from cbdybw.errors import BadInput
from cbdybw.storage import datasets
from data_prep import covertype, csv_table, ratings
from data_prep.downloads import Unavailable
from data_prep.prepare import Preparation, prepare
from experiments import building
from experiments.settings import Settings

NAN = np.nan


def quiet(line):
    """A log that nobody reads."""


def jester_line(given: dict[int, float], count: int | None = None) -> str:
    """A user's line with the ratings in `given`, by the number of the joke from 0."""
    cells = [str(given.get(joke, 99)) for joke in range(100)]
    return ",".join([str(len(given) if count is None else count), *cells])


@pytest.fixture
def jester(tmp_path):
    lines = [jester_line({0: -7.82, 99: 10}), jester_line({}), "", jester_line({5: 0, 6: 4.17})]
    path = tmp_path / "jester-data-1.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def movielens(tmp_path):
    (tmp_path / "ml-100k").mkdir()
    path = tmp_path / "ml-100k" / "u.data"
    path.write_text("196\t242\t3\t881250949\n22\t242\t1\t878887116\n196\t7\t5\t881250950\n")
    return path


# --- what is read --------------------------------------------------------------------------------


def test_jester_is_a_row_for_each_user_with_no_rating_where_99_stands(jester):
    values = ratings.read_jester(jester)
    assert values.dtype == np.float32
    assert values.shape == (3, 100)
    assert values[0, [0, 1, 99]].tolist() == pytest.approx([-7.82, NAN, 10], nan_ok=True)
    assert np.isnan(values[1]).all()
    assert values[2, 4:8].tolist() == pytest.approx([NAN, 0, 4.17, NAN], nan_ok=True)
    assert (~np.isnan(values)).sum() == 4


def test_movielens_is_a_row_for_each_user_and_a_column_for_each_film_in_the_order_of_ids(
    movielens,
):
    values = ratings.read_movielens(movielens)
    np.testing.assert_array_equal(values, np.float32([[NAN, 1], [5, 3]]))  # 22, 196; 7, 242


def test_a_gzipped_table_of_numbers_is_the_same_one(jester):
    zipped = jester.with_suffix(".csv.gz")
    zipped.write_bytes(gzip.compress(jester.read_bytes()))
    np.testing.assert_array_equal(ratings.read_jester(zipped), ratings.read_jester(jester))


def test_empty_lines_are_no_rows_but_are_counted_as_lines(jester):
    assert [csv_table.line_of(jester, row) for row in range(3)] == [1, 2, 4]


# --- what is refused -----------------------------------------------------------------------------

DAMAGED_JESTER = {
    "2,1.5\n": "line 1 has 2 columns, not 101",
    jester_line({0: 1}) + "\n" + jester_line({0: 1})[:-3] + "\n": "line 2 has 100 columns, not 101",
    jester_line({}) + "\n\n" + jester_line({3: "x"}): "line 3, column 5: 'x' is no finite number",
    jester_line({3: "nan"}): "line 1, column 5: 'nan' is no finite number",
    jester_line({3: ""}): "line 1, column 5: '' is no finite number",
    "\n\n" + jester_line({7: 10.01}): "line 3: a rating is beyond -10 … 10 and not 99",
    jester_line({7: 1}, count=2): "line 1: the first column does not count",
    "": "it has no row",
    "\n\n": "it has no row",
}


@pytest.mark.parametrize("text", DAMAGED_JESTER)
def test_a_damaged_jester_is_refused_by_file_and_line(tmp_path, text):
    path = tmp_path / "jester-data-1.csv"
    path.write_text(text)
    with pytest.raises(BadInput) as refusal:
        ratings.read_jester(path)
    assert str(refusal.value).startswith(f"{path}: ")
    assert DAMAGED_JESTER[text] in str(refusal.value)
    assert str(refusal.value).endswith("restore the published file")
    assert "\n" not in str(refusal.value)


DAMAGED_MOVIELENS = {
    "1,1,3,0\n": "line 1 has 1 columns, not 4",
    "1\t1\t3\t0\n1\t2\t3\n": "line 2 has 3 columns, not 4",
    "1\t1\t3\t0\n0\t2\t3\t0\n": "line 2: ids are whole numbers from 1 up",
    "1\t1.5\t3\t0\n": "line 1: ids are whole numbers from 1 up",
    "1\t1\t6\t0\n": "line 1: a rating is beyond 1 … 5",
    "1\t1\t3\t0\n1\t2\t3\t0\n\n1\t1\t4\t0\n": "line 4: this user has rated this item before",
    "1\t1\tthree\t0\n": "line 1, column 3: 'three' is no finite number",
}


@pytest.mark.parametrize("text", DAMAGED_MOVIELENS)
def test_a_damaged_movielens_is_refused_by_file_and_line(tmp_path, text):
    path = tmp_path / "u.data"
    path.write_text(text)
    with pytest.raises(BadInput) as refusal:
        ratings.read_movielens(path)
    assert str(refusal.value).startswith(f"{path}: {DAMAGED_MOVIELENS[text]}")
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("content", [b"\xff\xfe\x00\x81", b"\x80abc"])
def test_a_file_of_other_bytes_is_refused_in_one_line(tmp_path, content):
    path = tmp_path / "u.data"
    path.write_bytes(content)
    with pytest.raises(BadInput, match=f"{path}: .*restore the published file") as refusal:
        ratings.read_movielens(path)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("cut", [5, -10])
def test_a_truncated_archive_is_refused_in_one_line(tmp_path, cut):
    path = tmp_path / "covtype.data.gz"
    rng = np.random.default_rng(0)
    path.write_bytes(gzip.compress(cover_types(rng.integers(1, 8, 500)).encode())[:cut])
    with pytest.raises(BadInput, match=f"{path}: cannot be read .*restore") as refusal:
        covertype.read(path)
    assert "\n" not in str(refusal.value)


# --- ratings in a folder -------------------------------------------------------------------------


@pytest.mark.parametrize(("dataset", "shape"), [("jester", (3, 100)), ("movielens", (2, 2))])
def test_ratings_are_read_once_and_loaded_from_their_folder(
    tmp_path, jester, movielens, dataset, shape
):
    out, log = tmp_path / "kept", []
    manifest = ratings.prepare(dataset, str(tmp_path), out, log.append)
    assert len(log) == 1
    jester.unlink()
    movielens.unlink()
    assert ratings.prepare(dataset, "", out, log.append) == manifest
    assert ratings.prepare(dataset, str(tmp_path), out, log.append) == manifest
    assert len(log) == 1
    kept = ratings.load(out)
    assert kept.values.shape == shape
    assert kept.name == dataset
    assert kept.manifest == manifest
    assert manifest["notice"] is None


def test_a_folder_with_other_ratings_and_a_damaged_one_are_refused(tmp_path, jester, movielens):
    out = tmp_path / "kept"
    ratings.prepare("jester", str(tmp_path), out, quiet)
    with pytest.raises(BadInput, match="prepared with --dataset=jester, not movielens"):
        ratings.prepare("movielens", str(tmp_path), out, quiet)
    with pytest.raises(BadInput, match="prepared with --raw_dir="):
        ratings.prepare("jester", str(out), out, quiet)
    array = bytearray((out / "ratings.npy").read_bytes())
    array[-1] ^= 1
    (out / "ratings.npy").write_bytes(array)
    with pytest.raises(BadInput, match=r"ratings\.npy is damaged"):
        ratings.load(out)


@pytest.mark.parametrize(
    ("dataset", "raw_dir", "words"),
    [
        ("jester", "", "--dataset=jester; give a --raw_dir=FOLDER with jester-data-1.csv"),
        ("movielens", "here", "--raw_dir=.*: has no u.data; give .*grouplens"),
    ],
)
def test_missing_ratings_are_asked_for_and_nothing_is_left_behind(
    tmp_path, dataset, raw_dir, words
):
    with pytest.raises(BadInput, match=words):
        ratings.prepare(dataset, raw_dir and str(tmp_path), tmp_path / "out", quiet)
    assert not list(tmp_path.iterdir())


def test_damaged_ratings_leave_nothing_behind(tmp_path, jester):
    jester.write_text("1,2\n")
    with pytest.raises(BadInput, match="line 1 has 2 columns"):
        ratings.prepare("jester", str(tmp_path), tmp_path / "out", quiet)
    assert [path.name for path in tmp_path.iterdir()] == ["jester-data-1.csv"]


def test_the_problem_of_a_run_is_built_from_the_users_ratings(tmp_path, jester):
    flags = {"raw_dir": str(tmp_path), "data_dir": str(tmp_path / "kept")}
    settings = Settings(algorithm="scar", workload="mf:rank=2", dataset="jester", **flags)
    problem, about = building.build_problem(settings, quiet)
    assert problem.dim == 2 * (3 + 100)
    assert about["notice"] is None
    assert len(about["sha256"]) == 64


# --- cover types ---------------------------------------------------------------------------------


def cover_types(classes: np.ndarray) -> str:
    """A line for each class, with features that are told apart."""
    rng = np.random.default_rng(1)
    measured = rng.integers(100, 5000, (len(classes), 10))
    flags = rng.integers(0, 2, (len(classes), 44))
    table = np.column_stack([measured, flags, classes])
    return "\n".join(",".join(map(str, row)) for row in table.tolist()) + "\n"


COVER = Preparation(dataset="covertype", pca=0, workers=3, batch_size=32)


@pytest.mark.parametrize("name", ["covtype.data", "covtype.data.gz"])
def test_cover_types_are_standardised_divided_and_of_seven_classes(tmp_path, name):
    classes = np.random.default_rng(0).integers(1, 8, 700)
    text = cover_types(classes).encode()
    (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith("gz") else text)
    manifest = prepare(replace(COVER, raw_dir=str(tmp_path)), tmp_path / "set", quiet)
    data = datasets.load(tmp_path / "set")
    assert data.classes == 7
    assert data.train_x.shape == (600, 54)
    assert data.test_x.shape == (100, 54)
    assert manifest["notice"] is None
    counts = np.bincount(np.concatenate([data.train_y, data.test_y]), minlength=7)
    assert counts.tolist() == np.bincount(classes - 1, minlength=7).tolist()
    np.testing.assert_allclose(data.train_x[:, :10].mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(data.train_x[:, :10].std(axis=0), 1, rtol=1e-5)
    assert np.isin(data.train_x[:, 10:], [0, 1]).all()
    # Samples keep their own features and class.
    raw = np.loadtxt(tmp_path / name, delimiter=",")
    key = {row[10:54].tobytes(): row[54] for row in raw.astype(np.float32)}
    for x, y in zip(data.test_x, data.test_y, strict=True):
        assert key[x[10:].tobytes()] == y + 1


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (cover_types(np.array([1, 8])), "line 2: 8 is no class from 1 to 7"),
        (cover_types(np.array([1, 2])).replace(",2\n", "\n"), "line 2 has 54 columns, not 55"),
        (cover_types(np.array([3])), "1 row is too few"),
    ],
)
def test_damaged_cover_types_are_refused_by_file_and_line(tmp_path, lines, words):
    (tmp_path / "covtype.data").write_text(lines)
    with pytest.raises(BadInput, match=rf"covtype\.data: {words}") as refusal:
        prepare(replace(COVER, raw_dir=str(tmp_path)), tmp_path / "set", quiet)
    assert "\n" not in str(refusal.value)
    assert not (tmp_path / "set").exists()


def test_cover_types_are_asked_for_where_they_are_neither_there_nor_on_the_network(
    tmp_path, monkeypatch
):
    with pytest.raises(BadInput, match=r"no covtype\.data there"):
        prepare(replace(COVER, raw_dir=str(tmp_path)), tmp_path / "set", quiet)

    def nowhere(url, sha256):
        raise Unavailable("no answer within 5 s")

    monkeypatch.setattr(covertype, "over_http", nowhere)
    words = r"cannot be downloaded from .* \(no answer within 5 s\); use --raw_dir=FOLDER"
    with pytest.raises(BadInput, match=words) as refusal:
        prepare(COVER, tmp_path / "set", quiet)
    assert "\n" not in str(refusal.value)
    assert not (tmp_path / "set").exists()


def test_downloaded_cover_types_are_original_and_serve_another_partition(tmp_path, monkeypatch):
    packed = gzip.compress(cover_types(np.random.default_rng(0).integers(1, 8, 700)).encode())
    asked = []

    def network(url, sha256):
        asked.append((url, sha256))
        return SimpleNamespace(data=packed)

    monkeypatch.setattr(covertype, "over_http", network)
    first = prepare(COVER, tmp_path / "one", quiet)
    assert first["source"]["original"]
    second = prepare(replace(COVER, partition="shards:2"), tmp_path / "two", quiet)
    assert second["files"]["train_x.npy"] == first["files"]["train_x.npy"]
    assert asked == [(covertype.URL, covertype.SHA256)]
    assert second["classes"] == 7


def test_ratings_in_a_folder_beside_are_no_features_of_samples(tmp_path, jester):
    ratings.prepare("jester", str(tmp_path), tmp_path / "sets" / "jester", quiet)
    rail = Preparation(dataset="rail", pca=0, workers=3, batch_size=32)
    assert prepare(rail, tmp_path / "sets" / "rail", quiet)["dataset"] == "rail"
