"""Where an algorithm runs: `virtual` (one process, virtual clock) or `mpi` (one rank, one worker)."""
