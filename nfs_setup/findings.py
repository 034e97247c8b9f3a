"""What the doctor says of one thing, and how bad it is."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

OK, WARN, FAIL = VERDICTS = ("ok", "warn", "fail")
"""As good as is known; runs work, but slower or staler than they could; runs would do harm."""

_MENDS = {
    errno.ENOSPC: "make room: df PATH shows how much, df -i PATH how many files",
    errno.EDQUOT: "your quota is used up: remove files or ask for more",
    errno.EFBIG: "raise the limit of file sizes: ulimit -f unlimited",
    errno.EACCES: "ask its owner for permission to write, or name a folder of your own",
    errno.EPERM: "ask its owner for permission to write, or name a folder of your own",
    errno.EROFS: "mount it for writing, or name another folder",
    errno.ESTALE: "the folder was removed or exported anew on the server: mount it again",
    errno.ENOENT: "somebody has removed the doctor's folder meanwhile: start again",
    errno.EIO: "look after the disk or the file server; a soft mount gives this too",
    errno.ENOLCK: "start rpc.statd on client and server, or mount with vers=4.2",
}


@dataclass(frozen=True)
class Finding:
    """One line of the doctor's.

    Attributes:
        check: what was looked at, two words at most; with a host's name unless it is this one.
        verdict: one of VERDICTS.
        says: what was found, with units.
        mend: what to do, empty if nothing.
        figures: what was measured, for programs.
    """

    check: str
    verdict: str
    says: str
    mend: str = ""
    figures: dict[str, Any] = field(default_factory=dict)


def worst(findings: Iterable[Finding]) -> str:
    """The verdict on all of them."""
    return max((f.verdict for f in findings), key=VERDICTS.index, default=OK)


def refused(check: str, error: OSError) -> Finding:
    """The finding where a probe could not do what it wanted to."""
    mend = _MENDS.get(error.errno, "mend that and start again")
    name = errno.errorcode.get(error.errno, str(error.errno))
    return Finding(check, FAIL, f"{os.strerror(error.errno)} ({name})", mend, {"errno": name})
