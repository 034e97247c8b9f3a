"""Several runs one after the other in the same processes: `python -m experiments.batch FLAGFILE…`

Each file is what `Settings.flagfile` writes, such as the flags.txt of a run folder. Six ranks start
TensorFlow once for all runs, which on two cores takes longer than many a run. Under mpirun like
`experiments.train`, whose JSON line is printed for each run; exit code 3 when one of them diverged.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from absl import app

from cbdybw.clusters.guard import guard
from cbdybw.errors import BadInput
from experiments import train
from experiments.settings import from_flagfile


def main(argv: list[str]) -> int:
    """The binary."""
    with guard():
        if not argv[1:]:
            raise BadInput("no flag file named; give the flags.txt of one run or more")
        status = 0
        for path in argv[1:]:
            try:
                settings = from_flagfile(Path(path).read_text())
            except (OSError, UnicodeDecodeError) as error:
                raise BadInput(f"{path}: {error}; give readable flag files") from None
            result = train.run(settings, log=lambda line: print(line, file=sys.stderr))
            if result is not None:
                print(json.dumps(result, allow_nan=False), flush=True)
                status = 3 if result["status"] == "diverged" else status
        return status


if __name__ == "__main__":
    app.run(main)
