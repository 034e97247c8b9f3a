"""Several hosts on one machine: network namespaces around a switch, with cards of given rates.

Each host has a network of its own, an address, and a card that lets so many bytes per second out
and as many in: token buckets at both ends of its cable. `Hosts.mpirun` starts a rank on each of
them, whose messages go over TCP; `Hosts.cut` pulls a cable, which nobody is told of. Whatever still
runs on the hosts when the block ends is killed, and all of it is removed.

    with hosts([12.5e6, 12.5e6, 2.5e6]) as three:
        argv, environ = three.mpirun([sys.executable, "program.py"])

Needs root and the programs ip, tc, nsenter and unshare. Latency is the machine's own, for another
one takes a kernel with netem.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

from cbdybw.clusters.launch import mpirun

NET = "10.77.0"
AT_ONCE = 4 << 20
"""Bytes of the largest message that leaves at once. MPI has a larger one wait for the receiver's
consent, which comes behind all that goes the other way: two who send each other vectors at the same
time would do so one after the other."""
DETECTOR = {
    "mpi_ft_detector": "true",
    "mpi_ft_detector_thread": "true",  # else a rank that writes to a slow disk counts as dead
    "mpi_ft_detector_period": "1",
    "mpi_ft_detector_timeout": "5",
    "mpi_ft_propagator_with_rbcast": "true",  # the news goes from rank to rank, not by mpirun
}
"""Open MPI's parameters by which ranks notice within seconds that a host is cut off: TCP says
nothing of a peer that has fallen silent."""
_PROGRAMS = ("ip", "tc", "nsenter", "unshare")
_CARD = """\
qdisc replace dev {device} root handle 1: htb default 2
class add dev {device} parent 1: classid 1:1 htb rate {rate}bit burst 16kb
class add dev {device} parent 1:1 classid 1:2 htb rate {acks}bit ceil {rate}bit prio 0 quantum 9000
filter add dev {device} parent 1: protocol ip prio 1 u32 match u16 0 0xffc0 at 2 flowid 1:2
"""
_PEER = """\
class add dev {device} parent 1:1 classid 1:{number} htb rate {share}bit ceil {rate}bit prio 1 \
quantum 9000
filter add dev {device} parent 1: protocol ip prio 2 u32 match ip {end} {address} flowid 1:{number}
"""
"""A card shares its rate evenly among the hosts it talks to, as fq_codel does: what is small does
not wait behind what is large and for somebody else. Acknowledgements, packets of less than 64
bytes, go first. Queues are so long that nothing is dropped."""
_AGENT = """\
#!/bin/sh
# mpirun's way to a host: its namespace, under a name of its own.
host=$1; shift
exec nsenter --net=/run/netns/{prefix}-${{host##*.}} unshare --uts \\
    sh -c "hostname $host && $*"
"""
_numbers = count()


class Unavailable(Exception):
    """What is missing here."""


class Hosts:
    """Hosts 0 … n-1 while they exist; made by `hosts`.

    Attributes:
        addresses: of the hosts, which are their names to mpirun.
        network: in which these lie, as MPI's parameters want it.
    """

    def __init__(self, prefix: str, rates: Sequence[float], folder: Path):
        self._prefix, self._rates, self._folder = prefix, rates, folder
        self._agent = folder / "agent"
        self._hub = f"{prefix}-{len(rates) + 1}"
        self.addresses = [f"{NET}.{host + 1}" for host in range(len(rates))]
        self.network = f"{NET}.0/24"

    def mpirun(self, command: Sequence[str], ulfm: bool = True) -> tuple[list[str], dict[str, str]]:
        """argv and environment that run `command` on one rank of each host, in their order.

        mpirun itself runs on the first of them. `ulfm` lets the ranks notice each other's deaths,
        and that a host is cut off.
        """
        (program, *rest), environ = mpirun(len(self.addresses), command, ulfm=ulfm)
        named = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', self.addresses[0]]
        argv = [*self.inside(0), *named, program, "--prtemca", "plm_ssh_agent", str(self._agent)]
        argv += ["--prtemca", "prte_if_include", self.network]
        argv += ["--mca", "pml", "ob1", "--mca", "btl", "tcp,self"]
        argv += ["--mca", "btl_tcp_if_include", self.network, "--map-by", "node"]
        for limit in ("eager_limit", "rndv_eager_limit", "max_send_size"):
            argv += ["--mca", f"btl_tcp_{limit}", str(AT_ONCE)]
        argv += ["--host", ",".join(f"{address}:1" for address in self.addresses)]
        for name, value in DETECTOR.items() if ulfm else ():
            argv += ["--mca", name, value]
        return [*argv, *rest], environ | {"TMPDIR": str(self._folder)}  # MPI's files go with it

    def inside(self, host: int) -> list[str]:
        """The beginning of a command line that is to run on this host."""
        return ["nsenter", f"--net=/run/netns/{self._prefix}-{host + 1}"]

    def processes(self, host: int) -> list[int]:
        """The numbers of all that runs on this host."""
        return [int(pid) for pid in _call(f"ip netns pids {self._prefix}-{host + 1}").split()]

    def cut(self, host: int) -> None:
        """Pull the cable: from now on nothing gets to this host or away from it."""
        _call(f"ip -n {self._hub} link set port{host} down")

    def _make(self) -> None:
        self._agent.write_text(_AGENT.format(prefix=self._prefix))
        self._agent.chmod(0o755)
        hub = self._hub
        _add(hub)
        _call(f"ip -n {hub} link add switch type bridge")
        _call(f"ip -n {hub} link set switch up")
        for n, rate in enumerate(self._rates):
            host, port = f"{self._prefix}-{n + 1}", f"port{n}"
            _add(host)
            _call(f"ip -n {hub} link add {port} type veth peer name eth0 netns {host}")
            _call(f"ip -n {hub} link set {port} master switch up")
            _call(f"ip -n {host} addr add {self.addresses[n]}/24 dev eth0")
            _call(f"ip -n {host} link set eth0 up")
            _call(f"{' '.join(self.inside(n))} sysctl -q -w net.ipv4.tcp_congestion_control=reno")
            self._limit(host, "eth0", rate, "dst")
            self._limit(hub, port, rate, "src")

    def _limit(self, namespace: str, device: str, rate: float, end: str) -> None:
        """Let `rate` through, shared by peers, whose addresses are at this end of a packet."""
        bits, peers = 8 * rate, len(self.addresses)
        lines = _CARD.format(device=device, rate=f"{bits:.0f}", acks=f"{bits / 10:.0f}")
        for number, address in enumerate(self.addresses, 10):
            share = f"{0.9 * bits / peers:.0f}"
            about = {"number": number, "address": f"{address}/32", "share": share, "end": end}
            lines += _PEER.format(device=device, rate=f"{bits:.0f}", **about)
        _call(f"tc -n {namespace} -batch -", lines)

    def _remove(self) -> None:
        for host in range(len(self._rates) + 1):  # and the switch's namespace
            namespace = f"{self._prefix}-{host + 1}"
            if Path(f"/run/netns/{namespace}").exists():
                for pid in self.processes(host):
                    _kill(pid)
                _call(f"ip netns del {namespace}")


@contextmanager
def hosts(rates: Sequence[float]) -> Iterator[Hosts]:
    """As many hosts as there are `rates`, in bytes per second; gone afterwards.

    Raises Unavailable where there can be none.
    """
    for program in _PROGRAMS:
        if shutil.which(program) is None:
            raise Unavailable(f"the program {program} is not installed")
    if os.geteuid() != 0:
        raise Unavailable("only root makes network namespaces")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        made = Hosts(f"cbdybw-{os.getpid()}-{next(_numbers)}", rates, Path(folder))
        try:
            made._make()
            yield made
        finally:
            made._remove()


def _add(namespace: str) -> None:
    _call(f"ip netns add {namespace}")
    _call(f"ip -n {namespace} link set lo up")


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):  # it has ended meanwhile
        os.kill(pid, signal.SIGKILL)


def _call(command: str, given: str = "") -> str:
    done = subprocess.run(
        command.split(), input=given, capture_output=True, text=True, timeout=30, check=False
    )
    if done.returncode:
        said = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise Unavailable(f"{command}: {said}")
    return done.stdout
