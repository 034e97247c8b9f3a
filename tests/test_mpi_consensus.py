"""The invariants of cb-Full and cb-DyBW in every iteration, on 2, 4 and 6 real ranks."""

import pickle
import random

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
    for (algorithm, policy, rule), neighbours, connecting, parts in cells:
        averages = [average for mine, *_ in parts for average in mine]
        skipped = [skip for _, mine, *_ in parts for skip in mine]
        sent = {(k, j): v for j, part in enumerate(parts) for k, v in part[2].items()}
        edges = check_averages(ranks, neighbours, averages, sent)
        took_part = {(average.k, average.j) for average in averages}
        assert len(took_part) + len(skipped) == 40 * ranks, (algorithm, policy)
        assert not took_part & set(skipped)
        if algorithm == "cb_full":
            assert not skipped
            assert len(edges) == 40 * sum(map(len, neighbours)) / 2
        else:
            logs = [part[3] for part in parts]
            assert check_epochs(ranks, connecting, rule, edges, logs) >= 30 // (ranks - 1) - 1
            for k in (10, 20, 30):
                check_agreement([part[4][k] for part in parts])
