"""From what the probes have measured to what the doctor says of it."""

from __future__ import annotations

import stat
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from nfs_setup.findings import FAIL, OK, WARN, Finding
from nfs_setup.mounts import FRESH

FSYNC_SLOW = 0.02
"""Seconds. Disks and NFS servers take 1 to 10 ms; at 20 ms checkpoints hold up fast training."""

FSYNC_BAD = 1.0
"""Seconds. A run that records each iteration would do little else."""

RATE_SLOW = 20e6
"""Bytes a second, a sixth of a 1 Gbit/s link: CIFAR-10 without PCA, 0.74 GB, loads for 37 s."""

SPACE_LITTLE, SPACE_NONE = 5e9, 0.2e9
"""Bytes. A sweep with prepared data takes some GB; MNIST alone 0.19 GB without PCA."""

FILES_LITTLE = 10_000
"""A run folder has some ten files, a sweep of hundreds of runs thousands."""

CLOCK_OFF = 2.0
"""Seconds. Our own files compare no clocks; make and people who compare logs do."""

CLOCK_WRONG = 300.0
"""Seconds that munge, by which Slurm's nodes know each other, lets pass."""

_REMOUNT = "mount with lookupcache=positive,actimeo=1"
_ELSEWHERE = "use another file system for runs"


def place(survey: Mapping[str, Any]) -> Finding:
    """Whose a run folder there would be."""
    figures = {"mode": oct(stat.S_IMODE(survey["mode"])), "umask": oct(survey["umask"])}
    if survey["mode"] & stat.S_IWOTH and not survey["mode"] & stat.S_ISVTX:
        says = f"everybody may replace what lies in {survey['path']}"
        return Finding("permissions", WARN, says, "chmod o-w, or chmod +t", figures)
    if not survey["umask"] & stat.S_IWOTH:
        says = f"umask {survey['umask']:03o}: everybody may write to your run folders"
        return Finding("permissions", WARN, says, "umask 022, or 027", figures)
    readers = "all" if not survey["umask"] & stat.S_IROTH else "not all"
    says = f"umask {survey['umask']:03o}: {readers} may read your run folders, you can write"
    return Finding("permissions", OK, says, "", figures)


def owner(found: Mapping[str, int]) -> Finding:
    """Whether files belong to who makes them."""
    user, writer = found["user"], found["writer"]
    if user == writer:
        return Finding("owner", OK, f"new files belong to you (user {user})", "", dict(found))
    says = f"files made by user {writer} belong to user {user}"
    mend = "map users alike on client and server"
    if writer == 0:
        mend = "run jobs as a user, or export with no_root_squash"
    return Finding("owner", WARN, says, mend, dict(found))


def space(found: Mapping[str, int | None]) -> Finding:
    """Room for bytes and files."""
    free, files, limit = found["free"], found["files"], found["file_limit"]
    count = "an unknown number of" if files is None else f"{files:,}"
    says = f"{free / 1e9:.1f} GB free, room for {count} files"
    if limit is not None and limit < SPACE_LITTLE:
        says += f", files limited to {limit / 1e9:.1f} GB"
        return Finding("space", WARN, says, "ulimit -f unlimited", dict(found))
    little = free < SPACE_LITTLE or (files is not None and files < FILES_LITTLE)
    verdict = FAIL if free < SPACE_NONE or files == 0 else WARN if little else OK
    return Finding("space", verdict, says, "make room" if little else "", dict(found))


def quota(found: Mapping[str, int] | None) -> Finding:
    """What the quota leaves."""
    if found is None:
        return Finding("quota", OK, "none is known of here; the file server may have one")
    left = max(0, found["limit"] - found["used"])
    verdict = FAIL if left < SPACE_NONE else WARN if left < SPACE_LITTLE else OK
    says = f"{left / 1e9:.1f} GB left of {found['limit'] / 1e9:.1f} GB"
    mend = "remove files or ask for more" if verdict != OK else ""
    return Finding("quota", verdict, says, mend, dict(found))


def clock(found: Mapping[str, float], check: str) -> Finding:
    """The file server's clock beside a host's."""
    ahead = found["ahead"]
    if abs(ahead) <= CLOCK_OFF:
        says = f"within {max(abs(ahead), found['took'], 0.01):.2f} s of the times that files get"
        return Finding(check, OK, says, "", dict(found))
    says = f"{abs(ahead):.1f} s {'behind' if ahead > 0 else 'ahead of'} the times that files get"
    verdict = FAIL if abs(ahead) > CLOCK_WRONG else WARN
    return Finding(check, verdict, says, "set both by NTP (chrony, timedatectl)", dict(found))


def fsync(seconds: Sequence[float]) -> Finding:
    """What it costs to be sure that something is saved."""
    typical, longest = median(seconds), max(seconds)
    says = f"{typical * 1e3:.1f} ms for a small file, {longest * 1e3:.1f} ms at most"
    verdict = FAIL if typical > FSYNC_BAD else WARN if typical > FSYNC_SLOW else OK
    mend = "checkpoint less often, or name a faster disk" if verdict != OK else ""
    return Finding("fsync", verdict, says, mend, {"median": typical, "longest": longest})


def rename(found: Mapping[str, bool]) -> Finding:
    """Whether readers have the old content or the new, and folders are not lost."""
    broken = {
        "old_stays": "an open file changes when another takes its name",
        "new_is_there": "a file that another was renamed to has its old content",
        "folder_kept": "a folder with content is replaced by another",
    }
    wrong = [says for name, says in broken.items() if not found[name]]
    if wrong:
        return Finding("rename", FAIL, "; ".join(wrong), _ELSEWHERE, dict(found))
    return Finding(
        "rename", OK, "who reads has the old file or the new one, whole", "", dict(found)
    )


def names(found: Mapping[str, bool]) -> Finding:
    """What files may be called."""
    if not found["kept"]:
        says = "names of 254 bytes, or beyond ASCII, are not kept"
        return Finding("names", WARN, says, "keep names of runs short and plain", dict(found))
    if not found["case"]:
        says = "A and a are the same file"
        return Finding(
            "names", WARN, says, "let names of runs not differ by case only", dict(found)
        )
    return Finding("names", OK, "254 bytes, any letters, case matters", "", dict(found))


def race(kind: str, rounds: int, wins: Mapping[str, Sequence[int]]) -> Finding:
    """Whether one process alone succeeds in making a file that several want to make."""
    check = {"create": "O_EXCL", "link": "hard link"}[kind]
    winners = Counter(number for won in wins.values() for number in won)
    single = sum(winners[number] == 1 for number in range(rounds))
    figures = {"rounds": rounds, "single": single, "wins": {n: len(w) for n, w in wins.items()}}
    if single == rounds:
        shares = " : ".join(str(len(won)) for won in wins.values())
        return Finding(check, OK, f"one winner in each of {rounds} races ({shares})", "", figures)
    says = f"{rounds - single} of {rounds} races with no winner or two: locks do not hold"
    return Finding(check, FAIL, says, _ELSEWHERE, figures)


def lock(excludes: bool, released: bool) -> Finding:
    """Whether a lock keeps another process out, and only as long as it is held."""
    figures = {"excludes": excludes, "released": released}
    if excludes and released:
        return Finding("lock", OK, "a lock keeps others out until it is let go", "", figures)
    says = "two processes hold the same lock" if released else "a lock that was let go is not free"
    mend = "we use no such locks; HDF5, SQLite and others do: mount with vers=4.2, without nolock"
    return Finding("lock", WARN, says, mend, figures)


def rewriting(found: Mapping[str, Any], written: int) -> Finding:
    """What a reader sees of a file that is replaced all the time."""
    figures = {**found, "written": written}
    reads = f"{written} versions, {found['reads']} reads"
    if found["torn"]:
        says = f"{reads}: {found['torn']} of a mixture of two"
        return Finding("rewriting", FAIL, says, _ELSEWHERE, figures)
    if not found["last"]:
        return Finding("rewriting", WARN, f"{reads}: the last one was not seen", _REMOUNT, figures)
    if found["back"]:
        says = f"{reads}: {found['back']} of an older one than before"
        return Finding("rewriting", WARN, says, _REMOUNT, figures)
    return Finding("rewriting", OK, f"{reads}: each was whole, none older than before", "", figures)


_CHANGES = {
    "new": ("new file", "a new file, looked for before,"),
    "rewritten": ("rewritten", "a rewritten file"),
    "grown": ("grown", "the size of a file that has grown"),
    "deleted": ("deleted", "that a file was deleted"),
}


def visibility(
    change: str, delays: Mapping[str, float | None], listed: Mapping[str, bool], waited: float
) -> Finding:
    """When other hosts see a change.

    `delays`: seconds by host, None where it was not seen in the `waited` ones. `listed`: whether it
    was seen there after the folder had been listed.
    """
    check, what = _CHANGES[change]
    figures = {"seconds": dict(delays)}
    never = [host for host, delay in delays.items() if delay is None]
    if never and not all(listed[host] for host in never):
        says = f"{what} was not seen {_on(never)}, in {waited:.0f} s and by listing the folder"
        return Finding(check, FAIL, says, _ELSEWHERE, figures)
    if never:
        says = f"{what} was not seen {_on(never)} for {waited:.0f} s: it is in the client's cache"
        return Finding(check, WARN, says, _REMOUNT, figures)
    latest = max(delays, key=delays.__getitem__)
    says = f"{what} is seen after {delays[latest]:.2f} s"
    if delays[latest] > FRESH:
        says += f" {_on([latest])}: the client's cache"
        return Finding(check, WARN, says, _REMOUNT, figures)
    return Finding(check, OK, says, "", figures)


def _on(hosts: Sequence[str]) -> str:
    return f"on {', '.join(filter(None, hosts))}" if any(hosts) else "by another process"


def rate(check: str, found: Mapping[str, float]) -> Finding:
    """How fast much data go."""
    speed = found["bytes"] / found["seconds"]
    megabytes = found["bytes"] / 1e6
    says = f"{speed / 1e6:.0f} MB/s ({megabytes:.0f} MB{', durable' if check == 'write' else ''})"
    slow = speed < RATE_SLOW
    mend = "prepare data on a local disk, or name a faster file system" if slow else ""
    return Finding(check, WARN if slow else OK, says, mend, {**found, "rate": speed})
