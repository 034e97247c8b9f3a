"""The tests of all that writes to shared folders, once more, on NFS.

Each client runs its share of them by itself, in folders on the mount.
"""

import re
import sys

import pytest

from tests.cluster.nfs import RUNS

pytest_plugins = "tests.cluster.nfs_fixtures"

SHARES = (
    ("tests/test_storage.py", "tests/test_ownership.py", "tests/test_run_directory.py"),
    ("tests/test_scar_log.py", "tests/test_trace.py"),
    ("tests/test_data_prep.py",),
)
LEFT_OUT = {
    # 200 forks and kills take minutes in User-Mode Linux, mostly in its own page tables. That who
    # is killed leaves what was reported as saved is seen in test_nfs_restart.py.
    "tests/test_scar_log.py::test_after_a_kill_at_any_moment_all_that_was_durable_is_there",
    # Nothing is written by them, and each of their processes takes seconds to import.
    "tests/test_data_prep.py::test_a_bad_flag_ends_the_binary_with_one_line_and_exit_code_2",
}
PASSED = re.compile(r"(\d+) passed")
SECONDS = 300


@pytest.fixture
def no_memory(share):
    """No /dev/shm for test_scar_log.py, which would be there and not where pytest is told."""
    guest = share.guests[1]
    guest.run(["umount", "/dev/shm"], timeout=30).check_returncode()
    guest.run(["rmdir", "/dev/shm"], timeout=30).check_returncode()
    yield
    guest.run(["mkdir", "/dev/shm"], timeout=30).check_returncode()
    guest.run(["mount", "-t", "tmpfs", "tmpfs", "/dev/shm"], timeout=30).check_returncode()


@pytest.mark.usefixtures("no_memory")
def test_the_tests_of_storage_pass_on_a_real_nfs_mount(share, figures):
    left_out = [f"--deselect={name}" for name in LEFT_OUT]
    started = []
    for guest, files in zip(share.guests, SHARES, strict=False):
        argv = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--verbosity=0"]
        argv += [f"--basetemp={RUNS}/pytest-{guest.name}", "-m", "not mpi", *left_out, *files]
        started.append((guest, files, guest.start(argv, HYPOTHESIS_STORAGE_DIRECTORY="/run/tmp")))
    try:
        for _, files, process in started:
            done = process.wait(SECONDS)
            assert done.returncode == 0, done.stdout[-5000:]
            names = ", ".join(file.removeprefix("tests/") for file in files)
            figures(f"NFS: {names}", f"{_passed(done.stdout)} tests pass")
    finally:
        for _, _, process in started:
            process.kill()


def _passed(said: str) -> int:
    passed = PASSED.search(said)
    assert passed, said
    return int(passed[1])
