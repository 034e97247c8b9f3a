"""From measurements to verdicts, with measurements that are made up."""

import stat

import pytest

from nfs_setup import verdicts
from nfs_setup.findings import FAIL, OK, WARN, Finding, refused, worst

FOLDER = stat.S_IFDIR
GB = 10**9


def survey(mode=0o755, umask=0o022):
    return {"path": "/mnt/runs", "mode": FOLDER | mode, "umask": umask}


def space(free=90 * GB, files=10**6, limit=None):
    return {"free": free, "files": files, "file_limit": limit}


RENAMED = {"old_stays": True, "new_is_there": True, "folder_kept": True}
READ = {"reads": 5000, "torn": 0, "back": 0, "versions": 90, "last": True}


@pytest.mark.parametrize(
    ("finding", "verdict", "fragment"),
    [
        (verdicts.place(survey()), OK, "umask 022: all may read"),
        (verdicts.place(survey(umask=0o077)), OK, "umask 077: not all may read"),
        (verdicts.place(survey(umask=0)), WARN, "everybody may write to your run folders"),
        (verdicts.place(survey(mode=0o777)), WARN, "everybody may replace what lies in /mnt/runs"),
        (verdicts.place(survey(mode=0o1777)), OK, "umask 022"),
        (verdicts.owner({"user": 1000, "writer": 1000}), OK, "belong to you"),
        (verdicts.owner({"user": 65534, "writer": 0}), WARN, "made by user 0 belong to user 65534"),
        (verdicts.space(space()), OK, "90.0 GB free, room for 1,000,000 files"),
        (verdicts.space(space(files=None)), OK, "an unknown number of files"),
        (verdicts.space(space(free=3 * GB)), WARN, "3.0 GB free"),
        (verdicts.space(space(free=10**6)), FAIL, "0.0 GB free"),
        (verdicts.space(space(files=500)), WARN, "room for 500 files"),
        (verdicts.space(space(files=0)), FAIL, "room for 0 files"),
        (verdicts.space(space(limit=GB)), WARN, "files limited to 1.0 GB"),
        (verdicts.quota(None), OK, "none is known of here"),
        (verdicts.quota({"used": 10 * GB, "limit": 100 * GB}), OK, "90.0 GB left of 100.0 GB"),
        (verdicts.quota({"used": 99 * GB, "limit": 100 * GB}), WARN, "1.0 GB left"),
        (verdicts.quota({"used": 101 * GB, "limit": 100 * GB}), FAIL, "0.0 GB left"),
        (verdicts.clock({"ahead": 0.01, "took": 0.3}, "clock"), OK, "within 0.30 s"),
        (verdicts.clock({"ahead": 5.0, "took": 0.0}, "clock n1"), WARN, "5.0 s behind the times"),
        (verdicts.clock({"ahead": -3600.0, "took": 0.0}, "clock"), FAIL, "3600.0 s ahead of"),
        (verdicts.fsync([0.001, 0.002, 0.3]), OK, "2.0 ms for a small file, 300.0 ms at most"),
        (verdicts.fsync([0.05, 0.06, 0.07]), WARN, "60.0 ms"),
        (verdicts.fsync([1.5]), FAIL, "1500.0 ms"),
        (verdicts.rename(RENAMED), OK, "the old file or the new one"),
        (verdicts.rename({**RENAMED, "old_stays": False}), FAIL, "an open file changes"),
        (verdicts.rename({**RENAMED, "folder_kept": False}), FAIL, "folder with content is repl"),
        (verdicts.names({"kept": True, "case": True}), OK, "254 bytes"),
        (verdicts.names({"kept": False, "case": True}), WARN, "are not kept"),
        (verdicts.names({"kept": True, "case": False}), WARN, "A and a are the same file"),
        (verdicts.race("create", 4, {"a": [0, 3], "b": [1, 2]}), OK, "4 races (2 : 2)"),
        (verdicts.race("create", 4, {"a": [0, 1, 3], "b": [1, 2]}), FAIL, "1 of 4 races"),
        (verdicts.race("link", 4, {"a": [0], "b": [1, 2]}), FAIL, "1 of 4 races"),
        (verdicts.lock(True, True), OK, "keeps others out"),
        (verdicts.lock(False, True), WARN, "two processes hold the same lock"),
        (verdicts.lock(True, False), WARN, "is not free"),
        (verdicts.rewriting(READ, 100), OK, "100 versions, 5000 reads"),
        (verdicts.rewriting(READ | {"torn": 1}, 100), FAIL, "1 of a mixture of two"),
        (verdicts.rewriting(READ | {"back": 2}, 100), WARN, "2 of an older one than before"),
        (verdicts.rewriting(READ | {"last": False}, 100), WARN, "the last one was not seen"),
        (verdicts.rate("write", {"bytes": 64e6, "seconds": 0.5}), OK, "128 MB/s (64 MB, durable)"),
        (verdicts.rate("read", {"bytes": 30e6, "seconds": 3.0}), WARN, "10 MB/s (30 MB)"),
    ],
)
def test_a_measurement_is_judged(finding, verdict, fragment):
    assert finding.verdict == verdict
    assert fragment in finding.says
    if verdict != OK:
        assert finding.mend


@pytest.mark.parametrize(
    ("delays", "listed", "verdict", "fragment"),
    [
        ({"n1": 0.1, "n2": 1.3}, {"n1": False, "n2": False}, OK, "is seen after 1.30 s"),
        ({"n1": 27.0, "n2": 0.1}, {"n1": False, "n2": False}, WARN, "27.00 s on n1: the client's"),
        ({"n1": 0.1, "n2": None}, {"n1": False, "n2": True}, WARN, "on n2 for 30 s: it is in the"),
        ({"n1": None, "n2": None}, {"n1": True, "n2": False}, FAIL, "on n1, n2, in 30 s and by"),
        ({"": None}, {"": False}, FAIL, "not seen by another process"),
    ],
)
def test_what_is_seen_late_is_told_from_what_is_never_seen(delays, listed, verdict, fragment):
    finding = verdicts.visibility("new", delays, listed, 30.0)
    assert finding.verdict == verdict
    assert fragment in finding.says
    assert finding.figures["seconds"] == delays


def test_what_the_system_refuses_fails_and_is_named_with_its_mend():
    finding = refused("write", OSError(28, "whatever"))
    assert finding.says == "No space left on device (ENOSPC)"
    assert finding.mend.startswith("make room")
    assert refused("write", OSError(122, "")).mend.startswith("your quota is used up")
    assert refused("write", OSError(95, "")).verdict == FAIL


def test_the_worst_finding_is_the_verdict_on_all():
    assert worst([]) == OK
    findings = [Finding("a", OK, ""), Finding("b", FAIL, ""), Finding("c", WARN, "")]
    assert worst(findings) == FAIL
    assert worst(findings[::2]) == WARN
