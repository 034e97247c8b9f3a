"""The invariants of the consensus family in every iteration, on 2, 4 and 6 real ranks."""

import pickle
import random
from itertools import chain

import pytest

from tests.invariants import check_agreement, check_averages, check_epochs
from tests.mpirun import start

pytestmark = pytest.mark.mpi


@pytest.mark.parametrize("ranks", [2, 4, 6])
def test_every_executed_matrix_is_doubly_stochastic_and_every_epoch_connected(ranks, tmp_path):
    seed, out = random.randrange(2**20), tmp_path / "found"
    run = start(ranks, "consensus.py", str(seed), str(out))
    print(f"consensus.py {seed} on {ranks} ranks")  # shown when the test fails
    assert run.returncode == 0, run.stderr
    with open(out, "rb") as file:
        cells = pickle.load(file)
    for (algorithm, policy, rule, order), neighbours, candidates, parts in cells:
        averages, skipped, sent, steps, logs, cuts = zip(*parts, strict=True)
        averages, skipped = list(chain(*averages)), list(chain(*skipped))
        vectors = keyed_by_rank(sent), keyed_by_rank(steps)
        edges = check_averages(ranks, neighbours, averages, *vectors)
        took_part = {(average.k, average.j) for average in averages}
        assert len(took_part) + len(skipped) == 40 * ranks, (algorithm, policy, order)
        assert not took_part & set(skipped)
        if algorithm == "cb_full":
            assert not skipped
            assert len(edges) == 40 * sum(map(len, neighbours)) / 2
        elif algorithm == "cb_static":
            assert len({k for k, _, _ in edges}) >= 20, policy
        else:
            complete = check_epochs(ranks, candidates, rule, edges, logs)
            assert complete >= 30 // (ranks - 1) - 1, algorithm
            for k in (10, 20, 30):
                check_agreement([cut[k] for cut in cuts])


def keyed_by_rank(parts):
    """Of each rank k → vector; (k, rank) → vector."""
    return {(k, rank): v for rank, part in enumerate(parts) for k, v in part.items()}
