"""Acknowledgements in the fewest frames, and confirms matched to their publishes, against a naive model."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.amqp.client.acknowledgements import AckWindow
from remuda.amqp.client.confirms import ConfirmTracker, Outgoing, Receipt
from remuda.amqp.codec.frames import FrameParser
from remuda.amqp.codec.methods import BasicAck, BasicReturn
from remuda.amqp.codec.properties import EMPTY
from remuda.amqp.errors import ConnectionLost, Nacked, Unroutable


def told(frames: list[bytes]) -> list[tuple[int, bool]]:
    methods = [event[1] for event in FrameParser().feed(b"".join(frames))]
    return [(m.delivery_tag, m.multiple) for m in methods if isinstance(m, BasicAck)]


def test_a_whole_prefetch_is_one_frame() -> None:
    window = AckWindow()
    window.delivered(range(1, 1001))
    assert window.ack(range(1000, 0, -1)) == 1000
    assert told(window.frames(1)) == [(1000, True)]
    assert len(window) == 0


def test_gaps_are_acknowledged_one_by_one() -> None:
    window = AckWindow()
    window.delivered(range(1, 8))
    assert window.ack([1, 2, 4, 6, 6, 99]) == 4
    assert told(window.frames(1)) == [(2, True), (4, False), (6, False)]
    assert window.ack([3, 4]) == 1
    assert told(window.frames(1)) == [(3, False)]
    assert window.settle(5) is True
    assert window.settle(5) is False


@given(st.lists(st.tuples(st.sampled_from(["deliver", "ack", "nack", "flush"]), st.integers(1, 30)), max_size=80))
def test_the_broker_ends_up_with_exactly_what_was_acknowledged(steps: list[tuple[str, int]]) -> None:
    window, unsettled, asked, last = AckWindow(), set[int](), set[int](), 0

    def flush() -> None:
        for tag, multiple in told(window.frames(1)):
            gone = {t for t in unsettled if t <= tag} if multiple else {tag}
            assert gone <= asked
            assert gone <= unsettled
            unsettled.difference_update(gone)

    for what, number in steps:
        if what == "deliver":
            window.delivered(range(last + 1, last + number + 1))
            unsettled |= set(range(last + 1, last + number + 1))
            last += number
        elif what == "ack":
            if window.ack([number]):
                asked.add(number)
        elif what == "nack":
            flush()  # a nack is written behind the acknowledgements that came before it
            if window.settle(number):
                unsettled.remove(number)
        else:
            flush()
    flush()
    assert not asked & unsettled
    assert len(window) == len(unsettled)


def receipt(*bodies: bytes, key: str = "q") -> Receipt:
    return Receipt([Outgoing("", key, EMPTY, body) for body in bodies])


@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=8),
    st.data(),
)
def test_confirms_reach_their_batches(sizes: list[int], data: st.DataObject) -> None:
    """Single and multiple, in any order, good and bad."""
    tracker = ConfirmTracker()
    receipts = [receipt(*[b"x"] * size) for size in sizes]
    for one in receipts:
        tracker.add(one)
    waiting = {number: data.draw(st.booleans()) for number in range(1, sum(sizes) + 1)}
    nacked: set[int] = set()
    done: list[Receipt] = []
    while waiting:
        number = data.draw(st.sampled_from(sorted(waiting)))
        multiple = data.draw(st.booleans())
        taken = waiting[number]
        answered = {n for n in waiting if n <= number} if multiple else {number}
        nacked |= set() if taken else answered
        for n in answered:
            del waiting[n]
        done += tracker.answer(number, multiple, taken)
    assert sorted(map(id, done)) == sorted(map(id, receipts))
    found = {one.first + place for one in receipts for place in one.nacked}
    assert found == nacked


def test_a_confirm_for_nothing_is_ignored() -> None:
    tracker = ConfirmTracker()
    assert tracker.answer(5, False, True) == []
    assert tracker.answer(5, True, True) == []
    one = receipt(b"a")
    tracker.add(one)
    assert tracker.answer(9, False, True) == []
    assert tracker.answer(1, False, True) == [one]
    assert tracker.answer(1, False, True) == []


def test_returns_are_matched_in_order() -> None:
    """Equal messages are told apart by their order."""
    tracker = ConfirmTracker()
    first, second = receipt(b"a", b"b", b"a"), receipt(b"a", key="other")
    tracker.add(first)
    tracker.add(second)
    back = BasicReturn(312, "NO_ROUTE", "", "q")
    assert tracker.returned(back, EMPTY, b"a") is first
    assert tracker.returned(back, EMPTY, b"a") is first
    assert tracker.returned(back, EMPTY, b"a") is None
    assert tracker.returned(BasicReturn(312, "NO_ROUTE", "", "other"), EMPTY, b"a") is second
    assert (set(first.returned), set(second.returned)) == ({0, 2}, {0})
    done = tracker.answer(4, True, True)
    assert done == [first, second]
    for one in done:
        one.settle()
    with pytest.raises(Unroutable, match="312 NO_ROUTE"):
        first.wait(0)


def test_what_a_lost_connection_leaves_open() -> None:
    tracker = ConfirmTracker()
    one = receipt(b"a", b"b", b"c")
    tracker.add(one)
    tracker.answer(2, False, True)
    (failed,) = tracker.fail(ConnectionLost("gone"))
    failed.settle()
    assert failed.unanswered == failed.failed == {0, 2}
    with pytest.raises(ConnectionLost, match="gone"):
        failed.wait(0)


def test_nacks_are_counted() -> None:
    tracker = ConfirmTracker()
    one = receipt(b"a", b"b")
    tracker.add(one)
    tracker.answer(2, False, False)
    (done,) = tracker.answer(1, False, True)
    done.settle()
    with pytest.raises(Nacked, match="refused 1 of 2 messages"):
        done.wait(0)
