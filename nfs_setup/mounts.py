"""The mount that holds a folder, and whether its kind and options suit runs.

The kernel says which mount a folder is on (the number in /proc/self/fdinfo), so that mounts over
mounts, bind mounts and automounts need no guessing; /proc/self/mountinfo has its options.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from nfs_setup.findings import FAIL, OK, WARN, Finding

RECOMMENDED = "vers=4.2,proto=tcp,hard,lookupcache=positive,actimeo=1"
"""Mount options for an NFS client; client.sh uses the same."""

FRESH = 2.0
"""Seconds after which what one host has written must be seen on another: `actimeo=1` and one more
for the way there."""

_LOCAL = {"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "reiserfs", "xfs", "zfs"}
_NFS = {"nfs", "nfs4"}
_CLUSTER = {"beegfs", "ceph", "gfs2", "gpfs", "lustre", "ocfs2", "orangefs", "panfs", "wekafs"}
_MEMORY = {"ramfs", "tmpfs"}
_LAYERS = {"aufs", "overlay"}
_BY_THE_PROBES = "go by the lines below, with --peers for the hosts that will run jobs"


@dataclass(frozen=True)
class Mount:
    """One line of mountinfo, escapes undone."""

    point: str
    kind: str  # file system
    source: str
    options: dict[str, str]  # of the mount and of the file system; those without a value: ""


class _Rule(NamedTuple):
    """Options of NFS that do harm."""

    breaks: Callable[[dict[str, str]], bool]
    verdict: str
    says: str
    mend: str


_RULES = (
    _Rule(
        lambda o: "soft" in o or "softerr" in o,
        FAIL,
        "soft: when the server pauses, writes fail (EIO) and data are lost",
        "mount with hard: writers then wait for the server",
    ),
    _Rule(
        lambda o: "softreval" in o,
        WARN,
        "softreval: old content is shown as if it were new while the server is away",
        "mount without softreval",
    ),
    _Rule(
        lambda o: "nocto" in o,
        FAIL,
        "nocto: who opens a file may not see what was written before",
        "mount without nocto",
    ),
    _Rule(
        lambda o: "nolock" in o or o.get("local_lock", "none") != "none",
        WARN,
        "nolock: each host locks for itself alone (we use no such locks, other programs do)",
        "mount without nolock and local_lock, with vers=4.2",
    ),
    _Rule(
        lambda o: _version(o) < (4,),
        WARN,
        "NFS before version 4: locks and recovery depend on further services",
        "mount with vers=4.2",
    ),
    _Rule(
        lambda o: o.get("proto", "tcp").startswith("udp"),
        WARN,
        "proto=udp: packets that are put together wrongly spoil data",
        "mount with proto=tcp",
    ),
    _Rule(
        lambda o: "noac" not in o and not o.get("lookupcache", "all").startswith(("pos", "none")),
        WARN,
        "lookupcache=all: a new file that was looked for before is seen up to 60 s late",
        "mount with lookupcache=positive",
    ),
    _Rule(
        lambda o: _longest_cache(o) > FRESH,
        WARN,
        "attributes are cached for long: sizes and times of files are seen late",
        "mount with actimeo=1",
    ),
    _Rule(
        lambda o: "sync" in o or "noac" in o,
        WARN,
        "sync or noac: every single write waits for the server; we call fsync where it counts",
        "mount without sync and noac",
    ),
)
_BARRIERS = {"nobarrier": "", "barrier": "0"}


def of(folder: str | os.PathLike) -> Mount | None:
    """The mount that `folder` is on; None where the kernel lists none, as in some chroots."""
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        about = Path(f"/proc/self/fdinfo/{descriptor}").read_text()
    finally:
        os.close(descriptor)
    number = int(re.search(r"^mnt_id:\s*(\d+)", about, re.MULTILINE)[1])
    return parse(os.fsdecode(Path("/proc/self/mountinfo").read_bytes())).get(number)


def parse(mountinfo: str) -> dict[int, Mount]:
    """The mounts in the text of /proc/self/mountinfo by their numbers."""
    mounts = {}
    for line in mountinfo.splitlines():
        of_mount, of_file_system = line.split(" - ", 1)
        number, _parent, _device, _root, point, options, *_ = of_mount.split(" ")
        kind, source, further = of_file_system.split(" ", 2)
        mounts[int(number)] = Mount(
            _unescaped(point), kind, _unescaped(source), _options(f"{options},{further}")
        )
    return mounts


def judge(mount: Mount | None, check: str = "mount") -> Iterator[Finding]:
    """What kind of file system it is, then every option that does harm."""
    if mount is None:
        yield Finding(check, WARN, "the kernel lists no mount for this folder", _BY_THE_PROBES)
        return
    if "ro" in mount.options:
        says = f"{mount.point} is mounted for reading only"
        yield Finding(check, FAIL, says, "mount with rw, or name another folder")
    if mount.kind in _NFS:
        yield from _judge_nfs(mount, check)
        return
    yield _judge_kind(mount, check)
    if any(mount.options.get(name) == value for name, value in _BARRIERS.items()):
        says = "barriers are off: what fsync has saved may be lost when the power fails"
        yield Finding(check, WARN, says, "mount with barriers, which is the default")


def _judge_nfs(mount: Mount, check: str) -> Iterator[Finding]:
    broken = [rule for rule in _RULES if rule.breaks(mount.options)]
    for rule in broken:
        yield Finding(check, rule.verdict, rule.says, rule.mend)
    if not broken:
        version = mount.options.get("vers", "4")
        says = f"NFS {version} of {mount.source}, with the recommended options"
        yield Finding(check, OK, says)


def _judge_kind(mount: Mount, check: str) -> Finding:
    kind, where = mount.kind, f"{mount.kind} on {mount.point}"
    if kind in _LOCAL:
        return Finding(check, OK, f"{where}: a disk of this machine, for its own runs")
    if kind in _CLUSTER:
        return Finding(check, OK, f"{where}: a cluster's file system; {_BY_THE_PROBES}")
    if kind in _MEMORY:
        says = f"{where}: in memory, gone when the machine restarts"
        return Finding(check, WARN, says, "name a folder on a disk or a shared file system")
    if kind in _LAYERS:
        says = f"{where}: a container's own layer, gone with the container"
        return Finding(check, WARN, says, "name a folder that is mounted from outside")
    return Finding(check, WARN, f"{where}: a kind that was never tried", _BY_THE_PROBES)


def _version(options: dict[str, str]) -> tuple[int, ...]:
    return tuple(map(int, options.get("vers", "4").split(".")))


def _longest_cache(options: dict[str, str]) -> float:
    """Seconds; the kernel lists what differs from its defaults, and 60 is its default."""
    if "noac" in options:
        return 0.0
    always = options.get("actimeo", "60")
    return max(float(options.get(name, always)) for name in ("acregmax", "acdirmax"))


def _options(text: str) -> dict[str, str]:
    pairs = (option.partition("=") for option in text.split(",") if option)
    return {name: value for name, _, value in pairs}


def _unescaped(text: str) -> str:
    """mountinfo writes blanks, tabs, line ends and backslashes as octal numbers."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)
