"""T1, B10: roots, prefixes and wildcards."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remuda.model.errors import InvalidMessage
from remuda.model.topics import MAX_TOPIC_BYTES, check_topic, has_prefix, matches, root

WORDS = st.lists(st.sampled_from(["a", "b", "cc", ""]), min_size=1, max_size=5)
PATTERNS = st.lists(st.sampled_from(["a", "b", "cc", "*", "#"]), min_size=1, max_size=5)


@pytest.mark.parametrize(
    ("topic", "expected"),
    [("fruit", "fruit"), ("fruit.sour", "fruit"), ("fruit.sour.lime", "fruit"), ("a b.c", "a b"), ("Ünï.x", "Ünï")],
)
def test_t1_the_root_stands_before_the_first_dot(topic: str, expected: str) -> None:
    assert root(topic) == expected


@pytest.mark.parametrize("topic", ["", ".", ".sour", "a\nb", "a.\x00", "x" * (MAX_TOPIC_BYTES + 1), "ü" * 128])
def test_t1_a_topic_that_could_name_no_queue_is_refused(topic: str) -> None:
    with pytest.raises(InvalidMessage, match="nothing was stored"):
        check_topic(topic)


@pytest.mark.parametrize("topic", ["a", "a.", "a..b", "x" * MAX_TOPIC_BYTES, "fruit.whatever you like"])
def test_t1_after_the_first_dot_anything_printable_goes(topic: str) -> None:
    check_topic(topic)


@pytest.mark.parametrize(
    ("topic", "prefix", "covered"),
    [
        ("fruit.sour", "fruit.*", True),
        ("fruit.sour.lime", "fruit.*", True),
        ("fruit", "fruit.*", True),
        ("fruits.x", "fruit.*", False),
        ("fruits", "fruit", False),
        ("fruit.sour", "fruit", True),
        ("fruit.sour", "fruit.sour", True),
        ("fruit.sourdough", "fruit.sour", False),
        ("fruit.sour", "fruit.", True),
        ("anything.at.all", "*", True),
        ("fruit", "fruit.sour", False),
    ],
)
def test_t2_a_prefix_covers_whole_words(topic: str, prefix: str, covered: bool) -> None:
    assert has_prefix(topic, prefix) is covered


def oracle(pattern: list[str], words: list[str]) -> bool:
    """The definition itself: `*` is one word, `#` zero or more."""
    if not pattern:
        return not words
    head, rest = pattern[0], pattern[1:]
    if head == "#":
        return any(oracle(rest, words[skip:]) for skip in range(len(words) + 1))
    return bool(words) and head in ("*", words[0]) and oracle(rest, words[1:])


@settings(max_examples=400, derandomize=True, deadline=None)
@given(PATTERNS, WORDS)
def test_b10_wildcards_agree_with_their_definition(pattern: list[str], words: list[str]) -> None:
    # An empty topic has no words, and not one that is empty.
    assert matches(".".join(pattern), ".".join(words)) is oracle(pattern, words if any(words[:1]) or words[1:] else [])


def test_b10_many_hashes_cost_no_more_than_their_number() -> None:
    assert not matches(".".join(["#"] * 100 + ["end"]), ".".join(["word"] * 500))


@pytest.mark.parametrize(
    ("pattern", "topic", "fits"),
    [("*", "a", True), ("*", "a.b", False), ("#", "a.b.c", True), ("a.#", "a", True), ("a.*", "a", False)],
)
def test_b10_star_is_one_word_and_hash_any_number(pattern: str, topic: str, fits: bool) -> None:
    assert matches(pattern, topic) is fits
