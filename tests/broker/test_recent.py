"""The newest messages of the log stay in memory, up to a number of bytes."""

from __future__ import annotations

from remuda.broker.embedded.delivering.caches import TailCache
from remuda.model.messages import Messages


def recent(limit: int, *batches: tuple[int, int]) -> TailCache:
    made = TailCache(limit)
    for first, count in batches:
        bodies = [b"%d" % (first + row) for row in range(count)]
        made.put(first, Messages(bodies=bodies, name="orders"))
    return made


def taken(held: TailCache, *runs: tuple[int, int]) -> list[bytes] | None:
    found = held.take(list(runs))
    return None if found is None else found.bodies


def test_parts_and_neighbours_of_batches() -> None:
    held = recent(1 << 20, (5, 3), (8, 1), (9, 1))
    assert taken(held, (6, 1)) == [b"6"]
    assert taken(held, (6, 4)) == [b"6", b"7", b"8", b"9"]
    assert taken(held, (6, 4)) == [b"6", b"7", b"8", b"9"], "another queue may want them too"


def test_several_runs() -> None:
    assert taken(recent(1 << 20, (0, 2), (4, 2)), (1, 1), (4, 2)) == [b"1", b"4", b"5"]


def test_what_it_does_not_have_is_nothing() -> None:
    held = recent(1 << 20, (5, 2), (9, 1))
    for run in ((0, 1), (4, 2), (6, 3), (9, 2), (20, 1)):
        assert taken(held, run) is None
    assert taken(recent(1 << 20), (0, 1)) is None


def test_q21_no_more_than_the_limit_is_held() -> None:
    held = recent(100_000, *((first, 1) for first in range(5000)))
    assert held.bytes <= 100_000
    kept = sum(taken(held, (first, 1)) is not None for first in range(5000))
    assert 40 < kept < 100, "what belongs to a message counts, not its body alone"
    assert taken(held, (5000 - kept, kept)) == [b"%d" % first for first in range(5000 - kept, 5000)]


def test_a_batch_over_the_limit_is_not_held() -> None:
    held = recent(100, (0, 1))
    assert held.bytes == 0
    assert taken(held, (0, 1)) is None
