"""cbdybw: cb-DyBW, ADSP and SCAR, each written once and run on MPI or on a virtual clock."""

__version__ = "0.1.0"
