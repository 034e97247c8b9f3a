"""A Slurm of four nodes on this machine, without systemd: up in seconds, torn down always.

    with Slurm(folder) as slurm:
        job = slurm.sbatch("script.sh", "--ntasks=6")
        slurm.wait(job, "COMPLETED", seconds=60)

By hand: `python -m tests.cluster.slurm -- bash` opens a shell in which sbatch, squeue and the
others speak to it. Everything that it needs and writes is in its folder: key, sockets, logs, state.
Its nodes n1 to n4 have two processors each, whatever the machine has. Jobs of the partition
`urgent` take the place of those of `work`, which are requeued.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.cluster.machine import install

NODES = ("n1", "n2", "n3", "n4")
_ENDS = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY")
_ROOT = Path(__file__).parents[2]
_PATH = os.pathsep.join([os.environ["PATH"], "/usr/sbin", "/sbin"])
_PACKAGES = ("slurm-wlm", "slurm-wlm-basic-plugins", "munge")
_CHECK = 30.0  # seconds between two looks at time limits
_UP, _DOWN = 30.0, 15.0  # seconds in which the daemons should come, and go
_GRACE = 5  # seconds between SIGTERM and SIGKILL
_PAUSE = 2  # seconds before a requeued job is started again

_CONF = """\
ClusterName=drill{pid}
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CryptoType=crypto/munge
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmdLogFile={folder}/slurmd.%n.log
SlurmdSpoolDir={folder}/spool.%n
TmpFS={folder}/tmp.%n
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=1,batch_sched_delay=0
SlurmctldDebug=debug2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
ReturnToService=2
KillWait={grace}
MpiDefault=none
{nodes}
PartitionName=work Nodes=ALL Default=YES MaxTime=INFINITE PriorityTier=1 GraceTime={grace}
PartitionName=urgent Nodes=ALL MaxTime=INFINITE PriorityTier=2
"""


class Slurm:
    """Daemons that run inside the block; `environ` leads Slurm's commands to them.

    Args:
        folder: of this cluster alone, with a path of at most 70 bytes: a socket lies in it.

    RuntimeError, with the end of the logs, when a daemon does not come up.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.environ = os.environ | {
            "SLURM_CONF": str(folder / "slurm.conf"),
            "PATH": _PATH,
            "PYTHONPATH": str(_ROOT),
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        }
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Slurm:
        install(("sbatch", "slurmctld", "slurmd", "munged"), _PACKAGES)
        # slurmd looks for PMIx when it starts, in Debian by a name that only this package has.
        if not list(Path("/usr/lib").glob("*/pmix2/lib/libpmix.so")):
            install(("libpmix.so",), ("libpmix-dev",))  # no program, so never there by itself
        began = time.monotonic()
        self._write()
        with contextlib.ExitStack() as stack:
            socket_ = self.folder / "munge.socket"
            self._daemon(stack, "munged", *self._munge(socket_))
            self._await(socket_.exists, "munged")
            self._daemon(stack, "slurmctld", "slurmctld", "-D", "-c")
            for node in NODES:
                self._daemon(stack, f"slurmd.{node}", "slurmd", "-D", "-N", node)
            self._await(self._idle, "slurmctld")
            self._stack = stack.pop_all()
        self.seconds = time.monotonic() - began
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(RuntimeError, subprocess.TimeoutExpired):  # a daemon has died
            if jobs := self.run("squeue", "--noheader", "--format=%A").split():
                self.run("scancel", *jobs)
        self._stack.close()
        self._kill_left()

    def run(self, *command: str | Path, seconds: float = 30, cwd: Path | None = None) -> str:
        """What a command of Slurm's prints on stdout; RuntimeError, with its complaint, where it
        fails."""
        done = subprocess.run(
            list(map(str, command)),
            env=self.environ,
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=seconds,
        )
        if done.returncode:
            raise RuntimeError(f"{command[0]}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def sbatch(self, *arguments: str | Path, cwd: Path) -> str:
        """Submit a script; the job's number."""
        return self.run("sbatch", "--parsable", *arguments, cwd=cwd).strip()

    def show(self, job: str) -> dict[str, str]:
        """What `scontrol show job` says of a job, or of a task JOB_TASK."""
        line = self.run("scontrol", "--oneliner", "show", "job", job).splitlines()[0]
        return dict(field.split("=", 1) for field in line.split() if "=" in field)

    def wait(self, job: str, *states: str, seconds: float) -> dict[str, str]:
        """`show` of a job as soon as it is in one of `states`; AssertionError if it ends otherwise,
        or is not there in time."""
        end = time.monotonic() + seconds
        while (facts := self.show(job))["JobState"] not in states:
            assert facts["JobState"] not in _ENDS, facts
            assert time.monotonic() < end, facts
            time.sleep(0.2)
        return facts

    def release(self, job: str, seconds: float = 30) -> None:
        """Wait for a requeued job to be pending again, and let it go without Slurm's 2 minutes.

        Not at once: a node refuses a job that it has ended within the same second. From now on it
        has time enough.
        """
        self.wait(job, "PENDING", seconds=seconds)
        now = f"StartTime=now+{_PAUSE}"
        self.run("scontrol", "update", f"jobid={job}", now, "TimeLimit=10")

    def before_check(self, seconds: float) -> None:
        """Wait until Slurm is `seconds` away from its next look at time limits, two a minute."""
        checks = r"^\[(\S+)\] (?:debug2: Testing job time limits|Running as primary)"
        seen = re.findall(checks, (self.folder / "slurmctld.log").read_text(), re.MULTILINE)
        last = datetime.datetime.fromisoformat(seen[-1]).timestamp()
        time.sleep((last + _CHECK - seconds - time.time()) % _CHECK)

    def _write(self) -> None:
        ports = _free_ports(1 + len(NODES))
        nodes = (
            f"NodeName={name} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} "
            "CPUs=2 RealMemory=4000"
            for name, port in zip(NODES, ports[1:], strict=True)
        )
        for node in NODES:
            (self.folder / f"spool.{node}").mkdir(parents=True)
            (self.folder / f"tmp.{node}").mkdir()
        (self.folder / "state").mkdir()
        (self.folder / "slurm.conf").write_text(
            _CONF.format(
                pid=os.getpid(),
                port=ports[0],
                folder=self.folder,
                grace=_GRACE,
                nodes="\n".join(nodes),
            )
        )
        key = self.folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(128))

    def _munge(self, socket_: Path) -> list[str]:
        files = {
            "socket": socket_,
            "key-file": self.folder / "munge.key",
            "pid-file": self.folder / "munged.pid",
            "log-file": self.folder / "munged.log",
            "seed-file": self.folder / "munged.seed",
        }
        return ["munged", "--foreground", "--force", *(f"--{k}={v}" for k, v in files.items())]

    def _daemon(self, stack: contextlib.ExitStack, name: str, *command: str) -> None:
        with open(self.folder / f"{name}.out", "wb") as out:
            process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "TERM", *command],  # they do not outlive a killed test
                env=self.environ,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        stack.callback(_stop, process)

    def _idle(self) -> bool:
        with contextlib.suppress(RuntimeError):  # slurmctld does not answer yet
            return self.run("sinfo", "--noheader", "--format=%T %D", "-p", "work") == "idle 4\n"
        return False

    def _await(self, there, name: str) -> None:
        end = time.monotonic() + _UP
        while not there():
            if time.monotonic() > end:
                logs = sorted(self.folder.glob(f"{name}.*"))
                said = "\n".join(log.read_text()[-2000:] for log in logs if log.suffix != ".pid")
                raise RuntimeError(f"{name} did not come up in {_UP:g} s\n{said}")
            time.sleep(0.05)

    def _kill_left(self) -> None:
        """What outlives its daemon: jobs, and those who watch over them. They know our files."""
        mark = f"SLURM_CONF={self.environ['SLURM_CONF']}".encode()
        for entry in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
                if mark in entry.read_bytes().split(b"\0"):
                    os.kill(int(entry.parent.name), signal.SIGKILL)


def _free_ports(number: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _stop(process: subprocess.Popen) -> None:
    process.terminate()
    try:
        process.wait(_DOWN)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextlib.contextmanager
def running() -> Iterator[Slurm]:
    """A cluster in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="slurm.") as folder, Slurm(Path(folder)) as slurm:
        yield slurm


def main(command: list[str]) -> int:
    """The binary."""
    with running() as slurm:
        print(f"Slurm is up after {slurm.seconds:.1f} s: {slurm.folder}", file=sys.stderr)
        return subprocess.run(command, env=slurm.environ).returncode


if __name__ == "__main__":
    if sys.argv[1:2] != ["--"] or not sys.argv[2:]:
        sys.exit("python -m tests.cluster.slurm -- COMMAND")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main(sys.argv[2:]))
