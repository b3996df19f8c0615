"""M7: one message as one document."""

from __future__ import annotations

import msgspec

from remuda.model.document import Document, document
from remuda.model.message import Message
from remuda.model.records import Event
from remuda.model.state import State

CREATED = 1_000


def tell(*events: tuple[int, Event], queues: tuple[str, ...] = ("q",), topics: tuple[str, ...] = ()) -> Document:
    return document(7, Message("q", b"", topics=topics, created=CREATED), queues, events)


def event(state: State, **fields: object) -> Event:
    return Event(queue=str(fields.pop("queue", "q")), state=state, first=7, **fields)  # type: ignore[arg-type]


def test_m7_a_message_just_taken_in_is_queued() -> None:
    view = tell().queues[0]
    assert (view.state, view.queued, view.delivered, view.success, view.archived) == ("Q", True, False, False, False)
    assert (view.modified, view.consumed, view.processed, view.completed, view.failed) == (CREATED,) + (None,) * 4


def test_m7_a_message_confirmed_by_all_its_consumers() -> None:
    """The example of the index: two topics, two confirmations."""
    told = tell(
        (2_000, event(State.FETCHED, consumer="c1, c2", attempt=1)),
        (2_500, event(State.SUCCESS, consumer="c2")),
        (3_000, event(State.SUCCESS, consumer="c1")),
        (3_000, event(State.COMPLETED)),
        topics=("customer.create", "audit.log"),
    )
    view = told.queues[0]
    assert (told.state, told.topic_count, view.confirmed_count) == ("X", 2, 2)
    assert (view.queued, view.archived, view.success, view.delivered) == (False, True, True, True)
    assert (view.consumed, view.processed, view.completed, view.failed) == (2_000, 2_500, 3_000, None)
    assert {(one.consumer, one.fetched, one.confirmed, one.duration) for one in view.consumed_by} == {
        ("c1", 2_000, 3_000, 1_000),
        ("c2", 2_000, 2_500, 500),
    }


def test_m7_times_are_of_the_first_fetch_and_the_first_answer() -> None:
    view = tell(
        (2_000, event(State.FETCHED, consumer="c", attempt=1)),
        (3_000, event(State.RETRY, consumer="c", reason="busy")),
        (3_000, event(State.QUEUED, attempt=1)),
        (4_000, event(State.FETCHED, consumer="c", attempt=2)),
        (5_000, event(State.SUCCESS, consumer="c")),
        (5_000, event(State.COMPLETED)),
    ).queues[0]
    assert (view.consumed, view.processed, view.completed, view.modified, view.attempts) == (
        2_000,
        3_000,
        5_000,
        5_000,
        2,
    )
    assert [(one.fetched, one.confirmed) for one in view.consumed_by] == [(2_000, None), (4_000, 5_000)]


def test_m7_a_failed_message_says_when_and_why_until_it_is_brought_back() -> None:
    dead = ((2_000, event(State.FETCHED, consumer="c", attempt=1)), (3_000, event(State.DEAD, reason="no luck")))
    view = tell(*dead).queues[0]
    assert (view.state, view.failed, view.reason, view.archived, view.success) == ("E", 3_000, "no luck", True, False)
    again = tell(*dead, (4_000, event(State.QUEUED, who="ann"))).queues[0]
    assert (again.state, again.failed, again.reason, again.queued, again.archived) == ("Q", None, None, True, False)


def test_m7_kicked_counts_as_delivered() -> None:
    view = tell((2, event(State.FETCHED, consumer="c", attempt=1)), (2, event(State.KICKED))).queues[0]
    assert (view.state, view.delivered, view.success, view.archived) == ("K", True, True, True)


def test_m7_an_unchanged_message_has_no_queue_and_state_u() -> None:
    told = tell(queues=())
    assert (told.state, told.queues) == (State.UNCHANGED, ())


def test_m5_each_queue_has_its_own_state_and_the_live_one_speaks_for_all() -> None:
    told = tell((2, event(State.DEAD, queue="a", reason="expired")), queues=("a", "b"))
    assert [(view.queue, view.state) for view in told.queues] == [("a", "E"), ("b", "Q")]
    assert told.state is State.QUEUED


def test_m7_the_names_are_those_of_the_index() -> None:
    assert {"topicCount", "created"} <= set(Document.__struct_encode_fields__)
    view = msgspec.to_builtins(tell((2, event(State.FETCHED, consumer="c", attempt=1))).queues[0])
    assert {
        "state", "queued", "delivered", "success", "archived", "modified", "consumed", "processed", "completed",
        "failed", "confirmedCount",
    } <= set(view)  # fmt: skip
    assert set(view["consumedBy"][0]) == {"consumer", "fetched", "confirmed", "duration"}


HOUR = 3_600_000_000


def test_m7_giving_up_is_an_answer_and_another_day_does_not_count() -> None:
    """`dead()` sets `processed`; a message reprocessed the next day took as long as its own fetches took."""
    view = tell(
        (2_000, event(State.FETCHED, consumer="c", attempt=1)),
        (3_000, event(State.DEAD, consumer="c", reason="given up")),
        (37 * HOUR, event(State.QUEUED, reason="reprocessed", who="ann")),
        (37 * HOUR + 100, event(State.FETCHED, consumer="c", attempt=2)),
        (37 * HOUR + 900, event(State.SUCCESS, consumer="c")),
    ).queues[0]
    assert (view.processed, view.duration, view.delivered, view.reason) == (3_000, 1_000, True, None)


def test_m7_where_no_answer_came_nothing_was_processed() -> None:
    silent = [
        (2_000, event(State.FETCHED, consumer="c", attempt=1)),
        (3_000, event(State.RETRY, reason="no answer in time")),
        (3_000, event(State.QUEUED, attempt=1)),
        (4_000, event(State.FETCHED, consumer="c", attempt=2)),
    ]
    for end in (event(State.DEAD, reason="consumer lost"), event(State.DEAD, consumer="c", reason="consumer lost")):
        view = tell(*silent, (5_000, end)).queues[0]
        assert (view.processed, view.duration, view.delivered) == (None, None, False)
    late = tell(*silent, (37 * HOUR, event(State.FETCHED, consumer="c")), (37 * HOUR + 5, event(State.SUCCESS)))
    assert (late.queues[0].processed, late.queues[0].duration) == (37 * HOUR + 5, 5)


def test_m7_not_now_is_forgotten_when_it_succeeds() -> None:
    view = tell(
        (2_000, event(State.FETCHED, consumer="c", attempt=1)),
        (3_000, event(State.QUEUED, consumer="c", reason="not now")),
        (4_000, event(State.FETCHED, consumer="c", attempt=1)),
        (5_000, event(State.SUCCESS, consumer="c")),
        (5_000, event(State.COMPLETED)),
    ).queues[0]
    assert (view.state, view.reason) == ("X", None)


def test_m7_what_was_sent_without_awaiting_an_answer_stays_delivered() -> None:
    view = tell((2_000, event(State.FETCHED)), (2_000, event(State.KICKED)), (2_001, event(State.COMPLETED))).queues[0]
    assert (view.delivered, view.success, view.processed) == (True, True, None)
