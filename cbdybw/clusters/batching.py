"""Calls in flight on the virtual clock, evaluated together.

A computation begins and ends at virtual times, and its arguments are known when it begins, its
result is needed when it ends. So nothing is evaluated before some result is needed; then all calls
in flight are, in one call, where that is possible: where the function is a method `name` of an
object that has a method `name_many` too, such as `Problem.gradient` and `Problem.gradient_many`.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any

_Many = Callable[[list[tuple]], list[Any]]


class Call:
    """`fn(*args)`, evaluated when it is first called, with all others that are in flight then."""

    __slots__ = ("_args", "_fn", "_in_flight", "_many", "_result")

    def __init__(self, fn: Callable[..., Any], args: tuple, many: _Many, in_flight: dict):
        self._fn, self._args = fn, args
        self._many, self._in_flight = many, in_flight
        in_flight[self] = None

    def __call__(self) -> Any:
        if self in self._in_flight:
            self._evaluate_all()
        return self._result

    def cancel(self) -> None:
        """Its result will not be needed."""
        self._in_flight.pop(self, None)

    def _evaluate_all(self) -> None:
        calls = list(self._in_flight)
        self._in_flight.clear()
        if len(calls) == 1:
            self._result = self._fn(*self._args)
        else:
            results = self._many([call._args for call in calls])
            for call, result in zip(calls, results, strict=True):
                call._result = result
        for call in calls:
            del call._args  # a result may wait long: minibatch and estimate need not


class InFlight:
    """The calls of one cluster whose results nobody has needed yet.

    Which calls are evaluated together follows from the order of events alone, so the same seed
    gives the same numbers. At a consistent cut nothing is in flight: a resumed run forms the same
    groups as the uninterrupted one.
    """

    def __init__(self) -> None:
        self._calls: dict[_Many, dict[Call, None]] = {}  # dicts, for they keep the order

    def begin(self, fn: Callable[..., Any], args: tuple) -> Call | None:
        """The call as one that waits for company; None when `fn` is not one for many."""
        if not isinstance(fn, MethodType):
            return None
        many = getattr(fn.__self__, f"{fn.__name__}_many", None)
        if many is None:
            return None
        return Call(fn, args, many, self._calls.setdefault(many, {}))
