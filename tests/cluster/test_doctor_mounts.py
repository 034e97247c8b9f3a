"""The doctor on full and closed mounts of this machine, and with peers that are elsewhere."""

import os
import subprocess
from contextlib import contextmanager

import pytest

from nfs_setup.peers import SRUN
from tests.cluster.slurm import running
from tests.test_doctor import examined


@contextmanager
def mounted(folder, *options):
    """A file system in memory on `folder`, which is made."""
    folder.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", *options, "memory", folder], check=True, timeout=30)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True, timeout=30)


@pytest.mark.parametrize(
    ("options", "space", "refused"),
    [
        ("size=40k", "fail", {"rename", "rewriting"}),  # a few files, but not twenty small ones
        ("nr_inodes=12", "warn", {"O_EXCL", "visibility"}),
    ],
)
def test_a_disk_that_fills_up_meanwhile_fails_and_nothing_is_left(
    tmp_path, options, space, refused
):
    with mounted(tmp_path / "disk", "-o", options) as disk:
        findings, report = examined(disk)
        assert (report["verdict"], findings["space"]["verdict"]) == ("fail", space)
        assert findings["fsync"]["says"] == "No space left on device (ENOSPC)"
        assert findings["fsync"]["mend"].startswith("make room")
        assert {c for c, f in findings.items() if f["figures"].get("errno") == "ENOSPC"} >= refused
        assert os.listdir(disk) == []


def test_a_mount_for_reading_only_fails(tmp_path):
    with mounted(tmp_path / "disk", "-o", "ro") as disk:
        findings, report = examined(disk)
        assert report["verdict"] == "fail"
        assert findings["write"]["says"] == "Read-only file system (EROFS)"
        fails = [f["says"] for f in report["findings"] if f["verdict"] == "fail"]
        assert fails == [f"{disk} is mounted for reading only", findings["write"]["says"]]


def test_a_peer_with_another_folder_in_that_place_is_named(tmp_path):
    apart = f"mount -t tmpfs other {tmp_path} && exec"
    launch = f"""unshare --mount sh -c '[ $0 = n2 ] || {{ {apart} "$@"; }}; exec "$@"' {{host}}"""
    findings, report = examined(tmp_path, "--peers=n1,n2", f"--launch={launch}")
    assert report["verdict"] == "fail"
    assert findings["peer n1"]["says"] == f"{tmp_path} is another folder there"
    assert findings["peer n2"]["says"] == "sees the same folder"
    assert findings["new file"]["figures"]["seconds"].keys() == {"n2"}
    assert os.listdir(tmp_path) == []


def test_slurm_starts_peers_on_its_nodes(tmp_path):
    with running() as slurm:
        findings, _ = examined(tmp_path, "--peers=n1,n3", f"--launch={SRUN}", env=slurm.environ)
    assert findings["O_EXCL"]["figures"]["wins"].keys() == {"n1", "n3", "here 2"}
    assert findings["new file"]["figures"]["seconds"].keys() == {"n1", "n3"}
    assert os.listdir(tmp_path) == []
