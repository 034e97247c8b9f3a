"""What one client writes and another one reads at the same time, over NFS."""

import json
import sys

import numpy as np

from cbdybw.clusters import trace
from cbdybw.clusters.trace import Trace
from cbdybw.storage.run_directory import RunDirectory
from tests.cluster.nfs import RUNS
from tests.cluster.programs import nfs_rank

pytest_plugins = "tests.cluster.nfs_fixtures"

PROGRAMS = "tests.cluster.programs"
VERSIONS = 1000
ROUNDS = 5
SEEN_WITHIN = 2.0  # seconds, by the recommended options


def test_readers_see_no_torn_or_mixed_state_during_1000_rewrites(share, figures):
    writer, *readers = share.guests[:3]
    path = f"{RUNS}/rewritten"
    program = [sys.executable, "-m", f"{PROGRAMS}.nfs_rewriting"]
    assert writer.run([*program, "write", path, 1], timeout=60).returncode == 0
    reading = [reader.start([*program, "read", path, VERSIONS]) for reader in readers]
    done = writer.run([*program, "write", path, VERSIONS], timeout=120)
    assert done.returncode == 0, done.stderr
    for process in reading:
        ended = process.wait(30)
        assert ended.returncode == 0, ended.stderr
        seen = json.loads(ended.stdout)
        assert (seen["mixed"], seen["back"]) == (0, 0)
        assert seen["versions"] > VERSIONS / 20  # it did read while the other one wrote
        figures(
            "NFS: 1,000 rewrites, a reader",
            f"{seen['reads']} reads of {seen['versions']} versions, none torn, none back",
        )


def test_what_another_client_writes_is_seen_within_2_seconds(share, figures):
    asks, answers = share.guests[:2]
    folder = f"{RUNS}/visible"
    assert asks.run(["mkdir", folder], timeout=30).returncode == 0
    program = [sys.executable, "-m", f"{PROGRAMS}.nfs_visibility"]
    process = answers.start([*program, "answer", folder, ROUNDS])
    done = asks.run([*program, "ask", folder, ROUNDS], timeout=120)
    assert done.returncode == 0, done.stderr
    assert process.wait(30).returncode == 0, process.stderr
    for kind, took in json.loads(done.stdout).items():
        figures(f"NFS: a file is {kind}, and seen there and back within", f"{max(took):.2f} s")
        assert len(took) == ROUNDS
        assert max(took) < SEEN_WITHIN


def test_a_run_folder_that_four_clients_write_is_complete(share):
    program = [sys.executable, "-m", f"{PROGRAMS}.nfs_rank"]
    ranks = [
        guest.start([*program, rank, len(share.guests), f"{RUNS}/four"])
        for rank, guest in enumerate(share.guests)
    ]
    for process in ranks:
        done = process.wait(100)
        assert done.returncode == 0, done.stderr
    directory = RunDirectory(share.folder / "four")
    last, kept = nfs_rank.CUTS[-1], nfs_rank.CUTS[-2:]
    assert directory.manifest()["status"] == "finished"
    assert directory.last_checkpoint() == {"k": last, "clock": last / 2}
    assert [row["iteration"] for row in directory.metrics()] == list(nfs_rank.CUTS)
    names = [f"{nfs_rank.name(rank)}.npz" for rank in range(4)]
    for k in kept:
        found = sorted(path.name for path in (directory.path / f"checkpoints/{k:09d}").iterdir())
        assert found == ["complete.json", *names]
    for rank in range(4):
        expected = Trace()
        for k in nfs_rank.CUTS:
            nfs_rank.record(expected, rank, k)
        spans, events = trace.load(directory.trace, rank)
        np.testing.assert_array_equal(spans, expected.spans)
        np.testing.assert_array_equal(events, expected.events)
        for k in kept:
            part = directory.load_part(k, nfs_rank.name(rank))
            np.testing.assert_array_equal(part["w"], nfs_rank.part(rank, k)["w"])
    assert not list(directory.path.rglob(".*"))
