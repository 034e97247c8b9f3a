"""Mounts: lines of mountinfo and what the doctor says of them."""

import pytest

from nfs_setup import mounts
from nfs_setup.findings import FAIL, OK, WARN, worst

_NFS = (
    "rw,vers=4.2,rsize=1048576,wsize=1048576,namlen=255,hard,proto=tcp,timeo=600,retrans=2,sec=sys"
)
_CACHE = "acregmin=1,acregmax=1,acdirmin=1,acdirmax=1"
GOOD = f"{_NFS},{_CACHE},clientaddr=10.0.0.2,lookupcache=pos,local_lock=none,addr=10.0.0.1"
DEFAULT = f"{_NFS},clientaddr=10.0.0.2,local_lock=none,addr=10.0.0.1"


def line(kind, options="rw", of_mount="rw,relatime", source="10.0.0.1:/runs", point="/mnt/runs"):
    return f"52 30 0:43 / {point} {of_mount} shared:7 master:2 - {kind} {source} {options}\n"


def judged(text):
    (mount,) = mounts.parse(text).values()
    return list(mounts.judge(mount))


@pytest.mark.parametrize(
    ("text", "verdict", "fragments"),
    [
        (line("nfs4", GOOD), OK, ["NFS 4.2 of 10.0.0.1:/runs, with the recommended options"]),
        (line("nfs4", GOOD.replace("4.2", "4.1")), OK, ["NFS 4.1"]),
        (line("nfs4", GOOD.replace("=pos", "=none")), OK, ["recommended"]),
        (line("nfs4", GOOD.replace(_CACHE, "actimeo=1")), OK, ["recommended"]),
        (line("nfs4", DEFAULT), WARN, ["lookupcache=all", "attributes are cached"]),
        (line("nfs4", GOOD.replace("lookupcache=pos,", "")), WARN, ["lookupcache=all"]),
        (line("nfs4", GOOD.replace("acregmax=1", "acregmax=30")), WARN, ["attributes are cached"]),
        (line("nfs4", GOOD.replace("hard", "soft")), FAIL, ["soft: when the server pauses"]),
        (line("nfs4", GOOD.replace("hard", "softerr")), FAIL, ["soft: when the server pauses"]),
        (line("nfs4", GOOD.replace("hard", "hard,softreval")), WARN, ["softreval"]),
        (line("nfs4", f"{GOOD},nocto"), FAIL, ["nocto"]),
        (line("nfs4", f"{GOOD},sync"), WARN, ["every single write waits"]),
        (line("nfs4", f"{DEFAULT},noac"), WARN, ["every single write waits"]),
        (line("nfs4", GOOD.replace("proto=tcp", "proto=udp")), WARN, ["proto=udp"]),
        (line("nfs4", GOOD.replace("proto=tcp", "proto=tcp6")), OK, ["recommended"]),
        (line("nfs", GOOD.replace("4.2", "3")), WARN, ["before version 4"]),
        (
            line("nfs", GOOD.replace("vers=4.2", "vers=3,nolock").replace("k=none", "k=all")),
            WARN,
            ["nolock: each host locks", "before version 4"],
        ),
        (line("nfs4", GOOD.replace("local_lock=none", "local_lock=flock")), WARN, ["nolock"]),
        (
            line("nfs4", GOOD, of_mount="ro,relatime"),
            FAIL,
            ["/mnt/runs is mounted for reading only", "recommended"],
        ),
        (line("nfs4", GOOD.replace("rw,", "ro,", 1)), FAIL, ["for reading only", "recommended"]),
        (line("ext4", "rw,errors=remount-ro"), OK, ["ext4 on /mnt/runs: a disk of this machine"]),
        (line("ext4", "rw,nobarrier"), WARN, ["a disk", "barriers are off"]),
        (line("ext3", "rw,barrier=0"), WARN, ["a disk", "barriers are off"]),
        (line("xfs", "rw,barrier=1"), OK, ["a disk"]),
        (line("btrfs", "rw,subvol=/home"), OK, ["a disk"]),
        (line("tmpfs", "rw,size=1g"), WARN, ["gone when the machine restarts"]),
        (line("overlay", "rw,lowerdir=/a:/b"), WARN, ["a container's own layer"]),
        (line("lustre", "rw,flock"), OK, ["a cluster's file system"]),
        (line("fuse.sshfs", "rw,user_id=0"), WARN, ["fuse.sshfs on /mnt/runs: a kind that was"]),
        (line("9p", "rw,trans=virtio"), WARN, ["never tried"]),
        (line("cifs", "rw,vers=3.0"), WARN, ["never tried"]),
    ],
)
def test_a_mount_is_judged_by_its_kind_and_options(text, verdict, fragments):
    findings = judged(text)
    assert worst(findings) == verdict
    assert len(findings) == len(fragments)
    for finding, fragment in zip(findings, fragments, strict=True):
        assert fragment in finding.says
        assert (finding.mend == "") == (finding.verdict == OK)


def test_names_with_blanks_and_backslashes_are_read():
    text = line("nfs4", GOOD, source=r"nas:/all\040runs", point=r"/mnt/a\040b\134c\011d")
    (mount,) = mounts.parse(text).values()
    assert (mount.point, mount.source) == ("/mnt/a b\\c\td", "nas:/all runs")


def test_a_mount_may_have_no_source_and_no_shared_groups():
    (mount,) = mounts.parse("52 30 0:43 /sub /mnt rw - tmpfs  rw,size=1g\n").values()
    assert (mount.point, mount.kind, mount.source) == ("/mnt", "tmpfs", "")
    assert mount.options == {"rw": "", "size": "1g"}


def test_the_kernel_says_which_mount_a_folder_is_on():
    assert mounts.of("/proc/self").kind == "proc"
    assert mounts.of("/proc/self/../..").point == "/"


def test_a_folder_on_no_listed_mount_is_warned_of():
    (finding,) = mounts.judge(None)
    assert (finding.verdict, finding.says) == (WARN, "the kernel lists no mount for this folder")


def test_the_recommended_options_are_those_that_no_rule_warns_of():
    (finding,) = judged(line("nfs4", f"rw,{mounts.RECOMMENDED}"))
    assert finding.verdict == OK
