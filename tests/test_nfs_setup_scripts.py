"""server.sh and client.sh: what they say they would do, and what they refuse. No root, no change.

What they really do is tried on machines of their own: tests/cluster/test_setup_scripts.py.
"""

import os
import subprocess
from pathlib import Path

import pytest

from nfs_setup.mounts import RECOMMENDED

SCRIPTS = Path(__file__).parents[1] / "nfs_setup"
SERVER = ("server.sh", "/srv/cbdybw-test", "10.0.0.0/24")
CLIENT = ("client.sh", "10.0.0.1:/srv/runs", "/mnt/cbdybw-test")


def script(name, *argv, first=()):
    return subprocess.run(
        [*first, str(SCRIPTS / name), *argv], capture_output=True, text=True, timeout=30
    )


def test_a_server_would_export_with_the_recommended_options():
    done = script(*SERVER, "--dry-run")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert "+ mkdir -p /srv/cbdybw-test" in lines
    assert "+ write /etc/exports.d/cbdybw.exports:" in lines
    options = "(rw,sync,no_subtree_check,no_root_squash)"
    assert f"    /srv/cbdybw-test 10.0.0.0/24{options}" in lines
    assert not Path("/srv/cbdybw-test").exists()
    assert not Path("/etc/exports.d/cbdybw.exports").exists()


def test_several_clients_have_the_same_options_and_root_may_be_nobody():
    done = script("server.sh", "/srv/cbdybw-test/", "n1,10.0.0.2", "--root-squash", "--dry-run")
    options = "(rw,sync,no_subtree_check,root_squash)"
    assert f"    /srv/cbdybw-test n1{options} 10.0.0.2{options}\n" in done.stdout


def test_a_client_would_mount_with_the_recommended_options():
    table = Path("/etc/fstab")
    before = table.read_bytes() if table.exists() else None
    done = script(*CLIENT, "--dry-run")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    mount = f"mount -t nfs -o {RECOMMENDED} 10.0.0.1:/srv/runs /mnt/cbdybw-test"
    assert f"+ timeout 90 {mount}" in lines
    assert f"    10.0.0.1:/srv/runs /mnt/cbdybw-test nfs {RECOMMENDED},_netdev 0 0" in lines
    assert not Path("/mnt/cbdybw-test").exists()
    assert (table.read_bytes() if table.exists() else None) == before


@pytest.mark.parametrize("words", [SERVER, CLIENT])
def test_nothing_is_taken_back_that_was_not_done(words):
    done = script(*words, "--undo", "--dry-run")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("words", [SERVER, CLIENT])
def test_whoever_is_not_root_is_told(words):
    first = ["unshare", "--user"] if os.geteuid() == 0 else []  # root is nobody in there
    done = script(*words, first=first)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"nfs_setup/{words[0]}: needs root: sudo nfs_setup/{words[0]} …, or --dry-run to look\n"
    )


@pytest.mark.parametrize("name", ["server.sh", "client.sh"])
def test_help_is_the_text_at_the_top(name):
    done = script(name, "--help")
    assert done.returncode == 0
    assert f"    nfs_setup/{name} " in done.stdout
    assert "Exit code" in done.stdout
    assert "set -euo" not in done.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["server.sh", "/srv/runs"], "1 words given, not two; say nfs_setup/server.sh FOLDER CLIE"),
        (["server.sh", "/a", "b", "c"], "3 words given, not two"),
        (["server.sh", "runs", "n1"], "FOLDER=runs: name a folder by its full path"),
        (["server.sh", "/", "n1"], "FOLDER=/: name a folder by its full path"),
        (["server.sh", "/srv/my runs", "n1"], "FOLDER=/srv/my runs: blanks, quotes"),
        (["server.sh", "/etc/passwd", "n1"], "FOLDER=/etc/passwd: is no folder"),
        (["server.sh", "/srv/runs", "*"], "CLIENTS=*: name networks or hosts, as in 10.0.0.0/24"),
        (["server.sh", "/srv/runs", "n1,0.0.0.0/0"], "CLIENTS=n1,0.0.0.0/0: name networks"),
        (["server.sh", "/srv/runs", "n1(rw)"], "CLIENTS=n1(rw): name networks or hosts"),
        (["server.sh", "/srv/runs", "n1", "--fast"], "--fast: not known"),
        (["client.sh", "/srv/runs", "/mnt"], "SERVER:EXPORT=/srv/runs: say whose folder it is"),
        (["client.sh", "n1:runs", "/mnt"], "SERVER:EXPORT=n1:runs: say whose folder it is"),
        (["client.sh", "n1:/a\nb", "/mnt"], "SERVER:EXPORT=n1:/a b: say"),
        (["client.sh", "n1:/runs", "mnt"], "MOUNTPOINT=mnt: name a folder by its full path"),
        (["client.sh", "n1:/runs", "/mnt", "--root-squash"], "--root-squash: not known"),
    ],
)
def test_what_cannot_be_used_is_told_in_one_line(words, message):
    done = script(*words, "--dry-run")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"nfs_setup/{words[0]}: {message}")
    assert done.stderr.count("\n") == 1
