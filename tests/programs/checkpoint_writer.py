"""Writers of a log that are there to be killed.

For each line "FOLDER FIRST SEED" on stdin a child process begins: it prints its id, and writes
blocks drawn at random to the log in FOLDER from iteration FIRST on, all of them in iteration 0, as
values by which the iteration is known. When a save is durable it prints "K MEMBER …". When the
child is dead, "dead" is printed.
"""

import os
import sys

import numpy as np

from cbdybw.scar.blocks import Blocks
from cbdybw.scar.log import Log

BLOCKS = Blocks([1, 300, 7, 50, 2, 120, 33, 4, 90, 11])


def values(members: np.ndarray, k: int) -> np.ndarray:
    """What is saved of `members` in iteration k: each value says its block and the iteration."""
    return np.repeat(members + 1000 * k, BLOCKS.sizes[members]).astype(np.float32)


def write(folder: str, first: int, seed: int) -> None:
    log = Log(folder, BLOCKS, "killed")
    rng = np.random.default_rng(seed)
    k = first
    while True:
        if k == 0:
            members = np.arange(len(BLOCKS))
        else:
            members = np.sort(rng.choice(len(BLOCKS), rng.integers(1, 5), replace=False))
        line = " ".join(map(str, (k, *members))) + "\n"
        log.write(k, members, values(members, k), lambda line=line: os.write(1, line.encode()))
        k += 1


def main() -> None:
    for line in sys.stdin:
        folder, first, seed = line.split()
        child = os.fork()
        if not child:
            try:
                os.write(1, f"{os.getpid()}\n".encode())
                write(folder, int(first), int(seed))
            finally:
                os._exit(1)
        os.waitpid(child, 0)
        os.write(1, b"dead\n")


if __name__ == "__main__":
    main()
