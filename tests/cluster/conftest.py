"""Every test here is a drill: left out elsewhere, and skipped with the reason where it cannot run.

What a drill measures goes into `figures`; all of it is printed at the end.
"""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from tests.cluster import machine

_FIGURES: list[tuple[str, str]] = []


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    why = machine.unable()
    for item in items:
        if "tests/cluster/" in item.path.as_posix():
            item.add_marker(pytest.mark.cluster)
            if why:
                item.add_marker(pytest.mark.skip(reason=why))


@pytest.fixture(scope="session", autouse=True)
def ended_by_sigterm() -> None:
    """A drill that is ended, by `timeout` say, takes down what it has set up."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


@pytest.fixture(scope="session")
def figures() -> Callable[[str, str], None]:
    """`figures("a new file is seen after", "0.31 s")`: a line of the summary."""
    return lambda what, value: _FIGURES.append((what, value))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _FIGURES:
        terminalreporter.section("figures")
        width = max(len(what) for what, _ in _FIGURES)
        for what, value in _FIGURES:
            terminalreporter.write_line(f"{what:<{width}}  {value}")
