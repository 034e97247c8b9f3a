"""Tasks as jobs of Slurm: the batch script, sbatch, and what squeue says of them.

The script is nfs_setup/slurm/requeue.sh with other settings: submitit's conventions, without its
pickled functions in the shared folder.
"""

from __future__ import annotations

import getpass
import itertools
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from cbdybw.clusters.launch import mpirun
from cbdybw.errors import BadInput
from experiments.arrays import Task
from experiments.submission import Submission
from experiments.watching import DONE, GONE, OVER, RUNNING, WAITING, Place, Silent

_TEMPLATE = Path(__file__).parents[1] / "nfs_setup/slurm/requeue.sh"
_SETTINGS = re.compile(r"(?<=# --- edit from here\n).*?(?=# --- to here\n)", re.DOTALL)
_PATIENCE = 60  # seconds that a command of Slurm's may take
_RUNNING = ("RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT")
_ENDS = (
    *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY"),
    *("PREEMPTED", "REVOKED", "TIMEOUT"),
)
_OWN = ("COMPLETED", "FAILED")  # how it ended is the run's to say


class Command(NamedTuple):
    """A line that submits `tasks`."""

    tasks: list[Task]
    argv: list[str]


def script(submission: Submission) -> str:
    """The batch script of a submission."""
    launch = ""
    if _on_mpi(submission.tasks):
        program = mpirun(1, [])[0][0]
        launch = f'{shlex.quote(program)} --with-ft ulfm --bind-to none -n "$SLURM_NTASKS"'
    settings = f"""\
python={shlex.quote(sys.executable)}
flagfile={shlex.quote(str(submission.out / "tasks"))}/$SLURM_ARRAY_TASK_ID.flags
launch=({launch})
flags=(--flagfile="$flagfile")
run_dir=$(sed -n 's/^--run_dir=//p' "$flagfile")
"""
    return _SETTINGS.sub(lambda _: settings, _TEMPLATE.read_text(encoding="utf-8"))


def commands(submission: Submission, tasks: Iterable[Task], options: str) -> list[Command]:
    """The lines that submit `tasks`, an array for each number of ranks. `options` are sbatch's."""
    name = submission.out.name
    log = str(submission.logs).replace("%", "%%")
    groups: dict[int, list[Task]] = {}
    for task in tasks:
        groups.setdefault(task.ranks, []).append(task)
    return [
        Command(
            members,
            [
                *("sbatch", "--parsable", f"--job-name={name}", f"--ntasks={ranks}"),
                *(f"--array={_numbers(members)}", f"--output={log}/%A_%a.log"),
                *_split(options),
                str(submission.script),
            ],
        )
        for ranks, members in sorted(groups.items())
    ]


def check() -> None:
    """BadInput where there is no Slurm, or it does not answer."""
    if shutil.which("sbatch") is None:
        raise BadInput("sbatch: not on PATH; log in where Slurm is, or add --local to run it here")
    try:
        _queue()
    except RuntimeError as silence:
        raise BadInput(f"{silence}; look after Slurm, or add --local to run it here") from None


def submit(submission: Submission, tasks: Sequence[Task], options: str) -> None:
    """Submit `tasks`, and note which jobs they are. BadInput with sbatch's own complaint."""
    for members, command in commands(submission, tasks, options):
        done = _ask(command)
        if done.returncode:
            raise BadInput(f"sbatch: {_line(done.stderr)}; mend it by --sbatch='--option=value …'")
        job = done.stdout.strip().partition(";")[0]  # then the cluster, where there are several
        submission.submitted({task.number: f"{job}_{task.number}" for task in members})


def adopt(submission: Submission) -> None:
    """Note jobs that nobody has noted yet: whoever submitted them was killed just then."""
    noted, found = submission.jobs, {}
    for job, (_, _, command) in _queue().items():
        if command == str(submission.script):
            found[int(job.partition("_")[2])] = job
    if missing := {number: job for number, job in found.items() if number not in noted}:
        submission.submitted(missing)


class Jobs:
    """The jobs of a submission."""

    pause = 5.0  # squeue asks a server that all users share
    lag = 10.0  # NFS

    def __init__(self, submission: Submission):
        self._submission = submission

    def places(self) -> dict[int, Place]:
        """Where each task is just now. Silent when Slurm does not answer."""
        queue = _queue()
        return {
            number: _place(job, *queue.get(job, ("", "", ""))[:2])
            for number, job in self._submission.jobs.items()
        }


def _place(job: str, state: str, reason: str) -> Place:
    if not state:
        return Place(GONE, job)
    if state in _ENDS:
        return Place(DONE if state == "COMPLETED" else OVER, job, "" if state in _OWN else state)
    if state in _RUNNING:
        return Place(RUNNING, job)
    return Place(WAITING, job, "" if reason == "None" else reason)


def _queue() -> dict[str, tuple[str, str, str]]:
    """Job → its state, why it waits, and its script."""
    form = "--format=%i|%T|%r|%o"
    done = _ask(
        ["squeue", "--noheader", "--array", "--states=all", f"--user={getpass.getuser()}", form]
    )
    if done.returncode:
        raise Silent(f"squeue: {_line(done.stderr)}")
    rows = (line.split("|", 3) for line in done.stdout.splitlines())
    return {job: (state, reason, command) for job, state, reason, command in rows}


def _ask(command: Sequence[str]) -> subprocess.CompletedProcess:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE)
    except subprocess.TimeoutExpired:
        raise Silent(f"{command[0]}: no answer in {_PATIENCE} s") from None


def _on_mpi(tasks: Iterable[Task]) -> bool:
    on_mpi = {task.settings.cluster == "mpi" for task in tasks}
    if len(on_mpi) > 1:
        raise BadInput("--flagfile: some are for MPI and some not; submit them apart")
    return on_mpi == {True}


def _numbers(tasks: Iterable[Task]) -> str:
    """0-4,7: in the way of --array."""
    runs = itertools.groupby(
        enumerate(task.number for task in tasks), lambda pair: pair[1] - pair[0]
    )
    spans = [[number for _, number in run] for _, run in runs]
    return ",".join(str(s[0]) if len(s) == 1 else f"{s[0]}-{s[-1]}" for s in spans)


def _split(options: str) -> list[str]:
    try:
        return shlex.split(options)
    except ValueError as error:
        raise BadInput(f"--sbatch={options}: {error}; write it as in a shell") from None


def _line(text: str) -> str:
    return " ".join(text.split())
