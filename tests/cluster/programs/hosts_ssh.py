"""mpirun's way to a host, as ssh with ServerAliveInterval=1 and ServerAliveCountMax=6: it ends with
exit code 255 when the host no longer answers.

    hosts_ssh.py AGENT HOST COMMAND…
"""

import signal
import socket
import subprocess
import sys

PORT, INTERVAL, MOST = 9, 1.0, 6


def answers(host: str) -> bool:
    """Whether the host is there: that it refuses the connection says so, too."""
    try:
        socket.create_connection((host, PORT), INTERVAL).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return True


def main(agent: str, host: str, *command: str) -> int:
    with subprocess.Popen([agent, host, *command]) as session:
        signal.signal(signal.SIGTERM, lambda *_: session.terminate())
        missed = 0
        while missed < MOST:
            try:
                return session.wait(INTERVAL)
            except subprocess.TimeoutExpired:
                missed = 0 if answers(host) else missed + 1
        session.kill()
    return 255


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
