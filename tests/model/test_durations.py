"""Lengths of time as people write them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remuda.model.errors import InvalidOption
from remuda.model.values.durations import DAY, HOUR, MILLISECOND, MINUTE, SECOND, micros, text


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (0, 0), (15, 15 * SECOND), (0.25, 250 * MILLISECOND), ("15", 15 * SECOND), ("250ms", 250 * MILLISECOND),
        ("30s", 30 * SECOND), ("5m", 5 * MINUTE), ("1.5h", 90 * MINUTE), ("1d", DAY), ("7us", 7), (" 4 h ", 4 * HOUR),
        (timedelta(minutes=2), 2 * MINUTE),
    ],
)  # fmt: skip
def test_units_and_bare_numbers(written: Any, meant: int) -> None:
    assert micros(written) == meant


def test_b4_a_bare_number_counts_in_the_unit_asked_for() -> None:
    assert micros(10000, MILLISECOND) == micros("10000", MILLISECOND) == 10 * SECOND
    assert micros("10s", MILLISECOND) == 10 * SECOND


@pytest.mark.parametrize(
    "written",
    ["", "soon", "5 weeks", "-1s", "1e3", -1, -0.5, timedelta(seconds=-1), True, None, [1], float("nan"), float("inf")],
)
def test_what_is_no_length_of_time_is_refused(written: Any) -> None:
    with pytest.raises(InvalidOption):
        micros(written)


def test_minus_infinity_is_refused_too() -> None:
    with pytest.raises(InvalidOption):
        micros(float("-inf"))


@settings(derandomize=True, deadline=None)
@given(st.integers(0, 10**15))
def test_text_is_read_back_as_it_was(duration: int) -> None:
    assert micros(text(duration)) == duration


@pytest.mark.parametrize("value", ["9" * 400, "9" * 400 + "d", 10**400, 1e308, timedelta.max])
def test_what_is_beyond_all_bounds_is_too_long(value: Any) -> None:
    with pytest.raises(InvalidOption, match="too long"):
        micros(value)
