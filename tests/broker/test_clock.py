"""The broker's clock tells the time of day and never goes back."""

from __future__ import annotations

import time

from remuda.broker.embedded.clock import steady_clock


def test_it_starts_with_the_time_of_day() -> None:
    assert abs(steady_clock()() - time.time_ns() // 1000) < 1_000_000


def test_it_never_goes_back() -> None:
    clock = steady_clock()
    readings = [clock() for _ in range(10_000)]
    assert readings == sorted(readings)


def test_it_goes_as_fast_as_time_does() -> None:
    clock = steady_clock()
    before_all = time.monotonic_ns()
    before = clock()
    began = time.monotonic_ns()
    time.sleep(0.02)
    ended = time.monotonic_ns()
    passed = clock() - before
    after_all = time.monotonic_ns()
    assert (ended - began) // 1000 - 5_000 <= passed <= (after_all - before_all) // 1000 + 5_000
