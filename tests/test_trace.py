"""The trace: what it holds, how it is kept in segments, what other programs get of it."""

import json
import subprocess
import sys

import numpy as np
import pytest

from cbdybw.clusters import delays, trace
from cbdybw.clusters.trace import Event, Span, Trace, decode
from cbdybw.clusters.worker import Kind
from cbdybw.errors import BadInput
from cbdybw.problem import Weightless
from tests.runs import ROOT, run

FAR = trace.MOST_RANKS - 1, trace.MOST_ITERATIONS


def test_a_span_takes_24_bytes_and_an_event_16():
    assert trace.SPANS.itemsize == 24
    assert trace.EVENTS.itemsize == 16


def test_codes_hold_the_largest_ranks_and_iterations():
    rank, k = FAR
    record = Trace()
    record.event(rank, 1.5, Event.COLLECTED, k, rank - 1)
    record.event(0, 2.5, Kind.UPDATE, 0, rank)
    record.span(rank, Span.CHECKPOINT, k, 0.25, 0.75)
    columns = [column.tolist() for column in decode(record.events["code"])]
    assert columns == [[rank, 0], [Event.COLLECTED, Kind.UPDATE], [k, 0], [rank - 1, rank]]
    assert record.events["time"].tolist() == [1.5, 2.5]
    (span,) = record.spans
    assert (span["start"], span["end"]) == (0.25, 0.75)
    assert [int(column[0]) for column in decode(record.spans["code"])][:3] == [rank, 4, k]


def test_a_broadcast_is_an_event_of_every_rank_but_the_sender():
    one, many = Trace(), Trace()
    for rank in (0, 1, 3):
        one.event(rank, 2.0, Kind.THRESHOLD, 7, 2)
    many.broadcast(4, 2.0, Kind.THRESHOLD, 7, 2)
    np.testing.assert_array_equal(one.events, many.events)


def filled(seed, n, record=None):
    rng = np.random.default_rng(seed)
    record = record or Trace()
    for k in range(n):
        start, rank = rng.random(), int(rng.integers(9))
        record.span(rank, int(rng.integers(5)), k, start, start + 1)
        record.event(rank, start, int(rng.integers(15)), k, int(rng.integers(9)))
        record.event(rank, start + 1, int(rng.integers(15)), k, rank)
    return record


def test_segments_are_read_back_in_order_up_to_any_of_them(tmp_path):
    record = filled(0, 5)
    first = record.spans, record.events
    record.flush(tmp_path, 0, 20)
    record.flush(tmp_path, 0, 40)  # nothing happened
    filled(1, 4, record).flush(tmp_path, 0, 100)
    filled(2, 3).flush(tmp_path, 1, 100)  # of another process
    for iteration, (spans, events) in (
        (20, first),
        (99, first),
        (100, (record.spans, record.events)),
    ):
        back = Trace()
        back.restore(tmp_path, 0, iteration)
        np.testing.assert_array_equal(back.spans, spans)
        np.testing.assert_array_equal(back.events, events)
    spans, events = trace.load(tmp_path)
    assert (len(spans), len(events)) == (12, 24)


def test_a_restored_trace_writes_only_what_is_new(tmp_path):
    record = filled(0, 5)
    record.flush(tmp_path, 0, 20)
    back = Trace()
    back.restore(tmp_path, 0, 20)
    for which in (record, back):
        filled(1, 4, which)
    back.flush(tmp_path, 0, 40)
    np.testing.assert_array_equal(trace.load(tmp_path, 0)[0], record.spans)
    np.testing.assert_array_equal(trace.load(tmp_path, 0)[1], record.events)


def test_the_fingerprint_covers_every_field_and_the_parameters():
    w = np.arange(3, dtype=np.float32)
    base = (1, 0.5, Kind.UPDATE, 3, 2)
    prints = set()
    for changed in (base, (0, *base[1:]), (1, 0.6, *base[2:]), (1, 0.5, 1, 3, 2), (*base[:3], 4, 2),
                    (*base[:4], 0)):  # fmt: skip
        record = Trace()
        record.event(*changed)
        prints.add(record.sha256([w]))
    record = Trace()
    record.event(*base)
    prints.add(record.sha256([np.nextafter(w, np.float32(9))]))
    record.span(1, Span.WAIT, 0, 0.0, 1.0)
    prints.add(record.sha256([w]))
    assert len(prints) == 8


def test_the_fingerprint_of_a_timing_only_run_knows_no_addresses():
    assert Trace().sha256([Weightless(4)]) == Trace().sha256([Weightless(4)]) == Trace().sha256([])


def test_a_trace_of_another_layout_is_refused(tmp_path):
    (tmp_path / "trace").mkdir()
    np.save(tmp_path / "trace" / "events-00000-000000010.npy", np.zeros(3))
    with pytest.raises(BadInput, match="not a trace of this version"):
        trace.load_run(tmp_path, "--replay=x")


# What a run records


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trace") / "run"
    result = run(
        workload="quadratic",
        straggler_policy="drop",
        workers=4,
        delay="exponential:mean=1",
        network="latency=0.01",
        iterations=50,
        run_dir=str(folder),
    )
    return folder, result


def test_the_mean_iteration_time_is_that_of_the_average_spans(recorded):
    folder, result = recorded
    spans, _ = trace.load(folder / "trace")
    _, kind, iteration, _ = decode(spans["code"])
    averages = kind == Span.AVERAGE
    last = averages & (iteration == iteration[averages].max())
    assert iteration[last][0] + 1 == result["iterations"] == 50
    assert spans["end"][last].max() / 50 == pytest.approx(
        result["mean_iteration_seconds"], rel=1e-12
    )


def test_who_averages_has_told_both_neighbours_its_update_and_its_close(recorded):
    folder, _ = recorded
    spans, events = trace.load(folder / "trace")
    finished = {(k, j) for j, s, k, _ in columns(spans) if s == Span.AVERAGE and k < 49}
    for wanted in (Kind.UPDATE, Kind.CLOSE):  # of the last iteration some are still under way
        came = [(k, i, j) for j, m, k, i in columns(events) if m == wanted and k < 49]
        told = [(k, i, (i + side) % 4) for k, i in finished for side in (1, 3)]
        assert sorted(came) == sorted(told)


def columns(table):
    """(rank, kind, iteration, peer) of every row."""
    return zip(*(column.tolist() for column in decode(table["code"])), strict=True)


def test_compute_times_are_those_drawn_and_the_longest_where_one_was_cut_short(recorded):
    folder, _ = recorded
    law = delays.parse("exponential:mean=1", 4, 0)
    _, events = trace.load(folder / "trace")
    cut = {(r, k) for r, m, k, _ in columns(events) if m == Event.INTERRUPTED}
    assert len(cut) > 20
    for r, (started, seconds) in trace.compute_times(folder).items():
        assert (np.diff(started) > 0).all()
        whole = [(k, t) for k, t in zip(started, seconds, strict=True) if (r, k) not in cut]
        for k, t in whole:
            assert t == pytest.approx(law(r, int(k)), rel=1e-9)
        for k, t in zip(started, seconds, strict=True):
            if (r, k) in cut:
                assert t >= max(t for _, t in whole)


def test_the_trace_opens_in_perfetto(recorded):
    folder, _ = recorded
    command = [sys.executable, "-m", "experiments.trace", "--export=chrome", str(folder)]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    with open(process.stdout.strip(), encoding="utf-8") as file:
        rows = json.load(file)["traceEvents"]
    spans, events = trace.load(folder / "trace")
    _, kind, _, _ = decode(events["code"])
    by_phase = {phase: [row for row in rows if row["ph"] == phase] for phase in "XiM"}
    assert len(by_phase["X"]) == len(spans)
    assert len(by_phase["i"]) == (kind < Event.COMPUTED).sum()
    assert [row["args"]["name"] for row in by_phase["M"]] == [f"rank {r}" for r in range(4)]
    first = by_phase["X"][0]
    assert first["ts"] == spans["start"][0] * 1e6
    assert first["dur"] == pytest.approx((spans["end"][0] - spans["start"][0]) * 1e6)
    assert {row["name"] for row in by_phase["X"]} == {"compute", "wait", "average"}


def test_a_folder_without_a_trace_is_refused(tmp_path):
    with pytest.raises(BadInput, match=f"^{tmp_path}: no trace there"):
        trace.chrome(tmp_path)
    with pytest.raises(BadInput, match=f"^--delay=trace:{tmp_path}: no trace there"):
        trace.compute_times(tmp_path)
