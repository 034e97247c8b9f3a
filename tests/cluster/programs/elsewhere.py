"""Run a command on another machine without sshd: what `--launch` of the doctor's needs in a drill.

    elsewhere.py serve PORT           there: one command per connection, its stdin and stdout
    elsewhere.py PORT HOST COMMAND…   here: the command runs on HOST; stdin and stdout as by ssh

For machines on a wire that nobody else is on. Standard library only.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import threading


def serve(port: int) -> None:
    with socket.create_server(("", port)) as server:
        print("serving", flush=True)
        while True:
            connection, _ = server.accept()
            with connection, connection.makefile("rb", buffering=0) as lines:
                words = json.loads(lines.readline())
                subprocess.Popen(words, stdin=connection, stdout=connection)


def run(port: int, host: str, words: list[str]) -> None:
    with socket.create_connection((host, port), timeout=30) as connection:
        connection.settimeout(None)
        connection.sendall(json.dumps(words).encode() + b"\n")
        threading.Thread(target=_send, args=(connection,), daemon=True).start()
        with connection.makefile("rb", buffering=0) as answers:
            shutil.copyfileobj(answers, sys.stdout.buffer.raw)


def _send(connection: socket.socket) -> None:
    while data := os.read(0, 65536):
        connection.sendall(data)
    connection.shutdown(socket.SHUT_WR)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(int(sys.argv[2]))
    else:
        run(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
