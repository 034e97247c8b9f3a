"""A recorded run in another program's format: `python -m experiments.trace --export=chrome RUN`

RUN is a run folder. The file (RUN/trace.json, or --out) opens in ui.perfetto.dev and in
chrome://tracing. Exit code 2 for unusable input.
"""

from __future__ import annotations

from pathlib import Path

from absl import app, flags

from cbdybw.clusters import trace
from cbdybw.clusters.guard import guard
from cbdybw.errors import BadInput
from cbdybw.storage import atomic

EXPORTS = {"chrome": trace.chrome}


def export(kind: str, run: str, out: str) -> Path:
    """Write the trace of the folder `run`; where it is. `out` empty: in that folder."""
    if kind not in EXPORTS:
        raise BadInput(f"--export={kind}: not known; use {' or '.join(EXPORTS)}")
    path = Path(out) if out else Path(run) / "trace.json"
    content = EXPORTS[kind](run)
    try:
        atomic.write_json(path, content)
    except OSError as error:
        raise BadInput(f"--out={path}: {error.strerror}; name another file") from None
    return path


def _parse(argv: list[str]) -> list[str]:
    with guard():
        try:
            rest = flags.FLAGS(argv)
        except flags.Error as error:
            raise BadInput(" ".join(str(error).split())) from None
        if len(rest) != 2:
            raise BadInput(
                f"{len(rest) - 1} runs named: give one folder, as in --export=chrome RUN"
            )
        return rest


def main(argv: list[str]) -> None:
    """The binary."""
    with guard():
        print(export(flags.FLAGS["export"].value, argv[1], flags.FLAGS["out"].value))


if __name__ == "__main__":
    flags.DEFINE_string("export", "chrome", f"format: {', '.join(EXPORTS)}")
    flags.DEFINE_string("out", "", "file to write; empty: trace.json in the run folder")
    app.run(main, flags_parser=_parse)
