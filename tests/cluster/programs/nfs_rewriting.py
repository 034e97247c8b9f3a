"""A file that is replaced again and again, and one who reads it meanwhile.

    nfs_rewriting.py write PATH VERSIONS
    nfs_rewriting.py read PATH VERSIONS

Each version says in every line which one it is. The reader ends with the last version and prints
{"reads": …, "versions": distinct ones, "mixed": reads of no whole version, "back": reads of an
older version than the one before, "seconds": …}.
"""

import json
import sys
import time

from cbdybw.storage import atomic

LINES = 8000  # some 64 kB, which a client reads in several pieces


def write(path: str, versions: int) -> None:
    """Versions 1 … `versions`."""
    for version in range(1, versions + 1):
        atomic.write_text(path, f"{version:07d}\n" * LINES)


def read(path: str, versions: int) -> dict[str, float]:
    """What was seen until the last version was there."""
    began, last = time.monotonic(), 0
    seen, counts = set(), {"reads": 0, "mixed": 0, "back": 0}
    while last < versions:
        lines = atomic.read_bytes(path).split(b"\n")
        counts["reads"] += 1
        if len(lines) != LINES + 1 or len(set(lines[:-1])) != 1 or lines[-1]:
            counts["mixed"] += 1
            continue
        version = int(lines[0])
        counts["back"] += version < last
        seen.add(version)
        last = version
    return {"versions": len(seen), **counts, "seconds": time.monotonic() - began}


if __name__ == "__main__":
    verb, path, versions = sys.argv[1], sys.argv[2], int(sys.argv[3])
    if verb == "write":
        write(path, versions)
    else:
        print(json.dumps(read(path, versions)))
