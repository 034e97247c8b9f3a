"""Parameter servers on real ranks: everything that their invariants are about, from every rank.

mpirun -n WORKERS+SERVERS python tests/programs/servers.py SERVERS OUT
"""

import pickle
import sys

from cbdybw.algorithms import ALGORITHMS
from cbdybw.algorithms.plan import Plan
from cbdybw.clusters import delays
from cbdybw.clusters.guard import guard
from cbdybw.clusters.mpi import MpiCluster
from cbdybw.clusters.trace import Trace
from tests.simulation_server import Ledger, Story, eta, first_states

CELLS = [
    ("bsp", "carry"),
    ("asp", "carry"),
    ("ssp", "carry"),
    ("ps_backup", "carry"),
    ("ps_backup", "drop"),
    ("dbw", "carry"),
    ("dbw", "drop"),
]
ITERATIONS, CUT_EVERY, SEED = 30, 10, 7


def plan_of(workers: int, policy: str) -> Plan:
    return Plan(
        neighbours=[()] * workers,
        connecting=(),
        diameter=0,
        eta=eta,
        iterations=ITERATIONS,
        policy=policy,
        checkpoint_every=CUT_EVERY,
        backup_workers=1,
        staleness=2,
    )


def problem_of(workers: int, servers: int) -> Ledger:
    return Ledger(workers, servers, workers * ITERATIONS + 1, SEED)


class Cuts:
    """This rank's states at consistent cuts."""

    def __init__(self):
        self.states = {}

    def save(self, rank, state):
        self.states[state.k] = state

    def commit(self, cluster):
        """The cut is complete."""


def train(algorithm: str, policy: str, servers: int, first=None):
    """A run, or the rest of one from this rank's state `first`: cluster, story, cuts, state."""
    from mpi4py import MPI

    workers = MPI.COMM_WORLD.size - servers
    plan, problem = plan_of(workers, policy), problem_of(workers, servers)
    story, cuts = Story(), Cuts()
    cluster = MpiCluster(
        delay=delays.parse("exponential:mean=0.002", workers, SEED),
        dim=problem.dim,
        neighbours=plan.neighbours,
        seed=SEED,
        trace=Trace(),
        recorder=story,
        servers=servers,
        saver=cuts,
    )

    def start(worker):
        story.listen(worker)
        state = first or first_states(problem, workers, servers)[worker.rank]
        return ALGORITHMS[algorithm].run(worker, problem, plan, state)

    return cluster, story, cuts.states, cluster.run(start)[cluster.rank]


def main(servers: int, out: str) -> None:
    found = []
    for algorithm, policy in CELLS:
        cluster, story, cuts, state = train(algorithm, policy, servers)
        *_, resumed = train(algorithm, policy, servers, first=cuts[CUT_EVERY])
        parts = cluster.gather((story, cuts, state, resumed))
        if cluster.is_root:
            found.append((algorithm, policy, parts))
    if found:
        with open(out, "wb") as file:
            pickle.dump(found, file)


if __name__ == "__main__":
    with guard():
        main(int(sys.argv[1]), sys.argv[2])
