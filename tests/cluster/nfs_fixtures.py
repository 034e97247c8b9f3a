"""The share that all drills on NFS use one after the other: a plugin for pytest.

pytest_plugins = "tests.cluster.nfs_fixtures"
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.nfs import Share, shared

_GUESTS = 4


@pytest.fixture(scope="session")
def _share(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Share]:
    folder = tmp_path_factory.mktemp("runs")
    with shared(folder, tmp_path_factory.mktemp("nfs"), _GUESTS) as share:
        yield share


@pytest.fixture
def share(_share: Share) -> Share:
    """A server and four guests, all of them up, with the same time."""
    return _share.ready()
