"""What runs in a guest as its first process: starts what the one that has booted it tells it to.

    from there     run N: the command in FOLDER/N.json;  signal PID SIGNUM
    to there       {"number": N, "pid": …}, then {"number": N, "code": …}; with N = 0 when it is up

What a command prints goes to FOLDER/N.out and N.err. The lines come and go by a console, which
holds few bytes: that is why they are short. Standard library only, for it is to be up soon.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import tty
from pathlib import Path

_CONSOLE = "/dev/tty1"


def main(folder: Path) -> None:
    """Serve until the console is closed; then the kernel ends, as its first process does."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    console = os.open(_CONSOLE, os.O_RDWR | os.O_NOCTTY)
    tty.setraw(console)
    lock = threading.Lock()

    def tell(**answer: int) -> None:
        with lock:
            os.write(console, (json.dumps(answer) + "\n").encode())

    tell(number=0)
    with open(console, "rb", closefd=False) as lines:
        for line in lines:
            verb, *numbers = line.decode().split()
            if verb == "run":
                threading.Thread(target=run, args=(folder, int(numbers[0]), tell)).start()
            else:
                send(*map(int, numbers))


def run(folder: Path, number: int, tell) -> None:
    """One command, from its beginning to its end."""
    request = json.loads((folder / f"{number}.json").read_text())
    with open(folder / f"{number}.out", "wb") as out, open(folder / f"{number}.err", "wb") as err:
        process = subprocess.Popen(
            request["argv"],
            env=os.environ | request["environ"],
            cwd=request["cwd"],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
        tell(number=number, pid=process.pid)
        code = process.wait()
    tell(number=number, code=code)


def send(pid: int, signum: int) -> None:
    """A signal to a command, and to what it has started, if it is still there."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signum)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
