"""Many runs on a cluster: `python -m experiments.submit --flagfile=lrm.flags --array=seeds:0-4`

writes a folder (--out) with a batch script, submits it to Slurm as an array, one task a run, and
follows the tasks to their end. Tasks are warned before their time is over, requeue themselves and
go on from their last checkpoints. --flagfile may be repeated, or be a pattern in quotes: all flag
files × all seeds. Flags of experiments.train beside them hold for all runs.

The same command follows a submission that is there already and never submits a task twice; with
--again it submits those anew that came to a bad end, to go on from their last checkpoints. Leaving
it by Ctrl-C does not end the jobs. --local needs no Slurm: the runs are processes of this machine,
which end with this one and go on by the same command.

Exit codes: 0 all runs have finished, 1 some failed, 2 unusable input, 3 some diverged and none
failed, 130 when interrupted.
"""

from __future__ import annotations

import dataclasses
import os
import shlex
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from absl import app, flags
from rich.console import Console

from cbdybw.clusters.guard import guard
from cbdybw.errors import BadInput
from cbdybw.learning.workloads import needs_data
from experiments import arrays, slurm, train, watching
from experiments.arrays import Task
from experiments.local import Local
from experiments.settings import Settings, define_flags, parse_flags
from experiments.slurm import Jobs
from experiments.submission import Submission
from experiments.watching import Seen, Silent

FLAGS = flags.FLAGS
_files: list[str] = []  # what --flagfile names


def main(argv: list[str]) -> int:
    """The binary."""
    del argv
    for ending in (signal.SIGINT, signal.SIGTERM):  # a shell may have had us ignore SIGINT
        signal.signal(ending, _interrupt)
    console = Console(highlight=False)
    with guard():
        submission = _submission()
        if FLAGS.dry_run:
            _explain(submission)
            return 0
        try:
            seen = _run_here(submission, console) if FLAGS.local else _on_slurm(submission, console)
        except KeyboardInterrupt:
            _say(_left(submission))
            return 130
    return _report(submission, seen)


def _submission() -> Submission:
    given = {
        field.name: FLAGS[field.name].value
        for field in dataclasses.fields(Settings)
        if FLAGS[field.name].present
    }
    if not all(_files) or not _files:
        raise BadInput("--flagfile: names nothing; give a file with a flag on each line")
    paths = arrays.found(_files)
    name = paths[0].stem if len(paths) == 1 else paths[0].absolute().parent.name
    out = Path(os.path.abspath(FLAGS.out or Path("runs", name)))
    return Submission(out, arrays.tasks(paths, FLAGS.array, given, out))


def _explain(submission: Submission) -> None:
    for task in submission.tasks:
        print(f"# task {task.number}: {task.run_dir}")
    for command in slurm.commands(submission, submission.tasks, FLAGS.sbatch):
        print(shlex.join(command.argv))
    print(f"# {submission.script}", slurm.script(submission), sep="\n", end="")


def _run_here(submission: Submission, console: Console) -> list[Seen]:
    _prepare(submission.tasks)
    submission.open(slurm.script(submission))
    if jobs := submission.jobs:
        raise BadInput(
            f"--local: the tasks are jobs of Slurm ({jobs[min(jobs)]} …); leave it out, or name "
            "another --out"
        )
    with submission.owned(), Local(submission, submission.unfinished(), FLAGS.jobs) as runner:
        return watching.follow(submission, runner, console)


def _on_slurm(submission: Submission, console: Console) -> list[Seen]:
    slurm.check()
    script = slurm.script(submission)
    if not submission.out.exists():
        _prepare(submission.tasks)
    submission.open(script)
    jobs = Jobs(submission)
    with submission.owned():
        try:
            slurm.adopt(submission)
            if due := _due(submission, jobs):
                slurm.submit(submission, due, FLAGS.sbatch)
        except Silent as silence:
            raise BadInput(f"{silence}; the same command tries again") from None
    return watching.follow(submission, jobs, console)


def _due(submission: Submission, jobs: Jobs) -> list[Task]:
    """Tasks that have to be submitted: those that never were, and with --again those that have
    come to a bad end."""
    places = jobs.places()
    return [
        task
        for task in submission.unfinished()
        if task.number not in places
        or (FLAGS.again and places[task.number].state not in (watching.WAITING, watching.RUNNING))
    ]


def _prepare(tasks: Sequence[Task]) -> None:
    """Make the data sets here, once: nodes may have no network, and would all make them."""
    done = set()
    for settings in (task.settings for task in tasks):
        source = settings.dataset, settings.data_dir, settings.raw_dir, settings.pca
        if needs_data(settings.workload) and source not in done:
            done.add(source)
            train.prepare_data(settings, _say)


def _left(submission: Submission) -> str:
    if FLAGS.local:
        return "interrupted: the runs have ended; the same command goes on from their checkpoints"
    jobs = sorted({job.partition("_")[0] for job in submission.jobs.values()}, key=int)
    return (
        "the jobs go on: the same command looks at them again, and scancel "
        f"{' '.join(jobs)} ends them"
    )


def _report(submission: Submission, seen: Sequence[Seen]) -> int:
    print(
        f"{submission.out / 'runs'}: a folder a run, with manifest.json, metrics.jsonl, result.npz"
    )
    states = [each.state for each in seen]
    failed = [each for each in seen if each.state not in ("finished", "diverged")]
    for each in failed:
        log = submission.log(each.task, each.place.job)
        _say(f"{each.task.name}: {each.state}: {each.why}; its log is {log}")
    if failed:
        again = "the same command" if FLAGS.local else "the same command with --again"
        _say(f"{len(failed)} of {len(seen)} runs failed: mend that, then {again} goes on with them")
        return 1
    return 3 if "diverged" in states else 0


def _interrupt(signum: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _parse(argv: list[str]) -> list[str]:
    with guard():
        rest, words = [], iter(argv)
        for word in words:
            name, equals, value = word.partition("=")
            if name in ("--flagfile", "-flagfile"):  # absl would make one set of flags of all
                _files.append(value if equals else next(words, ""))
            else:
                rest.append("--dry_run" if word == "--dry-run" else word)
        return parse_flags(rest)


if __name__ == "__main__":
    define_flags()
    flags.adopt_module_key_flags(sys.modules[define_flags.__module__])  # --help lists them
    flags.DEFINE_string("array", "", "seeds:0-4 or seeds:0,3,7; empty: each flag file's own seed")
    flags.DEFINE_string("out", "", "folder of the submission; empty: runs/NAME-of-flag-file")
    flags.DEFINE_string("sbatch", "", "options of sbatch, such as '--time=2:00:00 --partition=cpu'")
    flags.DEFINE_bool("dry_run", False, "print what would be written and submitted, and do nothing")
    flags.DEFINE_bool("again", False, "submit tasks anew that came to a bad end")
    flags.DEFINE_bool("local", False, "run the tasks here, without Slurm")
    flags.DEFINE_integer("jobs", 1, "tasks at once, with --local", lower_bound=1)
    app.run(main, flags_parser=_parse)
