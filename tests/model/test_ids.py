"""M4: snowflake ids."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remuda.model.errors import InvalidOption
from remuda.model.ids import EPOCH_MS, STEP, WORKERS, Snowflakes, time_of
from remuda.model.values.durations import HOUR, MILLISECOND

NOW = (EPOCH_MS + 10**9) * 1000


def test_m4_a_batch_is_a_range_and_cheap_at_any_size() -> None:
    ids = Snowflakes(5).take(10_000_000, NOW)
    assert isinstance(ids, range)
    assert (len(ids), ids.step, ids[0] % WORKERS, ids[-1] % WORKERS) == (10_000_000, STEP, 5, 5)


def test_m4_ids_fit_in_63_bits_for_decades() -> None:
    in_sixty_years = NOW + 60 * 365 * 24 * HOUR
    assert Snowflakes(WORKERS - 1).take(1, in_sixty_years)[0] < 1 << 63


def test_m4_an_id_tells_when_it_was_made() -> None:
    assert time_of(Snowflakes(3).take(1, NOW + 999)[0]) == NOW


def test_m4_two_workers_never_meet() -> None:
    one, other = Snowflakes(1), Snowflakes(2)
    assert not set(one.take(5000, NOW)) & set(other.take(5000, NOW))


@pytest.mark.parametrize("worker", [-1, WORKERS])
def test_m4_a_worker_out_of_range_is_refused(worker: int) -> None:
    with pytest.raises(InvalidOption, match=f"0 to {WORKERS - 1}"):
        Snowflakes(worker)


def test_m4_before_the_epoch_ids_are_still_positive_and_rising() -> None:
    snowflakes = Snowflakes(1)
    first, second = snowflakes.take(1, 0)[0], snowflakes.take(1, 0)[0]
    assert 0 < first < second


@settings(max_examples=200, derandomize=True, deadline=None)
@given(st.lists(st.tuples(st.integers(-2 * HOUR, 2 * HOUR), st.integers(0, 9000)), max_size=20))
def test_m4_ids_rise_and_never_repeat_whatever_the_clock_does(steps: list[tuple[int, int]]) -> None:
    snowflakes, now, last = Snowflakes(9), NOW, -1
    for jump, count in steps:
        now += jump
        for batch in (snowflakes.take(count, now), snowflakes.take(1, now)):
            if batch:
                assert batch[0] > last
                last = batch[-1]
    assert snowflakes.last == max(last, 0)


@pytest.mark.parametrize("worker", [0, 9, 1023])
def test_m4_after_a_restart_ids_go_on_above_the_last(worker: int) -> None:
    before = Snowflakes(9).take(100, NOW)
    after = Snowflakes(worker)
    after.resume(before[-1])
    assert after.take(1, NOW - HOUR)[0] > before[-1]
    assert after.take(1, NOW - HOUR)[0] % WORKERS == worker


def test_m4_a_full_millisecond_borrows_from_the_next() -> None:
    snowflakes = Snowflakes(1)
    borrowed = snowflakes.take(5000, NOW)
    assert time_of(borrowed[-1]) == NOW + MILLISECOND
    assert snowflakes.take(1, NOW + MILLISECOND)[0] > borrowed[-1]
