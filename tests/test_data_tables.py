"""Data sets of numbers: what is generated, what a user's own CSV may look like, what is refused."""

from dataclasses import replace

import numpy as np
import pytest

from cbdybw.errors import BadInput
from cbdybw.storage import datasets
from data_prep import chiller, csv_table, rail, tables
from data_prep.prepare import Preparation, prepare
from data_prep.samples import gaussian_bins

RAIL = Preparation(dataset="rail", pca=0, workers=3, batch_size=32)
CHILLER = replace(RAIL, dataset="chiller")


def quiet(line):
    """A log that nobody reads."""


def written(folder, name, text):
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    return str(folder)


# What is generated


@pytest.mark.parametrize(
    ("spec", "train", "test", "features"),
    [
        (RAIL, 38_072, 6_346, 10),  # 44,428 - 10 windows
        (replace(RAIL, dataset="rail:window=1000"), 37_224, 6_204, 1000),
        (CHILLER, 12_000, 2_000, 8),
    ],
)
def test_generated_data_are_prepared_loaded_and_say_what_they_are(
    tmp_path, spec, train, test, features
):
    manifest = prepare(spec, tmp_path / "set", quiet)
    data = datasets.load(tmp_path / "set")
    assert data.train_x.shape == (train, features)
    assert data.test_x.shape == (test, features)
    assert data.train_x.dtype == data.test_x.dtype == np.float32
    assert data.classes == 10
    assert len(np.unique(data.train_y)) == 10
    assert np.bincount(data.train_y).max() < 0.25 * train
    assert sorted(np.concatenate(data.parts).tolist()) == list(range(train))
    assert manifest["notice"] == "generated series (seed 0); the paper's data is private"
    assert manifest["source"]["name"] == "generated"
    assert manifest["dataset"] == spec.dataset
    assert prepare(spec, tmp_path / "set", quiet) == manifest


def test_the_seed_of_a_run_divides_generated_data_and_does_not_change_them(tmp_path):
    one = prepare(CHILLER, tmp_path / "one", quiet)
    two = prepare(replace(CHILLER, seed=1), tmp_path / "two", quiet)
    changed = {name for name in one["files"] if one["files"][name] != two["files"][name]}
    assert changed == {"partition.npy"}
    assert one["source"] == two["source"]
    assert (rail.generate(0) != rail.generate(1)).any()


def test_trains_stand_out_of_the_generated_series():
    stress = rail.generate(0)
    assert stress.shape == (44_428, 1)
    assert np.median(stress) == pytest.approx(0, abs=8)
    assert 0.02 < (stress > 40).mean() < 0.3
    assert stress.min() > -40  # nothing pulls the rail up


def test_the_generated_performance_is_one_of_chillers_and_follows_from_the_features():
    table = chiller.generate(0)
    cop, condenser_out, chilled_out = table[:, -1], table[:, 4], table[:, 5]
    assert np.bincount(table[:, 0].astype(int)).tolist() == [2800] * 5
    assert 3 < np.percentile(cop, 1) < np.percentile(cop, 99) < 20
    carnot = (chilled_out + 271) / (condenser_out - chilled_out + 4)
    assert (cop / carnot).max() < 0.62 * 1.1
    assert np.corrcoef(cop, condenser_out - chilled_out)[0, 1] < -0.5


# What is made of it


def test_a_window_is_labelled_by_the_value_that_follows_it():
    values = np.random.default_rng(0).normal(5, 2, (77, 1))
    samples = rail.samples(values, "rail", 7)
    assert samples.train_x.shape == (60, 7)
    assert samples.test_x.shape == (10, 7)
    known = values[:67, 0]
    scaled = (values[:, 0] - known.mean()) / known.std()
    np.testing.assert_allclose(samples.train_x[3], scaled[3:10], rtol=1e-6)
    np.testing.assert_allclose(samples.test_x[-1], scaled[69:76], rtol=1e-6)
    # The first bin of ten ends 1.2816 standard deviations below the mean, the fifth at the mean.
    np.testing.assert_array_equal(samples.train_y == 0, scaled[7:67] < -1.2815516)
    np.testing.assert_array_equal(samples.test_y >= 5, scaled[67:] > 0)


def test_bins_are_equally_likely_under_the_normal_law():
    values = np.random.default_rng(0).normal(-3, 7, 100_000)
    counts = np.bincount(gaussian_bins(values, values, "made up"), minlength=10)
    np.testing.assert_allclose(counts, 10_000, rtol=0.05)


def test_rows_of_each_chiller_are_divided_in_the_order_of_time():
    rng = np.random.default_rng(0)
    table = np.column_stack([np.tile([3, 8], 70), rng.random((140, 8)), np.arange(140)])
    table[:, 3] = 4.5  # a feature that never changes
    samples = chiller.samples(table, "made up")
    assert samples.train_x.shape == (120, 8)
    rows = np.concatenate([np.arange(0, 120, 2), np.arange(1, 120, 2)])
    least, largest = table[rows, 2].min(), table[rows, 2].max()
    expected = (table[rows, 2] - least) / (largest - least)
    np.testing.assert_allclose(samples.train_x[:, 1], expected, rtol=1e-5, atol=1e-7)
    assert not samples.train_x[:, 2].any()
    assert (samples.test_y == 9).all()  # COP grows from row to row here
    assert samples.train_x.min() == 0
    assert samples.train_x.max() == 1


# A user's own file


@pytest.mark.parametrize("header", ["", "stress\n", "\ufeffstress [MPa]\n"])
def test_a_series_of_the_users_is_taken_and_has_no_notice(tmp_path, header):
    values = np.random.default_rng(0).normal(size=300).round(6)
    text = header + "\n".join(map(str, values)) + "\n\n"
    raw_dir = written(tmp_path / "raw", "rail.csv", text)
    spec = replace(RAIL, raw_dir=raw_dir, dataset="rail:window=20")
    manifest = prepare(spec, tmp_path / "set", quiet)
    data = datasets.load(tmp_path / "set")
    assert manifest["notice"] is None
    assert manifest["source"]["name"] == "raw_dir"
    assert data.train_x.shape == (240, 20)
    known = values[:260]
    np.testing.assert_allclose(
        data.train_x[0], (values[:20] - known.mean()) / known.std(), rtol=1e-5
    )
    other = prepare(replace(spec, dataset="rail"), tmp_path / "other", quiet)
    assert other["files"]["train_x.npy"]["shape"] == [248, 10]  # not those of the folder beside it


def test_a_table_of_the_users_is_taken(tmp_path):
    table = chiller.generate(7)[::10]
    lines = [",".join(chiller.COLUMNS), *(",".join(f"{x:.6g}" for x in row) for row in table)]
    raw_dir = written(tmp_path / "raw", "chiller.csv", "\r\n".join(lines))
    found = tables.find("chiller", raw_dir, quiet)
    assert found.notice is None
    assert found.samples.train_x.shape == (1200, 8)
    np.testing.assert_allclose(
        found.samples.test_x, chiller.samples(table, "").test_x, rtol=0, atol=1e-4
    )


def test_a_raw_dir_without_the_file_is_no_error(tmp_path):
    log = []
    found = tables.find("chiller", str(tmp_path), log.append)
    assert found.notice == tables.NOTICE
    assert "no chiller.csv" in log[0]


ROW = "1,1,2,3,4,5,6,7,8,4.5\n"


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("rail", "stress\n1\ntwo\n", "line 3, column stress: 'two' is no finite number"),
        ("rail", "1\nnan\n", "line 2, column stress: 'nan' is no finite number"),
        ("rail", "1\n\n2\n1e999\n", "line 4, column stress: '1e999'"),
        ("rail", "stress\n1,2\n", "line 2 has 2 columns; needed are 1: stress"),
        ("rail", "stress\n", "holds no row of numbers"),
        ("rail", "", "holds no row of numbers"),
        ("rail", "1\n" * 11, "11 values are too few for windows of 10 values"),
        ("rail", "1\n" * 50, "all training values are 1; they make no classes"),
        ("rail", '1\n"2\n', "no CSV file"),
        ("chiller", ROW + ROW.replace("4.5", "high"), "line 2, column cop: 'high'"),
        ("chiller", ROW + ROW.replace(",3,", ",,"), "line 2, column f3: ''"),
        ("chiller", ROW + "1,2,3\n", "line 2 has 3 columns; needed are 10: chiller,f1,"),
        ("chiller", ROW + "1.5" + ROW[1:], "row 2 of numbers, column chiller: 1.5 is no whole"),
        ("chiller", ROW, "1 rows are too few"),
        ("chiller", ROW * 20, "all training values are 4.5"),
    ],
)
def test_a_damaged_file_is_refused_in_one_line(tmp_path, name, text, complaint):
    raw_dir = written(tmp_path / "raw", f"{name}.csv", text)
    with pytest.raises(BadInput) as refusal:
        prepare(replace(RAIL, dataset=name, raw_dir=raw_dir), tmp_path / "set", quiet)
    assert complaint in str(refusal.value)
    assert f"{name}.csv" in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert not (tmp_path / "set").exists()


def test_a_file_that_is_no_text_or_no_file_is_refused(tmp_path):
    (tmp_path / "rail.csv").write_bytes(b"\xff\xfe1\x00")
    with pytest.raises(BadInput, match="no CSV file in UTF-8"):
        csv_table.read(tmp_path / "rail.csv", rail.COLUMNS)
    with pytest.raises(BadInput, match="cannot be read"):
        csv_table.read(tmp_path, rail.COLUMNS)


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        ({"pca": 50}, "--pca=50: rail has no pixels; use --pca=0"),
        ({"dataset": "rail:window=0"}, "window is '0'; use a whole number from 1 up"),
        ({"dataset": "rail:length=5"}, "no key 'length'"),
        ({"dataset": "chiller:window=5"}, "no key 'window'"),
    ],
)
def test_a_preparation_that_makes_no_sense_cannot_be_described(flags, complaint):
    with pytest.raises(BadInput, match=complaint):
        replace(RAIL, **flags)
