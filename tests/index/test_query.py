"""Queries are checked at the door, with an error that names the argument."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.index import Query, open_index, parse_query
from remuda.model.errors import InvalidOption
from remuda.model.state import State
from remuda.model.topics import TopicPrefix


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("queue", 1), ("queue", b"a"), ("topic", ["a"]), ("topic", "\ud800"), ("object", 1.5), ("key", 4711),
        ("states", "E"), ("states", ["Z"]), ("states", 5), ("states", None), ("states", [None]),
        ("since", "yesterday"), ("since", 1.5), ("since", True), ("until", 1 << 70),
        ("text", None), ("text", b"word"), ("text", "..."), ("text", "x" * 300),
        ("text", " ".join(map(str, range(99)))),
        ("limit", 0), ("limit", -1), ("limit", 10**9), ("limit", "5"), ("limit", True), ("limit", None),
        ("cursor", "x"), ("cursor", "1"), ("cursor", "-1:q"), ("cursor", "٣:q"), ("cursor", 5),
        ("cursor", f"{10**30}:q"),
        ("offsets", 5), ("offsets", "5"), ("offsets", [-1]), ("offsets", [1.0]), ("offsets", [1 << 63]),
        ("offsets", range(5001)),
    ],
)  # fmt: skip
def test_wrong_values_are_refused_by_name(argument: str, value: Any) -> None:
    with pytest.raises(InvalidOption, match=argument):
        Query(**{argument: value})


@pytest.mark.parametrize(
    "place", ["", None, 5, "gopher://x", "opensearch://", "http:///x", "http://h/UPPER", "http://h:x/"]
)
def test_wrong_places_are_refused(place: Any) -> None:
    with pytest.raises(InvalidOption, match="index"):
        open_index(place)


def test_a_query_is_read_as_it_is_typed() -> None:
    query = parse_query(
        ["queue:a b", "sour", "state:dead,I", "topic:fruit.*", "since:5", "key:a:b", "text:x:y", "50%"],
        lambda text, field: int(text),
        limit=3,
    )
    expected = Query(
        queue="a b", states=frozenset({State.DEAD, State.INVALID}), topic="fruit.*", since=5, key="a:b",
        text="sour x:y 50%", limit=3,
    )  # fmt: skip
    assert query == expected
    with pytest.raises(InvalidOption, match="twice"):
        parse_query(["queue:a", "queue:b"], lambda text, field: int(text))


@given(st.text(max_size=30), st.text(max_size=30))
def test_a_prefix_covers_what_begins_with_it(topic: str, text: str) -> None:
    prefix = TopicPrefix.parse(text)
    if prefix is not None and prefix.below:
        assert prefix.covers(prefix.stem + "." + topic)
        assert prefix.covers(topic) is (topic.casefold() + ".").startswith(prefix.stem + ".")
