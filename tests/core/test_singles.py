"""F1: a key of which one message waits costs a few numbers, and is served as any other."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable

import pytest

from remuda.core.flow.keyed import KeyedMessages
from remuda.core.flow.keys import KeyColumn, number_of
from remuda.core.flow.rules import KeyRules
from remuda.core.flow.singles import SingleMessages
from remuda.model.queues.options import QueueOptions
from remuda.model.settlement import Outcome
from tests.core.kit import Bench, offsets


def _waiting(count: int, each: int = 1) -> KeyedMessages:
    keys = KeyColumn()
    ready = KeyedMessages(keys, KeyRules(QueueOptions.parse(ordered=True)))
    for offset in range(count * each):
        keys.put(offset, number_of(str(offset % count)))
        ready.add(0, False, offset, 1)
    return ready


@pytest.mark.parametrize("spread", [lambda number: number_of(str(number)), lambda number: 2 + 256 * number])
def test_messages_are_found_by_key_and_leave_in_order(spread: Callable[[int], int]) -> None:
    """The line and its tables hold what a dict would, also for keys whose hashes are close to each other."""
    chance = random.Random(3)
    keys = KeyColumn()
    singles, expected, offset = SingleMessages(keys), dict[int, tuple[int, float]](), 0
    numbers = [spread(number) for number in range(80)]
    for step in range(4000):
        number = chance.choice(numbers)
        match chance.randrange(4 if step % 1000 < 500 else 3):
            case 0 | 3 if number not in expected:
                offset += 1
                assert singles.takes(offset)
                keys.put(offset, number)
                singles.append(number, offset, step / 2)
                expected[number] = offset, step / 2
            case 1 if expected:
                number = chance.choice(list(expected))
                assert singles.remove(number) == expected.pop(number)
            case 2 if expected:
                first = singles.front()
                number = keys.get(first)
                assert (
                    (first, singles.front_turn()) == expected.pop(number) < min(expected.values(), default=(1 << 60,))
                )
                singles.pop(number)
        assert singles.size == len(expected)
        assert singles.find(number) == expected.get(number, (-1,))[0]
    assert list(singles.offsets()) == sorted(first for first, _ in expected.values())
    assert [*singles.runs()[0::3]] == list(singles.offsets())
    assert all(singles.find(number) == expected.get(number, (-1,))[0] for number in numbers)


def test_a_key_with_one_message_takes_less_than_120_bytes() -> None:
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        ready = _waiting(20_000)
        used = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert ready.singles.size == 20_000
    assert used / 20_000 < 120


def test_nothing_is_left_of_keys_that_are_gone() -> None:
    ready = _waiting(3000)
    while ready.size:
        for run in ready.take_turns(100, 0):
            ready.begun(run.first, run.count, 1)
            ready.begun(run.first, run.count, -1)
            assert sum(1 for _ in ready.known()) < 1300, "those that had their turn are kept as two numbers"
    tables = [getattr(ready.singles, name) for name in ("_offsets", "_turns", "_tables", "_counts")]
    assert [len(table) for table in tables] == [0, 0, 0, 0]


def test_a_snapshot_brings_them_back_as_they_were() -> None:
    ready = _waiting(500)
    for offset in range(500, 550):
        ready.keys.put(offset, number_of(str(offset - 500)))
        ready.add(0, False, offset, 1)  # a second one of some
    again = KeyedMessages(ready.keys, ready.rules)
    for priority, front, chunks in ready.freeze():
        for chunk in chunks:
            again.load(priority, front, chunk.columns())
    assert (again.size, again.singles.size) == (550, 450)
    taken = [offset for run in again.take_turns(600, 0) for offset in range(run.first, run.first + run.count)]
    assert sorted(taken) == list(range(500)), "one of each key"
    assert again.size == 50


def test_f5_singles_and_others_take_turns_together() -> None:
    """A key with many waiting, keys with one, and one that came late: each is one turn behind at most."""
    bench = Bench({"type": "pull", "fair": True})
    bench.publish(*["x"] * 30, key=["busy"] * 10 + [f"k{number}" for number in range(20)])
    bench.publish("x", key="k3", priority=5)
    served = []
    for _ in range(31):
        found = bench.pull(1)
        served += offsets(found)
        bench.answer(found, Outcome.ACK)
    assert served[0] == 30, "the higher priority goes first"
    assert sorted(served[1:21]) == [0, 10, 11, 12, *range(14, 30)], "k3 has had its turn"
    assert served[21:] == [1, 13, 2, 3, 4, 5, 6, 7, 8, 9]


def test_f5_a_key_gains_nothing_by_having_been_away() -> None:
    """It comes back, again and again, while thousands wait: its turn is remembered, though nothing of it waits."""
    bench = Bench({"type": "pull", "fair": True})
    bench.publish(*["x"] * 3000, key=[f"k{number}" for number in range(3000)])
    bench.publish(*["x"] * 2, key="busy")
    bench.publish("x", key="k0")
    served: list[int] = []
    for _ in range(3004):
        found = bench.pull(1)
        served += offsets(found)
        bench.answer(found, Outcome.ACK)
        if len(served) == 1500:
            bench.publish("x", key="k1")  # 3003, which has had its turn
    assert served.index(3003) > served.index(3001) > 2999
