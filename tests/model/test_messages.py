"""M1, M2: a message and batches of messages as columns."""

from __future__ import annotations

from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remuda.model import messages
from remuda.model.errors import InvalidMessage
from remuda.model.message import Message, Priority
from remuda.model.messages import MAX_ID_BYTES, Messages, fold

MESSAGES = st.lists(
    st.builds(
        Message,
        name=st.sampled_from(["a", "b.c"]),
        body=st.binary(max_size=3),
        id=st.sampled_from(["", "1", "own"]),
        topics=st.sampled_from([(), ("x", "y.z")]),
        object=st.sampled_from([None, "customer"]),
        key=st.sampled_from([None, "42"]),
        timestamp=st.sampled_from([None, 7]),
        mime_type=st.sampled_from(["application/json", "text/plain"]),
        headers=st.sampled_from([{}, {"h": "v"}]),
        priority=st.sampled_from(Priority),
        created=st.sampled_from([0, 5]),
        expires=st.sampled_from([None, 9]),
        due=st.sampled_from([None, 8]),
    ),
    max_size=6,
)


def test_m2_the_fields_of_a_message() -> None:
    assert Message.__struct_fields__ == (
        "name", "body", "id", "topics", "object", "key", "timestamp", "mime_type", "headers", "priority", "created",
        "expires", "due", "wire",
    )  # fmt: skip


@settings(derandomize=True, deadline=None)
@given(MESSAGES)
def test_m1_columns_give_back_the_messages_they_were_made_of(rows: list[Message]) -> None:
    batch = Messages.of(rows)
    assert list(batch) == rows
    assert list(batch.checked()) == rows
    assert len(batch) == len(rows)


@settings(derandomize=True, deadline=None)
@given(MESSAGES, st.integers(0, 6), st.integers(0, 6))
def test_slice_and_take_give_the_same_rows(rows: list[Message], start: int, stop: int) -> None:
    batch = Messages.of(rows)
    start, stop = min(start, len(rows)), min(max(start, stop), len(rows))
    assert list(batch.slice(start, stop)) == rows[start:stop]
    assert list(batch.take(range(start, stop))) == rows[start:stop]
    assert list(batch.take(range(len(rows))[::-1])) == rows[::-1]


def test_ids_may_be_a_range_of_numbers() -> None:
    batch = Messages(bodies=[b"0", b"1", b"2"], name="q", ids=range(10, 40, 10))
    assert [message.id for message in batch] == ["10", "20", "30"]
    assert [message.id for message in batch.take([2, 0])] == ["30", "10"]
    assert batch.slice(1, 3).ids == range(20, 40, 10)


def test_a_value_that_all_share_is_kept_once() -> None:
    assert fold([7, 7, 7]) == 7
    assert fold([7, 8, 7]) == [7, 8, 7]
    assert Messages.of([Message("q", b"a"), Message("q", b"b")]).name == "q"


def test_topics_of_a_message_that_names_none_are_its_name() -> None:
    assert Messages(bodies=[b""], name="a.b").topics_of(0) == ("a.b",)
    assert Messages(bodies=[b"", b""], name="a", topics=[("x", "y"), ()]).topics_of(1) == ("a",)


@pytest.mark.parametrize("row", [3, -4])
def test_a_row_that_is_not_there_is_an_index_error(row: int) -> None:
    with pytest.raises(IndexError):
        Messages(bodies=[b"", b"", b""], name="q")[row]


@pytest.mark.parametrize(
    "columns",
    [
        {"bodies": ["text"], "name": "q"},
        {"bodies": [bytearray(b"")], "name": "q"},
        {"bodies": [None], "name": "q"},
        {"bodies": [b"", b""], "name": ["q"]},
        {"bodies": [b""], "name": "q", "expires": [1, 2]},
        {"bodies": [b""], "name": "q", "ids": ["a", "b"]},
        {"bodies": [b""], "name": "q", "ids": range(2)},
        {"bodies": [b""], "name": "q", "ids": ["ü" * 128]},
    ],
)
def test_m4_columns_that_cannot_be_stored_are_refused_whole(columns: dict[str, Any]) -> None:
    with pytest.raises(InvalidMessage, match=r"[Nn]othing .*was stored|nothing was stored"):
        Messages(**columns).checked()


def test_m4_an_own_id_may_have_255_bytes() -> None:
    Messages(bodies=[b""], name="q", ids=["x" * MAX_ID_BYTES]).checked()


@pytest.mark.parametrize("headers", [{}, {"a": "1"}, {"ü": "1"}])
def test_m2_a_batch_shares_nothing_with_what_it_was_made_of(headers: dict[str, str]) -> None:
    message, bodies, ids = Message("q", b"1", headers=headers), [b"1"], ["x"]
    before = dict(headers)
    made = [
        messages.of_plain(message), Messages.of_plain(message), Messages.of_one(message).checked(),
        Messages(bodies, "q", headers=headers).checked(),
        Messages(bodies, "q", ids, headers=cast(Any, [headers])).checked(),
    ]  # fmt: skip
    headers["a"], bodies[0], ids[0] = "2", b"2", "y"
    for batch in made:
        if batch is None:  # a plain batch has plain headers
            assert not all(map(str.isascii, before))
            continue
        assert batch.bodies == [b"1"]
        assert batch.id(0) in ("", "x")
        for row in (batch[0], *batch, *batch.rows()):
            assert row.headers == before
            cast(dict[str, str], row.headers)["a"] = "3"
