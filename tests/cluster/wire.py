"""A switch in a network namespace of its own: what is plugged in talks to each other alone.

Namespaces belong to a process that holds them and lives no longer than this one. With the last
process inside they are gone, and all that is in them: addresses, names and mounts may be the same
in each.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

NET = "10.78.0"
HERE = f"{NET}.1"
"""The address of the switch itself, for servers."""

_HOLD = f"""\
set -e
ip link set lo up
ip link add switch type bridge
ip addr add {HERE}/24 dev switch
ip link set switch up
for port in $(seq "$0"); do
    ip tuntap add "tap$port" mode tap
    ip link set "tap$port" master switch up
done
mount -t tmpfs tmpfs /run
if test "$#" = 2; then mount -t tmpfs -o "size=$2" tmpfs "$1"; fi
echo ready
exec sleep infinity
"""
MORTAL = ("setpriv", "--pdeathsig", "KILL")
"""Begins a command line that is to end with the thread that starts it, however that ends."""


class Wire:
    """A switch with `ports`, the taps tap1, tap2, …, and an empty /run, while the block lasts.

    Args:
        disk: a folder, and the size of the small disk that who runs at the switch finds there.
    """

    def __init__(self, ports: int, disk: tuple[Path, str] | None = None):
        self._words = [str(ports), *map(str, disk or ())]

    def __enter__(self) -> Wire:
        self._holder = subprocess.Popen(
            [*MORTAL, "unshare", "--net", "--mount", "sh", "-c", _HOLD, *self._words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        if self._holder.stdout.readline() != "ready\n":
            raise RuntimeError(f"no network of its own: {self._holder.communicate()[1].strip()}")
        return self

    @property
    def inside(self) -> list[str]:
        """Begins a command line that is to run at the switch."""
        own = f"/proc/{self._holder.pid}/ns"
        return [*MORTAL, "nsenter", f"--net={own}/net", f"--mount={own}/mnt"]

    def __exit__(self, *_: object) -> None:
        self._holder.kill()
        self._holder.communicate()
