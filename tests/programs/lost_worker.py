"""A run of `experiments.train` in which worker 2 is killed at its 30th step; its flags follow.

mpirun -n WORKERS+1 python tests/programs/lost_worker.py --name=value …
"""

import json
import os
import signal
import sys

from absl import flags

from cbdybw.clusters.guard import guard
from cbdybw.learning.quadratic import Quadratic
from experiments import settings, train

draw = Quadratic.batch


def draw_or_die(self, rank, index, size=None):
    if (rank, index) == (2, 30):
        os.kill(os.getpid(), signal.SIGKILL)
    return draw(self, rank, index, size)


with guard():
    Quadratic.batch = draw_or_die
    values = flags.FlagValues()
    settings.define_flags(values)
    # The last argument is the mark that the test finds its processes by.
    settings.parse_flags(sys.argv[:-1], values)
    result = train.run(settings.from_flags(values), log=print)
    if result:
        print(json.dumps(result))
