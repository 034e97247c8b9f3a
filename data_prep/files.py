"""A file's content with the name to blame it by."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class File(NamedTuple):
    """A whole file in memory; `name` is how an error message speaks of it."""

    name: str
    data: bytes


Find = Callable[[str], File]
"""Looks up a file of a data set by its published name; BadInput when it is not there."""
