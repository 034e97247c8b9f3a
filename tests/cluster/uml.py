"""Machines with a kernel of their own, and so with a real NFS client: User-Mode Linux.

    with Wire(ports=1) as wire, Guest(wire, 1, folder) as guest:
        guest.mount("/runs", "/mnt/runs")
        done = guest.run(["ls", "-l", "/mnt/runs"], timeout=30)

A guest has this machine's files as its root, read-only: its programs are the ones here, this Python
among them. It writes to its memory (/tmp is not there, TMPDIR is), to what it mounts, and, for what
its commands print, to `folder`. `guest.py` is what runs in it. MPI is not to be had inside.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path

from nfs_setup.mounts import RECOMMENDED
from tests.cluster.machine import install
from tests.cluster.wire import HERE, NET, Wire

ROOT = Path(__file__).parents[2]
MEMORY = "1G"
_PROGRAMS = ("linux.uml", "mount.nfs", "busybox")
_PACKAGES = ("user-mode-linux", "nfs-common", "busybox-static", "iproute2")
_UP, _ANSWER = 90.0, 60.0  # seconds in which a guest should come up, and say that a process runs


class Guest:
    """The machine guest1, guest2, …, at port `number` of `wire`, while the block lasts.

    Args:
        folder: exists; what the guest's processes print goes there, and the kernel's words.

    It boots while others do: the first command waits for it.
    """

    def __init__(self, wire: Wire, number: int, folder: Path):
        self.name, self.address = f"guest{number}", f"{NET}.{number + 1}"
        self.folder = folder / self.name
        self._wire, self._number = wire, number
        self._numbers = count(1)

    def __enter__(self) -> Guest:
        install(_PROGRAMS, _PACKAGES)
        self.folder.mkdir()
        self.boot()
        return self

    def boot(self) -> None:
        """Start it, for the first time or after `kill`; nothing is mounted."""
        self._answers: dict[int, queue.Queue[dict]] = {0: queue.Queue()}
        init = self.folder / "init"
        init.write_text(self._init())
        init.chmod(0o755)
        with open(self.folder / "kernel.log", "ab") as log:
            self._process = subprocess.Popen(
                [*self._wire.inside, *self._command(init)],
                env=os.environ | {"TMPDIR": "/dev/shm"},  # its memory
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                bufsize=1,
                start_new_session=True,
            )
        self._hearer = threading.Thread(target=self._hear, daemon=True)
        self._hearer.start()
        self._booted = False

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def runs(self) -> bool:
        """Whether it has been booted and not ended since."""
        return self._process.poll() is None

    def kill(self) -> None:
        """End it as a loss of power does."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._hearer.join()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()

    def start(self, argv: Sequence[object], **environ: object) -> Process:
        """Start a command in the repository's folder, with these variables in its environment."""
        if not self._booted:
            self._expect(0, _UP)
            self._booted = True
        number = next(self._numbers)
        self._answers[number] = queue.Queue()
        environ = {"PYTHONPATH": ROOT} | environ
        request = {
            "argv": list(map(str, argv)),
            "environ": {name: str(value) for name, value in environ.items()},
            "cwd": str(ROOT),
        }
        (self.folder / f"{number}.json").write_text(json.dumps(request))
        self._process.stdin.write(f"run {number}\n")
        pid = self._expect(number, _ANSWER)["pid"]
        return Process(self, number, pid)

    def run(
        self, argv: Sequence[object], timeout: float, **environ: object
    ) -> subprocess.CompletedProcess[str]:
        """What a command came to; TimeoutExpired after so many seconds, when it has been killed."""
        process = self.start(argv, **environ)
        try:
            return process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            raise

    def python(self, *argv: object, timeout: float, **environ: object):
        """`run` of this Python."""
        return self.run([sys.executable, *argv], timeout, **environ)

    def mount(self, export: str, point: str, options: str = RECOMMENDED) -> None:
        """Mount an export of the server at the switch; RuntimeError where that fails."""
        self._must(["mkdir", "-p", point])
        self._must(["mount", "-t", "nfs", "-o", options, f"{HERE}:{export}", point])

    def unmount(self, point: str) -> None:
        """Undo `mount`, also while the server is away."""
        self._must(["umount", "-f", "-l", point])

    def skew(self, seconds: int) -> None:
        """Put its clock forward, or back."""
        self._must(["date", "--set", f"{seconds:+d} seconds"])

    def _must(self, argv: Sequence[str]) -> None:
        done = self.run(argv, timeout=60)
        if done.returncode:
            raise RuntimeError(f"{self.name}: {' '.join(argv)}: {done.stderr.strip()}")

    def _expect(self, number: int, seconds: float) -> dict:
        try:
            answer = self._answers[number].get(timeout=seconds)
        except queue.Empty:
            said = (self.folder / "kernel.log").read_text(errors="replace")[-2000:]
            raise RuntimeError(f"{self.name} does not answer\n{said}") from None
        if "lost" in answer:
            self._answers[number].put(answer)
            raise GuestLost(self.name)
        return answer

    def _hear(self) -> None:
        for line in self._process.stdout:
            if line.startswith("{"):
                answer = json.loads(line)
                self._answers[answer["number"]].put(answer)
        for answers in list(self._answers.values()):
            answers.put({"lost": True})

    def _command(self, init: Path) -> list[str]:
        return [
            # Its own processes have numbers of their own, so that all end with the first of them.
            *("unshare", "--pid", "--fork", "--kill-child"),
            "linux.uml",
            f"mem={MEMORY}",
            f"umid={self.name}",
            f"uml_dir={self.folder}",
            *("root=/dev/root", "rootfstype=hostfs", "hostfs=/", "ro", f"init={init}"),
            f"vec0:transport=tap,ifname=tap{self._number},depth=128,gro=1",
            *("con=null", "con0=null,fd:2", "con1=fd:0,fd:1", "quiet"),
        ]

    def _init(self) -> str:
        modules = next(Path("/usr/lib/uml/modules").glob("*/kernel"))
        found = {path.stem: path for path in modules.rglob("*.ko")}
        words = {
            "insmod": " ".join(str(found[name]) for name in _MODULES),
            "folder": str(self.folder),
            "name": self.name,
            "address": self.address,
            "apart": str(40 * self._number),
            "python": sys.executable,
            "program": str(Path(__file__).with_name("guest.py")),
            "path": os.environ["PATH"],
            "busybox": shutil.which("busybox"),
        }
        return _INIT.format(**words)


class GuestLost(RuntimeError):
    """A guest has ended while something was expected of it."""


class Process:
    """A command that was started in a guest.

    Attributes:
        pid: its number there.
    """

    def __init__(self, guest: Guest, number: int, pid: int):
        self._guest, self._number, self.pid = guest, number, pid
        self._code: int | None = None

    @property
    def stdout(self) -> str:
        """What it has printed so far."""
        return self._read("out")

    @property
    def stderr(self) -> str:
        """What it has printed there so far."""
        return self._read("err")

    def poll(self) -> int | None:
        """Its exit code, -N where signal N has ended it; None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self._code

    def wait(self, timeout: float) -> subprocess.CompletedProcess[str]:
        """What it came to; TimeoutExpired, GuestLost."""
        if self._code is None:
            answers = self._guest._answers[self._number]
            try:
                answer = answers.get(timeout=timeout) if timeout else answers.get_nowait()
            except queue.Empty:
                raise subprocess.TimeoutExpired(f"{self._number}", timeout) from None
            if "lost" in answer:
                answers.put(answer)
                raise GuestLost(self._guest.name)
            self._code = answer["code"]
        return subprocess.CompletedProcess([], self._code, self.stdout, self.stderr)

    def send_signal(self, signum: int) -> None:
        """To it and to what it has started, if its guest still runs."""
        if self._guest.runs:
            self._guest._process.stdin.write(f"signal {self.pid} {int(signum)}\n")

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def _read(self, kind: str) -> str:
        path = self._guest.folder / f"{self._number}.{kind}"
        return path.read_text(errors="replace") if path.exists() else ""


@contextlib.contextmanager
def guests(wire: Wire, number: int, folder: Path) -> Iterator[list[Guest]]:
    """The guests 1 … `number`, booted at the same time."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(Guest(wire, n + 1, folder)) for n in range(number)]


_MODULES = (
    *("oid_registry", "sunrpc", "auth_rpcgss", "grace", "lockd", "nfs_acl", "dns_resolver"),
    *("netfs", "fscache", "nfs", "nfsv3", "nfsv4"),
)
_INIT = """\
#!/bin/sh
export PATH={path}:/usr/sbin:/sbin TMPDIR=/run/tmp HOME=/run
b={busybox}
$b mount -t proc proc /proc
$b mount -t sysfs sys /sys
$b mount -t devtmpfs dev /dev
$b mkdir /dev/shm
for memory in /run /mnt /var/lib/nfs /dev/shm; do $b mount -t tmpfs tmpfs $memory; done
$b mkdir -p /run/tmp
$b mount -t hostfs -o {folder} none {folder}
$b hostname {name}
# A client marks a file that it alone wants to make by process number and ticks since its boot: the
# server may take a second one for the first one's repetition. Guests that boot together are alike.
for n in $(seq {apart}); do (:); done
for module in {insmod}; do $b insmod $module; done
ip link set lo up
ip addr add {address}/24 dev vec0
ip link set vec0 up
exec {python} {program} {folder}
"""
