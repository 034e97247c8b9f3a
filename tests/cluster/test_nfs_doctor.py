"""Mounts that would do harm: the doctor says so before a run does it, and has no complaint else."""

import contextlib
import json
import shlex
import sys
import time

import pytest

from cbdybw.storage.run_directory import RunDirectory
from nfs_setup.findings import FAIL, OK, WARN
from tests.cluster.ganesha import PORT, Ganesha
from tests.cluster.nfs import RUNS
from tests.runs import COMMAND, ROOT, arguments

pytest_plugins = "tests.cluster.nfs_fixtures"

SPEED = {"fsync", "write", "read"}  # of this machine, whatever it is doing now
ELSEWHERE = [sys.executable, str(ROOT / "tests/cluster/programs/elsewhere.py")]
ELSEWHERE_PORT = 2222
OLD_PORT = PORT + 1
RECOMMENDED_BUT = "proto=tcp,lookupcache=positive,actimeo=1"
SOFT = f"vers=4.2,{RECOMMENDED_BUT},soft,timeo=10,retrans=1"  # gives up after 2 s, not 3 minutes


def examined(guest, folder, *flags):
    """What the doctor finds on a guest, [(check, verdict, what it says)], and its exit code."""
    done = guest.python("-m", "nfs_setup.doctor", folder, "--json", *flags, timeout=120)
    assert done.stderr == ""
    findings = json.loads(done.stdout)["findings"]
    return [(f["check"], f["verdict"], f["says"]) for f in findings], done.returncode


def bad(findings):
    """Verdicts that are not good, and what they are about; speed does not matter here."""
    return [
        (verdict, says.partition(":")[0])
        for check, verdict, says in findings
        if verdict != OK and check not in SPEED
    ]


@contextlib.contextmanager
def mounted(guest, export, point, options):
    guest.mount(export, point, options)
    try:
        yield point
    finally:
        guest.unmount(point)


def test_two_clients_with_the_recommended_options_are_fit_for_runs(share, figures):
    here, there = share.guests[:2]
    serving = there.start([*ELSEWHERE, "serve", ELSEWHERE_PORT])
    launch = f"--launch={shlex.join(ELSEWHERE)} {ELSEWHERE_PORT} {{host}}"
    began = time.monotonic()
    try:
        findings, code = examined(here, RUNS, f"--peers={there.address}", launch)
    finally:
        serving.kill()
    figures("doctor on nfs-ganesha, two clients", f"{time.monotonic() - began:.1f} s")
    assert bad(findings) == [], findings
    assert code == (1 if any(verdict == WARN for _, verdict, _ in findings) else 0)
    assert ("peer 10.78.0.3", OK, "sees the same folder") in findings
    assert {"O_EXCL", "hard link", "rewriting", "new file"} <= {check for check, _, _ in findings}


def test_the_doctor_warns_of_the_default_options(share):
    guest = share.guests[0]
    with mounted(guest, "/runs", "/mnt/default", "vers=4.2") as point:
        findings, code = examined(guest, point)
    assert bad(findings) == [
        (WARN, "lookupcache=all"),
        (WARN, "attributes are cached for long"),
    ]
    assert code == 1


def test_the_doctor_warns_of_locks_that_others_do_not_see(share, tmp_path):
    """NFS 4 takes no notice of nolock."""
    guest, exports = share.guests[0], {"/runs": share.folder}
    options = f"vers=3,{RECOMMENDED_BUT},nolock,port={OLD_PORT}"
    with (
        Ganesha(share.wire, tmp_path / "old", exports, OLD_PORT, old=True),
        mounted(guest, share.folder, "/mnt/nolock", options) as point,
    ):
        findings, code = examined(guest, point)
    assert bad(findings) == [(WARN, "nolock"), (WARN, "NFS before version 4")]
    assert code == 1


def test_the_doctor_refuses_a_soft_mount(share):
    guest = share.guests[0]
    with mounted(guest, "/runs", "/mnt/soft", SOFT) as point:
        findings, code = examined(guest, point)
    assert bad(findings) == [(FAIL, "soft")]
    assert code == 2


@pytest.fixture
def restarted(share):
    """The server, which runs again afterwards."""
    yield share.server
    share.ready()


def test_a_run_on_a_soft_mount_ends_with_one_line_when_the_server_is_away(
    share, restarted, figures
):
    guest, name = share.guests[1], "on a soft mount"
    flags = {"workload": "quadratic:dim=50", "workers": 3, "algorithm": "cb_full"}
    flags |= {"iterations": 10**6, "checkpoint_every": 200, "eval_every": 0}
    with mounted(guest, "/runs", "/mnt/soft", SOFT) as point:
        process = guest.start([*COMMAND, *arguments(flags | {"run_dir": f"{point}/{name}"})])
        try:
            end = time.monotonic() + 60
            while not list((share.folder / name).glob("checkpoints/*/complete.json")):
                assert process.poll() is None, process.stderr
                assert time.monotonic() < end
                time.sleep(0.1)
            restarted.kill()
            began = time.monotonic()
            done = process.wait(90)
        finally:
            process.kill()
    figures("NFS: soft mount, server away: the run ends after", f"{time.monotonic() - began:.0f} s")
    (line,) = done.stderr.splitlines()
    assert done.returncode == 1
    assert line.startswith(f"/mnt/soft/{name}")
    assert "cannot be written (Input/output error); look after the disk or the file server" in line
    directory = RunDirectory(share.folder / name)
    last = directory.last_checkpoint()["k"]
    assert len(directory.load_part(last, "process-00000")["state/0/w"]) == 50
