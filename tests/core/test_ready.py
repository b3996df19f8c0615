"""Waiting messages as runs (Q15, Q21), against a plain list."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remuda.core.queues.ready import NEVER, ReadyList

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["append", "append", "head", "newest", "remove", "expire"]),
        st.integers(0, 60),
        st.integers(1, 5),
        st.sampled_from([NEVER, NEVER, 10, 20, 30]),
    ),
    max_size=40,
)


def flat(ready: ReadyList) -> list[tuple[int, int]]:
    return [(offset, deadline) for first, count, deadline in ready.runs() for offset in range(first, first + count)]


@pytest.mark.source
@settings(max_examples=300, derandomize=True, deadline=None)
@given(STEPS, st.sampled_from([3, 6, 3 * 2048]))
def test_a_ready_list_is_a_list_with_less_memory(steps: list[tuple[str, int, int, int]], chunk: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("remuda.core.queues.ready._CHUNK", chunk)
        ready, plain, free = ReadyList(), list[tuple[int, int]](), 0
        for step, number, count, deadline in steps:
            if step == "append":
                free += number % 3 == 0
                ready.append(free, count, deadline)
                plain += [(offset, deadline) for offset in range(free, free + count)]
                free += count
            elif step == "head":
                assert [run[:1] for run in ready.take(count)][:1] == [(entry[0],) for entry in plain[:1]]
                plain = plain[count:]
            elif step == "newest":
                newest = ready.peek_newest(count)
                assert [first for first, _, _ in newest] == [offset for offset, _ in plain[::-1][:count]]
                for first, size, _ in newest:
                    ready.remove(first, size)
                plain = plain[: max(len(plain) - count, 0)]
            elif step == "remove":
                there = [entry for entry in plain if number <= entry[0] < number + count]
                gone = ready.remove(number, count)
                assert sum(size for _, size, _ in gone) == len(there)
                plain = [entry for entry in plain if entry not in there]
            else:
                gone = ready.expire(deadline if deadline != NEVER else 0)
                now = deadline if deadline != NEVER else 0
                assert sum(size for _, size, _ in gone) == sum(1 for _, limit in plain if limit <= now)
                plain = [entry for entry in plain if entry[1] > now]
            assert flat(ready) == plain
            assert ready.size == len(plain)
            assert ready.soonest == min((limit for _, limit in plain), default=NEVER)
            assert sum(size for _, size, _ in ready.overlap(number, count)) == sum(
                1 for offset, _ in plain if number <= offset < number + count
            )


def test_q21_a_million_messages_in_batches_are_one_run() -> None:
    ready = ReadyList()
    for batch in range(1000):
        ready.append(batch * 1000, 1000)
    assert list(ready.runs()) == [(0, 1_000_000, NEVER)]


def test_q21_messages_that_stand_alone_cost_24_bytes() -> None:
    ready = ReadyList()
    for offset in range(0, 20_000, 2):
        ready.append(offset, 1)
    assert sum(len(chunk.columns()) for chunk in ready.freeze()) == 24 * 10_000
