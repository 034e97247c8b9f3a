"""A user-space NFS server, by the configuration that nfs_setup recommends.

with Wire(ports=2) as wire, Ganesha(wire, folder, {"/runs": shared}) as server:
    server.kill()
    server.start()  # as a machine that comes back: who held what is still known
"""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from tests.cluster.machine import install
from tests.cluster.wire import HERE, NET, Wire

PORT = 2049
_TEMPLATE = Path(__file__).parents[2] / "nfs_setup" / "ganesha.conf"
_READY = "NFS SERVER INITIALIZED"
_UP, _DOWN = 60.0, 20.0  # seconds in which it should come, and go


class Ganesha:
    """The server, at the switch of `wire`, while the block lasts.

    Args:
        folder: for configuration, logs and the state that outlives a restart.
        exports: names for clients, and the folders behind them.
        port: where it listens.
        old: whether it speaks NFS 3 as well, which names exports by their folders.
    """

    def __init__(
        self,
        wire: Wire,
        folder: Path,
        exports: Mapping[str, Path],
        port: int = PORT,
        old: bool = False,
    ):
        self._wire, self._folder, self._exports = wire, folder, exports
        self._port, self._old = port, old
        self._process: subprocess.Popen | None = None
        self._starts = 0
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Ganesha:
        install(("ganesha.nfsd",), ("nfs-ganesha", "nfs-ganesha-vfs"))
        (self._folder / "state").mkdir(parents=True)
        (self._folder / "ganesha.conf").write_text(self._configuration())
        with contextlib.ExitStack() as stack:
            if self._old:
                self._bind(stack)
            stack.callback(self._end, signal.SIGTERM)
            self.start()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def start(self) -> None:
        """Start it, and wait until it answers; RuntimeError with its log where it does not."""
        self._starts += 1
        log = self._folder / f"ganesha.{self._starts}.log"
        command = ["ganesha.nfsd", "-F", "-f", self._folder / "ganesha.conf", "-L", log]
        command += ["-p", self._folder / "ganesha.pid"]
        (self._folder / "ganesha.pid").unlink(missing_ok=True)
        with open(self._folder / "ganesha.out", "ab") as out:
            self._process = subprocess.Popen(
                [*self._wire.inside, *command], stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )
        end = time.monotonic() + _UP
        while not (log.exists() and _READY in log.read_text(errors="replace")):
            if self._process.poll() is not None or time.monotonic() > end:
                said = log.read_text(errors="replace")[-3000:] if log.exists() else ""
                raise RuntimeError(f"nfs-ganesha did not come up\n{said}")
            time.sleep(0.05)

    @property
    def runs(self) -> bool:
        """Whether it has been started and not ended since."""
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """End it as a loss of power does, for its clients: by SIGKILL."""
        self._end(signal.SIGKILL)

    def _end(self, signum: signal.Signals) -> None:
        if self._process is None:
            return
        self._process.send_signal(signum)
        try:
            self._process.wait(_DOWN)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _bind(self, stack: contextlib.ExitStack) -> None:
        """Start the service that NFS 3 makes its ports known by."""
        install(("rpcbind",), ("rpcbind",))
        process = subprocess.Popen([*self._wire.inside, "rpcbind", "-f", "-w", "-h", HERE])
        stack.callback(process.wait, _DOWN)
        stack.callback(process.terminate)
        end = time.monotonic() + _UP
        asks = [*self._wire.inside, "rpcinfo", "-p", HERE]
        while subprocess.run(asks, capture_output=True, timeout=_UP).returncode:
            if time.monotonic() > end:
                raise RuntimeError("rpcbind did not come up")
            time.sleep(0.05)

    def _configuration(self) -> str:
        text = _TEMPLATE.read_text()
        if self._old:
            text = text.replace("Protocols = 4;", "Protocols = 3, 4;")
            text = text.replace(
                "Enable_RQUOTA = false;", "Enable_RQUOTA = false; Enable_UDP = false;"
            )
        head, export = re.split(r"(?=^EXPORT \{)", text, flags=re.MULTILINE)
        for number, (name, folder) in enumerate(self._exports.items(), start=1):
            one = export.replace("Export_Id = 1;", f"Export_Id = {number};")
            head += one.replace("@FOLDER@", str(folder)).replace("@EXPORT@", name)
        known = {"CLIENTS": f"{NET}.0/24", "ADDRESS": HERE, "PORT": str(self._port)}
        known["STATE"] = str(self._folder / "state")
        for name, value in known.items():
            head = head.replace(f"@{name}@", value)
        return head
