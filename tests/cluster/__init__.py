"""Drills against the real thing: NFS, Slurm, several hosts. `make test-cluster`; root on Debian."""
