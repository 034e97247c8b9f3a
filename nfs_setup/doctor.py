"""Is a folder fit for runs? `python -m nfs_setup.doctor PATH [--peers=HOST,HOST] [--json]`

Tries in PATH what runs depend on, and prints a line on each thing: ok, warn or fail, and what to
do. With --peers the same is tried between this host and those, which is what counts where several
hosts share a folder; without, between two processes here. 2 to 10 s, 40 where caches are slow.

All that it makes lies in PATH/.doctor-…, which is removed at the end, also when it fails or is
interrupted. On a peer this checkout and its .venv must lie under the same path as here.

Exit code 0: all is ok. 1: there are warnings; runs work, but something is slower, or seen later,
than it could be. 2: something failed and runs would do harm, or the input cannot be used.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from absl import app, flags

from cbdybw.clusters.guard import guard, say
from cbdybw.errors import BadInput
from nfs_setup import mounts, verdicts
from nfs_setup.changes import CHANGES
from nfs_setup.findings import FAIL, OK, VERDICTS, Finding, refused
from nfs_setup.peers import LAUNCH, SRUN, NoAnswer, Peer, command, serve
from nfs_setup.report import report

ROUNDS = 200
"""Races: one in a hundred that goes wrong is all but surely seen."""

WATCHED = 30.0
"""Seconds in which a change must be seen; an NFS client caches for up to 60 by default, and from
30 on nothing is learnt but that it is late."""

_REWRITING = 1.0  # seconds
_SIZE = 64 * 2**20  # bytes whose writing and reading is timed

_ALONE = {
    "owner": verdicts.owner,
    "space": verdicts.space,
    "quota": verdicts.quota,
    "names": verdicts.names,
    "fsync": verdicts.fsync,
    "rename": verdicts.rename,
}
"""Probes that need one process, and what judges them."""


def examine(path: str, hosts: Sequence[str] = (), launch: str = LAUNCH) -> Iterator[Finding]:
    """What is found in the folder `path`, as it is found, from here and from `hosts`.

    Raises BadInput where `path` is no folder.
    """
    path, folder = os.path.abspath(path), None
    with contextlib.ExitStack() as stack:
        here = stack.enter_context(Peer.local())
        try:
            yield verdicts.place(_survey(here, path))
            with _refusals("mount") as found:
                found += mounts.judge(_mount(here, path))
            yield from found
            try:
                folder = here.ask("make", path=path)
            except OSError as error:
                yield refused("write", error)
                return
            for probe, judge in _ALONE.items():
                with _refusals(probe) as found:
                    found.append(judge(here.ask(probe, folder=folder)))
                yield from found
            yield from _of_clock(here, folder)
            others = []
            for host in dict.fromkeys(hosts):
                with _refusals(f"peer {host}") as found:
                    found += _meet(stack, host, launch, path, folder, others)
                yield from found
            if not others:
                others = [stack.enter_context(Peer.local())]
                others[0].ask("sees", folder=folder)  # it has started when it answers
            yield from _together(here, others, folder)
        except NoAnswer as trouble:
            mend = "see whether the file server, the network and that host are up; start again"
            yield Finding("answer", FAIL, str(trouble), mend)
        finally:
            stack.close()
            if here.code and folder:
                say(f"{folder}: could not be removed; remove it by hand")


def _survey(here: Peer, path: str) -> dict[str, Any]:
    try:
        survey = here.ask("survey", path=path)
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}; name a folder that is there") from None
    if not survey["folder"]:
        raise BadInput(f"{path}: is no folder; name one")
    return survey


def _mount(peer: Peer, path: str) -> mounts.Mount | None:
    fields = peer.ask("mount", path=path)
    return fields and mounts.Mount(**fields)


def _of_clock(peer: Peer, folder: str) -> Iterator[Finding]:
    check = f"clock {peer.name}".strip()
    with _refusals(check) as found:
        found.append(verdicts.clock(peer.ask("clock", folder=folder), check))
    yield from found


@contextlib.contextmanager
def _refusals(check: str) -> Iterator[list[Finding]]:
    """A list for findings, to which is added what the system refuses in the block."""
    found: list[Finding] = []
    try:
        yield found
    except OSError as error:
        found.append(refused(check, error))


def _meet(
    stack: contextlib.ExitStack,
    host: str,
    launch: str,
    path: str,
    folder: str,
    others: list[Peer],
) -> Iterator[Finding]:
    """Start a peer on `host`; it is one of `others` if it sees the same folder."""
    words = command(launch, host)
    try:
        peer = stack.enter_context(Peer(host, words))
        peer.ask("survey", path="/")
    except (OSError, NoAnswer) as trouble:
        first = shlex.join(words[: words.index("env")])
        mend = f"try by hand: {first} true; this checkout must be there too, or say --launch"
        yield Finding(f"peer {host}", FAIL, f"cannot be asked: {trouble}", mend)
        return
    try:
        if not peer.ask("sees", folder=folder):
            says, mend = f"{path} is another folder there", "mount the same export on both"
            yield Finding(f"peer {host}", FAIL, says, mend)
            return
        yield Finding(f"peer {host}", OK, "sees the same folder")
        yield from mounts.judge(_mount(peer, path), f"mount {host}")
        yield from _of_clock(peer, folder)
    except NoAnswer as trouble:
        mend = "the file server, or the network to it, hangs on that host"
        yield Finding(f"peer {host}", FAIL, str(trouble), mend)
        return
    others.append(peer)


def _together(here: Peer, others: list[Peer], folder: str) -> Iterator[Finding]:
    for check, of in {
        "O_EXCL": lambda: [_race("create", here, others, folder)],
        "hard link": lambda: [_race("link", here, others, folder)],
        "lock": lambda: [_lock(here, others[0], folder)],
        "rewriting": lambda: [_rewrite(here, others[0], folder)],
        "visibility": lambda: _watch(here, others, folder),
        "throughput": lambda: _rates(here, others[0], folder),
    }.items():
        with _refusals(check) as found:
            found += of()
        yield from found


def _race(kind: str, here: Peer, others: list[Peer], folder: str) -> Finding:
    racers = [*others, here]  # those who are told first may be further away
    for peer in racers:
        peer.tell("race", folder=folder, kind=kind, rounds=ROUNDS)
    wins = {peer.name or f"here {n}": peer.answer() for n, peer in enumerate(racers)}
    return verdicts.race(kind, ROUNDS, wins)


def _lock(here: Peer, other: Peer, folder: str) -> Finding:
    held = here.ask("lock", folder=folder)
    excludes = held and not other.ask("lock", folder=folder)
    here.ask("unlock", folder=folder)
    other.ask("unlock", folder=folder)
    return verdicts.lock(excludes, other.ask("lock", folder=folder))


def _rewrite(here: Peer, other: Peer, folder: str) -> Finding:
    here.ask("begin", folder=folder)
    other.tell("reread", folder=folder, seconds=10 * _REWRITING)
    other.hear()
    written = here.ask("rewrite", folder=folder, seconds=_REWRITING)
    return verdicts.rewriting(other.answer(), written)


def _watch(here: Peer, others: list[Peer], folder: str) -> Iterator[Finding]:
    here.ask("prepare", folder=folder)
    for peer in others:
        peer.tell("watch", folder=folder, seconds=WATCHED)
    for peer in others:
        peer.hear()
    here.tell("change", folder=folder)
    done, _ = _heard(here)
    delays, listed = {}, {}
    for peer in others:
        seen, listed[peer.name] = _heard(peer)
        delays[peer.name] = {name: max(0.0, seen[name] - done[name]) for name in seen}
    for change in CHANGES:
        late = {host: times.get(change) for host, times in delays.items()}
        found = {host: change in changes for host, changes in listed.items()}
        yield verdicts.visibility(change, late, found, WATCHED)


def _heard(peer: Peer) -> tuple[dict[str, float], Any]:
    """When each event of `peer` came, and the answer after them."""
    events = {}
    while "event" in (what := peer.hear())[1]:
        events[what[1]["event"]] = what[0]
    return events, what[1]["answer"]


def _rates(here: Peer, other: Peer, folder: str) -> Iterator[Finding]:
    size = min(_SIZE, here.ask("space", folder=folder)["free"] // 4)
    yield verdicts.rate("write", here.ask("write", folder=folder, size=size))
    yield verdicts.rate("read", other.ask("read", folder=folder))


def _parse(argv: list[str]) -> list[str]:
    with guard():
        try:
            rest = flags.FLAGS(argv)
        except flags.Error as error:
            raise BadInput(" ".join(str(error).split())) from None
        if flags.FLAGS.peer:
            return rest
        if len(rest) != 2:
            raise BadInput(f"{len(rest) - 1} folders named: give one, as in nfs_setup.doctor PATH")
        for host in flags.FLAGS.peers:
            if not host or host.startswith("-") or host.split() != [host]:
                raise BadInput(f"--peers: {host!r} is no host; give names, as in --peers=n1,n2")
        _check_launch(flags.FLAGS.launch)
        return rest


def _check_launch(launch: str) -> None:
    try:
        words = shlex.split(launch)
    except ValueError as error:
        raise BadInput(f"--launch={launch}: {error}; close what is open") from None
    if not any("{host}" in word for word in words[1:]):
        raise BadInput(f"--launch={launch}: does not name the host; write {{host}} where it goes")


def main(argv: list[str]) -> int:
    """The binary; returns its exit code."""
    with guard():
        if flags.FLAGS.peer:
            serve(sys.stdin, sys.stdout)
            return 0
        for signum in (signal.SIGINT, signal.SIGTERM):
            signal.signal(signum, lambda number, _: sys.exit(128 + number))
        hosts = flags.FLAGS.peers
        with contextlib.closing(examine(argv[1], hosts, flags.FLAGS.launch)) as findings:
            return VERDICTS.index(report(argv[1], findings, flags.FLAGS.json, hosts))


if __name__ == "__main__":
    flags.DEFINE_list("peers", [], "hosts that share the folder, as in n1,n2")
    flags.DEFINE_string("launch", LAUNCH, "what starts a command on {host}; for Slurm: " + SRUN)
    flags.DEFINE_bool("json", False, "print one JSON object")
    flags.DEFINE_bool("peer", False, "answer another doctor on stdin and stdout")
    app.run(main, flags_parser=_parse)
