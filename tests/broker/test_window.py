"""The window holds the first messages of a queue, up to a limit (Q21)."""

from __future__ import annotations

from remuda.broker.embedded.delivering.caches import HeadCache
from remuda.model.messages import Messages


def batch(first: int, count: int) -> Messages:
    return Messages(bodies=[b"%d" % (first + row) for row in range(count)], name="orders")


def window(limit: int, *batches: tuple[int, int]) -> HeadCache:
    made = HeadCache(limit)
    for first, count in batches:
        made.put(first, batch(first, count))
    return made


def taken(held: HeadCache, *runs: tuple[int, int]) -> list[bytes] | None:
    found = held.take(list(runs))
    return None if found is None else found.bodies


def test_a_whole_batch() -> None:
    held = window(10, (0, 3))
    assert taken(held, (0, 3)) == [b"0", b"1", b"2"]
    assert held.size == 0


def test_part_after_part() -> None:
    held = window(10, (0, 5))
    assert taken(held, (0, 2)) == [b"0", b"1"]
    assert held.size == 3
    assert taken(held, (2, 3)) == [b"2", b"3", b"4"]


def test_neighbours_that_came_one_by_one() -> None:
    held = window(10, (0, 1), (1, 1), (2, 3))
    assert taken(held, (0, 3)) == [b"0", b"1", b"2"]
    assert held.size == 2
    assert taken(held, (3, 2)) == [b"3", b"4"]


def test_a_gap_is_left_to_the_log() -> None:
    held = window(3, (0, 1), (1, 3), (4, 1))
    assert taken(held, (0, 5)) is None


def test_q21_no_more_than_the_limit() -> None:
    held = window(4, (0, 3), (3, 2), (5, 1))
    assert held.size <= 4
    assert taken(held, (0, 3)) == [b"0", b"1", b"2"]
    assert taken(held, (3, 2)) is None


def test_what_it_does_not_have_is_nothing() -> None:
    held = window(10, (5, 2))
    assert taken(held, (0, 2)) is None
    assert taken(held, (5, 3)) is None
    assert taken(window(10), (0, 1)) is None


def test_what_lies_before_is_let_go() -> None:
    held = window(10, (0, 2), (2, 2))
    assert taken(held, (2, 2)) == [b"2", b"3"]
    assert held.size == 0


def test_discarded_messages_make_room() -> None:
    held = window(4, (0, 2), (2, 2))
    held.discard(0, 2)
    assert held.size == 2
    held.put(4, batch(4, 2))
    assert taken(held, (2, 2)) == [b"2", b"3"]
    assert taken(held, (4, 2)) == [b"4", b"5"]


def test_large_messages_wait_in_the_log() -> None:
    """Q21: five hundred of them would not fit into memory."""
    held = HeadCache(500)
    held.put(0, Messages(bodies=[b"x" * 100_000], name="orders"))
    held.put(1, Messages(bodies=[b"x" * 100_000, b"small"], name="orders"))
    assert held.size == 0
    held.put(3, Messages(bodies=[b"x" * 20_000, *[b"small"] * 9], name="orders"))
    assert held.size == 10
    assert taken(held, (0, 1)) is None


def test_what_is_left_of_the_first_batch_is_discarded_too() -> None:
    held = window(10, (0, 4), (6, 2))
    assert taken(held, (0, 2)) == [b"0", b"1"]
    held.discard(2, 2)
    assert held.size == 2
    assert taken(held, (6, 2)) == [b"6", b"7"]


def test_what_is_discarded_is_found_without_a_look_at_all_others() -> None:
    looks = []

    class Watched(list[bytes]):
        def __len__(self) -> int:
            looks.append(1)
            return 1

    held = window(10_000)
    held._batches.extend((first, Messages(bodies=Watched([b""]), name="orders")) for first in range(1000))
    held.size = 1000
    for first in range(1, 1000, 2):
        held.discard(first, 1)
    assert held.size == 500
    assert len(looks) < 10 * 500
