"""How a scheduler finds the pace of the workers: the searches of ADSP, ADSP+, ADSP++ and ADACOMM.

A search is a generator. It yields an `Order`, which holds from then on, and is sent a `Sight` of
the global loss when the order's seconds are over. It sees nothing else and keeps no other state, so
the sights alone bring a search back to where it was: a resumed run sends them again. Source: Hu,
Wang and Chen (ADSP, AAAI 2020), section on the scheduler, and its authors' code where said.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable
from itertools import product
from typing import NamedTuple

from cbdybw.algorithms.plan import Pace
from cbdybw.algorithms.reward import Fit, fit, reward

RISE = 0.3  # a global loss higher by this share of the one before makes ADSP search again [code]
RATES = (1, 2, 3, 4, 5, 6, 8, 10)  # commits in a period that ADSP+ tries [choice]
JOINT_RATES = (1, 2, 4, 8)  # the same of ADSP++ [choice]
MOMENTA = (0.0, 0.3, 0.6, 0.9)  # of ADSP++ [code]
SMALL_MOMENTA = (0.1, 0.2)  # tried where no momentum is best [code]
DIVISORS = (1, 10)  # of the learning rate, in ADSP++ [code]
TAUS = (1, 5, 10, 20, 40, 60, 80, 100)  # local steps that ADACOMM tries [code]


class Order(NamedTuple):
    """What holds from now on.

    Attributes:
        seconds: until the search wants to see the loss.
        rate: commits in a period that every worker makes; 0: it goes on as before.
        span: seconds for which the rate is announced; 0: until the search sees the loss.
        tau: local steps in an iteration.
        momentum: of the server.
        divisor: the workers' learning rate is η'/divisor.
        restart: begin from the first parameters again.
        blind: the search does not ask for the loss, only to be woken.
    """

    seconds: float
    rate: int = 0
    span: float = 0.0
    tau: int = 1
    momentum: float = 0.0
    divisor: int = 1
    restart: bool = False
    blind: bool = False


class Sight(NamedTuple):
    """The global loss at a time."""

    time: float
    loss: float


class Probe(NamedTuple):
    """What a probe came to: the order that it tried, what it saw, and how that was judged.

    `reward`: ADSP's for the loss at the window's end, with the curve that it is taken from; for the
    other searches the fall of the loss.
    """

    order: Order
    sights: tuple[Sight, ...]
    reward: float
    fit: Fit | None = None


Search = Generator[Order, Sight, None]


def nothing(pace: Pace, journal: list[Probe]) -> Search:
    """There is nothing to look for."""
    yield Order(math.inf)


def fixed_rate(pace: Pace, journal: list[Probe]) -> Search:
    """ΔC = `pace.rate` commits in every period: nothing is searched for."""
    yield Order(0, blind=True)
    while True:
        yield Order(pace.period, pace.rate, momentum=pace.momentum, blind=True)


def adsp(pace: Pace, journal: list[Probe]) -> Search:
    """The commit rate is decided in each epoch, with the model that is being trained.

    Between two searches C_target grows by the rate in every period. An epoch also ends when the
    global loss has risen by 30 % since the check point before [code]. The search goes up only, from
    1 at the start and from the last rate later [code].
    """
    sight = yield Order(0)
    rate = 1
    while True:
        rate, sight = yield from decide_commit_rate(pace, journal, rate, sight)
        end, before = sight.time + pace.epoch, math.inf
        while sight.time < end and not has_risen(before, sight.loss):
            before = sight.loss
            sight = yield Order(pace.period, rate, momentum=pace.momentum)


def has_risen(before: float, loss: float) -> bool:
    """By 30 % or more, of a loss that may be negative; never where one of the two is nan."""
    rise = loss - before
    return rise > 0 and rise >= RISE * abs(before)


def decide_commit_rate(
    pace: Pace, journal: list[Probe], rate: int, sight: Sight
) -> Generator[Order, Sight, tuple[int, Sight]]:
    """DecideCommitRate: as long as one commit more in a period has a larger reward, take it.

    Both rewards are about the same loss ℓ_end, that at the end of the later window [choice]: the
    later rate is better when the curve of the earlier one would have come there later. With an
    ℓ_end far below, the rewards are extrapolations, and right as often as wrong
    (`experiments.adsp.noise`). A curve that has no reward is worse than any that has one [code].
    """
    curve, sight = yield from online_evaluate(pace, journal, rate, sight)
    while True:
        next_curve, sight = yield from online_evaluate(pace, journal, rate + 1, sight)
        r1, r2 = reward(curve, sight.loss), reward(next_curve, sight.loss)
        if math.isnan(r2) or r2 <= r1:
            return rate, sight
        rate, curve = rate + 1, next_curve


def online_evaluate(
    pace: Pace, journal: list[Probe], rate: int, sight: Sight
) -> Generator[Order, Sight, tuple[Fit, Sight]]:
    """OnlineEvaluate: the loss curve of a commit rate in one window of training.

    The losses of the window, `pace.points` of them from its start to its end, are fitted by
    ℓ(t) = 1/(a1² t + a2) + a3. The reward for ℓ_end is 1 over the time at which the curve comes
    there; times count from the start of the run, so that windows can be compared.
    """
    sights = [sight]
    step = pace.window / (pace.points - 1)
    order = Order(step, rate, span=pace.window, momentum=pace.momentum)
    for _ in range(pace.points - 1):
        sights.append((yield order))
        order = order._replace(rate=0)
    curve, end = fit(*zip(*sights, strict=True)), sights[-1]
    tried = Order(pace.window, rate, momentum=pace.momentum)
    journal.append(Probe(tried, tuple(sights), reward(curve, end.loss), curve))
    return curve, end


def adsp_plus(pace: Pace, journal: list[Probe]) -> Search:
    """ADSP+: the commit rate is found before training; then it stays."""
    first = yield Order(0)
    tried = [Order(pace.window, rate, momentum=pace.momentum) for rate in RATES]
    best = yield from offline(tried, first, journal)
    yield from forever(best, pace.period)


def adsp_plus_plus(pace: Pace, journal: list[Probe]) -> Search:
    """ADSP++: commit rate, momentum and learning rate are found together before training."""
    first = yield Order(0)

    def all_of(momenta: Iterable[float]) -> list[Order]:
        return [
            Order(pace.window, rate, momentum=momentum, divisor=divisor)
            for momentum, divisor, rate in product(momenta, DIVISORS, JOINT_RATES)
        ]

    best = yield from offline(all_of(MOMENTA), first, journal)
    if best.momentum == 0:
        best = yield from offline(all_of(SMALL_MOMENTA), first, journal)
    yield from forever(best, pace.period)


def adacomm(pace: Pace, journal: list[Probe]) -> Search:
    """ADACOMM: τ0 is found before training; then τ falls with the loss, in every period."""
    first = yield Order(0)
    best = yield from offline([Order(pace.window, tau=tau) for tau in TAUS], first, journal)
    tau, order = best.tau, best._replace(seconds=pace.period, restart=True)
    while True:
        sight = yield order
        tau = next_tau(tau, best.tau, first.loss, sight.loss)
        order = Order(pace.period, tau=tau)


def next_tau(tau: int, tau0: int, f0: float, f: float) -> int:
    """τ = ⌈√(F/F0) τ0⌉ if √(F/F0) τ0 < τ, else ⌈τ/2⌉ [code]. F0 is the loss at the start; where
    it is not above 0, or F is nan, there is no such root, and τ is halved [choice]."""
    candidate = math.sqrt(max(f / f0, 0.0)) * tau0 if f0 > 0 else math.nan
    return max(1, math.ceil(candidate)) if candidate < tau else math.ceil(tau / 2)


def offline(
    tried: Iterable[Order], first: Sight, journal: list[Probe]
) -> Generator[Order, Sight, Order]:
    """The order whose probe ends at the lowest loss, each from the first parameters; the best of
    all in the journal, and of equal ones the earliest."""
    for order in tried:
        sight = yield order._replace(restart=True)
        journal.append(Probe(order, (first, sight), first.loss - sight.loss))
    comparable = [probe for probe in journal if not math.isnan(probe.reward)]
    return max(comparable or journal[:1], key=lambda probe: probe.reward).order


def forever(order: Order, period: float) -> Search:
    """Train from the first parameters as `order` says."""
    order = order._replace(seconds=period)
    yield order._replace(restart=True)
    while True:
        yield order
