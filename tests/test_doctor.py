"""The doctor as people call it, on folders of this machine and with peers on it."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nfs_setup import peers
from nfs_setup.findings import OK, VERDICTS

ROOT = Path(__file__).parents[1]
COMMAND = (sys.executable, "-m", "nfs_setup.doctor")
CHECKS = (
    *("permissions", "mount", "owner", "space", "quota", "names", "fsync", "rename", "clock"),
    *("O_EXCL", "hard link", "lock", "rewriting", "new file", "rewritten", "grown", "deleted"),
    *("write", "read"),
)
LOCAL = "env WHERE={host}"  # another host that is this one


def doctor(*argv, **popen):
    return subprocess.run(
        [*COMMAND, *map(str, argv)], cwd=ROOT, capture_output=True, text=True, timeout=120, **popen
    )


def examined(*argv, **popen):
    """The findings by their checks, and the whole report; the exit code is that of the verdict."""
    done = doctor(*argv, "--json", **popen)
    report = json.loads(done.stdout)
    assert done.returncode == VERDICTS.index(report["verdict"])
    assert done.stderr == ""
    return {finding["check"]: finding for finding in report["findings"]}, report


def test_everything_is_tried_in_a_local_folder_and_nothing_left_there(tmp_path):
    findings, report = examined(tmp_path)
    assert tuple(findings) == CHECKS
    assert report["path"] == str(tmp_path)
    assert os.listdir(tmp_path) == []
    for check in ("owner", "names", "rename", "clock", "O_EXCL", "hard link", "lock", "rewriting"):
        assert findings[check]["verdict"] == OK, findings[check]
    assert findings["O_EXCL"]["figures"]["single"] == 200
    assert sum(findings["hard link"]["figures"]["wins"].values()) == 200
    reading = findings["rewriting"]["figures"]
    assert (reading["torn"], reading["back"], reading["last"]) == (0, 0, True)
    assert reading["versions"] > 1
    for change in ("new file", "rewritten", "grown", "deleted"):
        assert 0 <= findings[change]["figures"]["seconds"][""] < 30
    assert findings["read"]["figures"]["bytes"] > 0


def test_lines_are_for_people_and_fit_a_terminal(tmp_path):
    done = doctor(tmp_path)
    lines = done.stdout.splitlines()
    assert all(len(line) <= 80 for line in lines[:-1])
    begun = [line[6:17].rstrip() for line in lines[:-1] if line.split(" ")[0] in VERDICTS]
    assert tuple(begun) == CHECKS
    assert lines[-1].startswith(f"{tmp_path}: fit for runs")
    assert "\x1b" not in done.stdout


def test_peers_are_asked_by_whatever_starts_a_command_there(tmp_path):
    findings, _ = examined(tmp_path, "--peers=n1,n2", f"--launch={LOCAL}")
    assert findings["peer n1"]["says"] == findings["peer n2"]["says"] == "sees the same folder"
    assert {"mount n1", "mount n2", "clock n1", "clock n2"} < findings.keys()
    assert findings["O_EXCL"]["figures"]["wins"].keys() == {"n1", "n2", "here 2"}
    assert findings["new file"]["figures"]["seconds"].keys() == {"n1", "n2"}
    assert os.listdir(tmp_path) == []


def test_a_shell_between_changes_neither_the_path_nor_the_answers(tmp_path):
    ssh = tmp_path / "ssh"
    ssh.write_text('#!/bin/sh\nshift\necho "Welcome! {}"\nexec sh -c "$*"\n')
    ssh.chmod(0o755)
    folder = tmp_path / "läufe  $HOME; 'x' #日本"
    folder.mkdir()
    findings, _ = examined(folder, "--peers=n1", f"--launch={ssh} {{host}}")
    assert findings["peer n1"]["says"] == "sees the same folder"
    assert findings["new file"]["figures"]["seconds"].keys() == {"n1"}
    assert os.listdir(folder) == []


def test_a_peer_that_cannot_be_reached_is_named_and_the_others_are_asked(tmp_path):
    launch = """sh -c '[ $0 = n1 ] && echo "no route to $0" >&2 && exit 5; exec "$@"' {host}"""
    findings, report = examined(tmp_path, "--peers=n1,n2", f"--launch={launch}")
    assert report["verdict"] == "fail"
    assert findings["peer n1"]["says"] == "cannot be asked: no route to n1"
    assert "try by hand: sh -c" in findings["peer n1"]["mend"]
    assert findings["peer n2"]["verdict"] == OK
    assert findings["new file"]["figures"]["seconds"].keys() == {"n2"}


def test_a_program_that_is_not_there_reaches_no_peer(tmp_path):
    findings, _ = examined(tmp_path, "--peers=n1", "--launch=no-such-program {host}")
    assert "No such file or directory" in findings["peer n1"]["says"]
    assert findings["new file"]["verdict"] == OK  # seen by another process here


def test_a_folder_that_nobody_can_write_to_fails():
    findings, report = examined("/proc")
    assert tuple(findings) == ("permissions", "mount", "write")
    assert findings["write"]["verdict"] == report["verdict"] == "fail"


def test_a_file_that_grows_too_large_fails_and_leaves_nothing(tmp_path):
    def limited():
        resource.setrlimit(resource.RLIMIT_FSIZE, (10**6, 10**6))

    findings, _ = examined(tmp_path, preexec_fn=limited)
    assert "files limited to 0.0 GB" in findings["space"]["says"]
    assert findings["throughput"]["says"] == "File too large (EFBIG)"
    assert findings["throughput"]["mend"].startswith("raise the limit")
    assert os.listdir(tmp_path) == []


def test_the_quota_command_is_believed(tmp_path):
    told = """\
Disk quotas for user nobody (uid 65534):
     Filesystem  blocks   quota   limit   grace   files   quota   limit   grace
     /dev/loop0   12288*  10000   20000 1796737606       1       0       0       0
"""  # of quota 4.06 on ext4
    program = tmp_path / "quota"
    program.write_text(f"#!/bin/sh\ncat << END\n{told}END\n")
    program.chmod(0o755)
    findings, _ = examined(tmp_path, env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert findings["quota"]["figures"] == {"used": 12288 * 1024, "limit": 20000 * 1024}
    assert findings["quota"]["says"] == "0.0 GB left of 0.0 GB"
    assert findings["quota"]["verdict"] == "fail"


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_when_the_doctor_is_ended(tmp_path, signum):
    with subprocess.Popen(
        [*COMMAND, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        _wait_until(lambda: os.listdir(tmp_path))
        process.send_signal(signum)
        _, errors = process.communicate(timeout=60)
    expected = -signum if signum == signal.SIGKILL else 128 + signum
    assert (process.returncode, errors) == (expected, b"")
    _wait_until(lambda: not os.listdir(tmp_path))


def _wait_until(holds):
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_peer_that_hangs_is_given_up(monkeypatch):
    monkeypatch.setattr(peers, "_PATIENCE", 0.3)
    monkeypatch.setattr(peers, "_END", 0.3)
    silent = pytest.raises(peers.NoAnswer, match=r"^no answer of n1 within 0 s$")
    with peers.Peer("n1", ["sleep", "60"]) as peer, silent:
        peer.ask("survey", path="/")
    assert peer.code == -signal.SIGKILL


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "0 folders named: give one"),
        (["/tmp", "/var"], "2 folders named: give one"),
        (["/no/such/folder"], "/no/such/folder: No such file or directory; name a folder that is"),
        (["/etc/passwd"], "/etc/passwd: is no folder"),
        (["/tmp", "--peers=-oProxyCommand=x"], "--peers: '-oProxyCommand=x' is no host"),
        (["/tmp", "--peers=n1,,n2"], "--peers: '' is no host"),
        (["/tmp", "--launch=ssh"], "--launch=ssh: does not name the host; write {host}"),
        (["/tmp", "--launch=ssh '{host}"], "--launch=ssh '{host}: No closing quotation"),
        (["/tmp", "--no_such_flag"], "Unknown command line flag 'no_such_flag'"),
    ],
)
def test_what_cannot_be_used_is_told_in_one_line(argv, message):
    done = doctor(*argv)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
