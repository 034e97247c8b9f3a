"""How MPI ranks are started: the command line and the environment of mpirun."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from cbdybw.errors import BadInput

_RANK_AND_SIZE = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),  # Open MPI's mpirun
    ("PMI_RANK", "PMI_SIZE"),  # MPICH, Intel MPI
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),  # srun
)


def placement() -> tuple[int, int] | None:
    """(rank, number of ranks) of this process as its launcher says, without initialising MPI;
    None when no launcher has started it."""
    for rank, size in _RANK_AND_SIZE:
        if rank in os.environ and size in os.environ:
            return int(os.environ[rank]), int(os.environ[size])
    return None


def is_root() -> bool:
    """Whether this process is the one that speaks and writes for all."""
    return (placement() or (0, 1))[0] == 0


def forget() -> None:
    """From now on this process belongs to no launcher, and neither does what it starts."""
    for variable in (name for pair in _RANK_AND_SIZE for name in pair):
        os.environ.pop(variable, None)


def mpirun(
    ranks: int, command: Sequence[str], ulfm: bool = True
) -> tuple[list[str], dict[str, str]]:
    """argv and environment that run `command` on `ranks` ranks of this machine.

    They talk through shared memory, so that no rank listens on any network; OMPI_MCA_btl and
    OMPI_MCA_btl_tcp_if_include in the environment choose otherwise. What mpirun itself listens on
    besides loopback, for daemons on other hosts, Open MPI 5.0 binds to every interface whatever it
    is told.

    `ulfm` lets the ranks outlive the death of one. Raises BadInput when there is no mpirun.
    """
    argv = [_mpirun(), *(["--with-ft", "ulfm"] if ulfm else [])]
    argv += ["--oversubscribe", "--bind-to", "none"]  # bound, two ranks would share one core
    argv += ["--prtemca", "ras", "^slurm"]  # within a job of several nodes, too, on this machine
    argv += ["--mca", "osc", "^ucx"]  # unused; warns on machines without such a network
    argv += ["-n", str(ranks), *command]
    return argv, _environment()


def _mpirun() -> str:
    beside = Path(sys.executable).parent / "mpirun"  # the wheel of requirements.txt
    found = str(beside) if beside.exists() else shutil.which("mpirun")
    if found is None:
        raise BadInput(f"mpirun: neither {beside} nor on PATH; pip install -r requirements.txt")
    return found


def _environment() -> dict[str, str]:
    added = {
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "OMP_NUM_THREADS": "1",
        "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",  # vectors in huge pages: copied twice as fast
    }
    if os.geteuid() == 0:  # Open MPI asks root twice, as in a container
        added |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    on_one_machine = {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,sm"}
    return on_one_machine | os.environ | added
