"""Cron texts and the times that they name (B19)."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

import pytest

from remuda.bus.scheduling.cron import Cron
from remuda.bus.scheduling.schedule import CatchUp, Every, Schedule
from remuda.model.errors import InvalidOption
from remuda.model.values.durations import HOUR, MINUTE, SECOND


def micros(text: str) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * SECOND


def following(text: str, after: str, zone: str = "UTC", count: int = 1) -> list[str]:
    cron, at, found = Cron.read(text, zone), micros(after), []
    for _ in range(count):
        following = cron.next_after(at)
        assert following is not None
        at = following
        found.append(datetime.fromtimestamp(at / SECOND, UTC).strftime("%Y-%m-%d %H:%M"))
    return found


@pytest.mark.parametrize(
    ("text", "after", "expected"),
    [
        ("*/15 * * * *", "2026-01-01 00:07", "2026-01-01 00:15"),
        ("0 3 * * mon-fri", "2026-01-02 03:00", "2026-01-05 03:00"),
        ("0 0 29 2 *", "2026-01-01", "2028-02-29 00:00"),
        ("30 6 1,15 * *", "2026-01-01 06:30", "2026-01-15 06:30"),
        ("0 0 13 * fri", "2026-02-01", "2026-02-06 00:00"),
        ("0 12 * dec sun", "2026-01-01", "2026-12-06 12:00"),
        ("0 0 * * 7", "2026-01-01", "2026-01-04 00:00"),
        ("5-59/20 8 * * *", "2026-01-01 08:05", "2026-01-01 08:25"),
        ("@daily", "2026-01-01 00:00", "2026-01-02 00:00"),
    ],
)
def test_the_next_time(text: str, after: str, expected: str) -> None:
    """B19"""
    assert following(text, after) == [expected]


def test_clocks_that_are_set_forward_and_back() -> None:
    """B19: Berlin leaves out 2:30 on 29 March 2026 and has it twice on 25 October."""
    assert following("30 2 * * *", "2026-03-28 12:00", "Europe/Berlin", 2) == ["2026-03-29 01:30", "2026-03-30 00:30"]
    assert following("30 2 * * *", "2026-10-24 12:00", "Europe/Berlin", 2) == ["2026-10-25 00:30", "2026-10-26 01:30"]
    assert following("30 * * * *", "2026-10-24 23:35", "Europe/Berlin", 3) == [
        "2026-10-25 00:30", "2026-10-25 01:30", "2026-10-25 02:30",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "text",
    ["1--100000000 * * * *", "0-100000000 * * * *", "*/0 * * * *", "60 * * * *", "* * * *", "* * * * * *", "a * * * *",
     "5-1 * * * *", "* * 30 2 *", "0 0 31 4,6 *", "", "1,,2 * * * *", "*/100000 * * * *", "0" * 10_000, "-1 * * * *",
     "٣ * * * *", "1/ * * * *"],
)  # fmt: skip
def test_hostile_texts_are_refused_at_once(text: str) -> None:
    """B19"""
    began = time.process_time()
    with pytest.raises(InvalidOption):
        Cron.read(text)
    assert time.process_time() - began < 5


@pytest.mark.parametrize("wrong", [None, 5, b"* * * * *", ["*"]])
def test_only_texts_are_cron_texts(wrong: Any) -> None:
    """B19"""
    with pytest.raises(InvalidOption):
        Cron.read(wrong)


@pytest.mark.parametrize("zone", ["Mars/Olympus", "", "../etc/passwd", "UTC\0"])
def test_unknown_time_zones_are_refused(zone: str) -> None:
    """B19"""
    with pytest.raises(InvalidOption, match="time zone"):
        Cron.read("@daily", zone)


def test_intervals_lie_on_one_grid_for_all_processes() -> None:
    """B19"""
    every = Every.read("5m")
    assert every.next_after(7 * MINUTE) == 10 * MINUTE
    assert every.next_after(10 * MINUTE) == 15 * MINUTE
    with pytest.raises(InvalidOption, match="once a second"):
        Every.read("10ms")


def test_what_was_missed() -> None:
    """B19"""
    once, each, skip = (Schedule("s", "s", Every(HOUR), rule) for rule in CatchUp)
    assert once.next_after(1 * HOUR, 10 * HOUR + 1) == 11 * HOUR
    assert each.next_after(1 * HOUR, 10 * HOUR + 1) == 2 * HOUR
    assert (skip.is_missed(HOUR, HOUR + SECOND), skip.is_missed(HOUR, 3 * HOUR)) == (False, True)
    assert not once.is_missed(HOUR, 3 * HOUR)
