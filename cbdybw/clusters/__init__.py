"""Where an algorithm runs: `virtual` (a virtual clock) or `mpi` (a rank for each worker)."""
