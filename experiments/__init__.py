"""The binaries.

Ranks and the processes of a sweep share the machine's cores, so numpy has one thread in each: with
two on two busy cores a step of `--workload=mlr` took 30 ms instead of 2. Set before numpy loads.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
