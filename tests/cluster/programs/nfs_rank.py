"""A process that writes its share of a run folder, as a rank of MPI does, without MPI.

    nfs_rank.py RANK RANKS FOLDER

What a rank waits for by messages it waits for here by files: rank 0 for the parts of a checkpoint,
the others for the whole. `part` and `record` are what should be there in the end.
"""

import sys
import time
from pathlib import Path

import numpy as np

from cbdybw.clusters.trace import Trace
from cbdybw.storage import atomic
from cbdybw.storage.run_directory import RunDirectory

CUTS = (10, 20, 30, 40)
_PATIENCE = 60.0  # seconds


def part(rank: int, k: int) -> dict[str, np.ndarray]:
    """What a rank saves before iteration k."""
    rng = np.random.default_rng([rank, k])
    return {"w": rng.normal(size=30_000).astype(np.float32), "k": np.array(k)}


def record(trace: Trace, rank: int, k: int) -> None:
    """What happens to a rank in the ten iterations before k."""
    for iteration in range(k - 10, k):
        trace.span(rank, 0, iteration, iteration, iteration + 0.5)
        trace.event(rank, iteration + 0.25, 1, iteration, (rank + 1) % 4)


def name(rank: int) -> str:
    return f"process-{rank:05d}"


def wait(there) -> None:
    """Until `there`."""
    end = time.monotonic() + _PATIENCE
    while not there():
        if time.monotonic() > end:
            sys.exit("waited in vain for the other ranks")
        time.sleep(0.01)


def main(rank: int, ranks: int, folder: Path) -> None:
    """One rank, from the first cut to the last."""
    directory, trace = RunDirectory(folder), Trace()
    if rank == 0:
        directory.create("", {"status": "running", "process": 0})
    wait((folder / "manifest.json").exists)
    for k in CUTS:
        record(trace, rank, k)
        directory.save_part(k, name(rank), part(rank, k))
        trace.flush(directory.trace, rank, k)
        checkpoint = folder / "checkpoints" / f"{k:09d}"
        if rank == 0:
            names = [checkpoint / f"{name(other)}.npz" for other in range(ranks)]
            wait(lambda names=names: all(path.exists() for path in names))
            directory.complete_checkpoint(k, {"clock": k / 2})
            directory.add_metrics({"iteration": k})
        wait((checkpoint / "complete.json").exists)
        for other in range(ranks):  # what any rank would resume from
            found = directory.load_part(k, name(other))
            if not all(np.array_equal(found[key], part(other, k)[key]) for key in ("w", "k")):
                sys.exit(f"the part of rank {other} before {k} is not what it has saved")
    atomic.write_text(folder / f"done-{rank}", "")
    if rank == 0:
        wait(lambda: all((folder / f"done-{other}").exists() for other in range(ranks)))
        directory.ended(status="finished")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
