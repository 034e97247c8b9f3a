"""The doctor's findings, for people and for programs."""

from __future__ import annotations

import dataclasses
import json
import textwrap
import time
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text

from nfs_setup.findings import FAIL, OK, WARN, Finding, worst

_COLUMNS = 80
_COLOURS = {OK: "green", WARN: "yellow", FAIL: "bold red"}
_SUMMARY = {
    OK: "fit for runs",
    WARN: "fit for runs, with warnings",
    FAIL: "not fit for runs",
}


def _print(console: Console, finding: Finding, width: int) -> None:
    """`width`: columns for what was looked at."""
    head = f"{finding.verdict:<4}  {finding.check:<{width}}  "
    texts = [finding.says, f"→ {finding.mend}"] if finding.mend else [finding.says]
    room = max(_COLUMNS - len(head), 30)  # a host's name may be long
    lines = [line for text in texts for line in textwrap.wrap(text, room)]
    text = Text(head + f"\n{' ' * len(head)}".join(lines))
    text.stylize(_COLOURS[finding.verdict], 0, len(finding.verdict))
    console.print(text, soft_wrap=True)


def report(path: str, findings: Iterator[Finding], as_json: bool, hosts: Sequence[str] = ()) -> str:
    """Print `findings` as they come, or as one object; the verdict on all of them."""
    start, console, all_of_them = time.monotonic(), Console(highlight=False), []
    width = max(len("permissions"), *(len(f"mount {host}") for host in hosts), 0)
    for finding in findings:
        all_of_them.append(finding)
        if not as_json:
            _print(console, finding, width)
    verdict, seconds = worst(all_of_them), time.monotonic() - start
    if as_json:
        lines = [dataclasses.asdict(finding) for finding in all_of_them]
        about = {"path": path, "verdict": verdict, "seconds": round(seconds, 2)}
        print(json.dumps({**about, "findings": lines}))
    else:
        line = f"{path}: {_SUMMARY[verdict]} (looked for {seconds:.1f} s)"
        console.print(Text(line, _COLOURS[verdict]), soft_wrap=True)
    return verdict
