"""The words of bodies, which every index finds."""

from __future__ import annotations

import sqlite3

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.index.text import MAX_TEXT, searchable, split, text_of, words


@pytest.mark.parametrize(
    ("body", "mime_type", "expected"),
    [
        (b"Sour APPLE, sour.", "text/plain", ["sour", "apple", "sour"]),
        ("Äpfel naïve".encode(), "text/plain", ["apfel", "naive"]),
        ("Äpfel".encode("latin-1"), "text/plain; charset=ISO-8859-1", ["apfel"]),
        ("Straße STRASSE".encode(), "text/html", ["strasse", "strasse"]),
        ("東京 tower".encode(), "text/plain", ["東", "京", "tower"]),
        (b'{"name": ["Ann", {"x": 42}], "ok": true, "none": null}', "application/json", ["ann", "42"]),
        (b'{"a": "caf\\u00e9"}', "application/vnd.shop+json; v=1", ["cafe"]),
        (b"{not json", "application/json", ["not", "json"]),
        (msgspec.msgpack.encode({"a": ["deep", b"bytes", 7]}), "application/msgpack", ["deep", "7"]),
        (b"\xc1", "application/msgpack", []),
        (b"binary word", "application/octet-stream", []),
        (b"a_b-c.d", "text/plain", ["a", "b", "c", "d"]),
        (b"bad \xff\xfe bytes", "text/plain", ["bad", "bytes"]),
        (b"word", "text/plain; charset=zip", ["word"]),
        (b"word", "text/plain; charset=unicode_escape", ["word"]),
        (b"[" * 60_000, "application/json", []),
        (b"", "application/json", []),
        (b"x", "", []),
    ],
)
def test_words_of_a_body(body: bytes, mime_type: str, expected: list[str]) -> None:
    """T4: text of text/*, the values of JSON and msgpack; nothing of what is binary."""
    assert words(text_of(body, mime_type)) == expected


def test_only_the_beginning_of_a_body_counts() -> None:
    body = b"first " + b"." * MAX_TEXT + b" last"
    assert words(text_of(body, "text/plain")) == ["first"]
    assert words(text_of(b'["first", "' + b"." * MAX_TEXT + b'", "last"]', "application/json")) == ["first"]


@given(st.text())
def test_words_stay_what_they_are(text: str) -> None:
    found = words(text)
    assert words(" ".join(found)) == found
    assert split(searchable(text)) == found


@given(st.one_of(st.text(), st.text(st.characters(max_codepoint=127))))
def test_sqlite_finds_the_words_that_we_do(text: str) -> None:
    """Its tokenizer is given text and not words, which must come to the same."""
    plain = searchable(text).encode("utf-8", "replace").decode()
    with sqlite3.connect(":memory:") as connection:
        run = connection.execute
        run("CREATE VIRTUAL TABLE t USING fts5(text, tokenize='ascii')")
        run("CREATE VIRTUAL TABLE v USING fts5vocab(t, 'row')")
        run("INSERT INTO t VALUES (?)", (plain,))
        found = {row[0] for row in run("SELECT term FROM v")}
    connection.close()
    assert found == set(split(plain))
