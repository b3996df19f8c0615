"""One parser for every URL and path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.model.errors import InvalidOption
from remuda.model.values.urls import Address, Url, directory_of, parse_url


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("data", "data"), ("/x/y", "/x/y"), (Path("a b"), "a b"), ("file:/x", "/x"), ("file:///x/y", "/x/y"),
        ("file://localhost/x", "/x"), ("FILE:///x", "/x"), ("file:///with%20space%3F", "/with space?"),
        ("app:bus", "app:bus"), ("a:/b", "a:/b"), (".", "."), ("100%", "100%"), (Path("memory:"), "memory:"),
    ],
)  # fmt: skip
def test_a_directory(url: Any, path: str) -> None:
    assert parse_url(url) == Url("file", path)
    assert directory_of(url) == path


def test_memory() -> None:
    assert parse_url("memory://") == parse_url("memory:") == Url("memory")


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("remuda://host:7000", Url("remuda", hosts=(Address("host", 7000),))),
        ("remuda://ann@host", Url("remuda", hosts=(Address("host", None),), user="ann")),
        ("remuda:///run/remuda.sock", Url("remuda", "/run/remuda.sock")),
        ("amqp://h", Url("amqp", hosts=(Address("h", 5672),), vhost="/")),
        ("amqp:///v", Url("amqp", hosts=(Address("localhost", 5672),), vhost="v")),
        ("amqp://a:b@", Url("amqp", hosts=(Address("localhost", 5672),), user="a", password="b", vhost="/")),
        (
            "amqp://u:p@a:1,u:p@b:2/v",
            Url("amqp", hosts=(Address("a", 1), Address("b", 2)), user="u", password="p", vhost="v"),
        ),
        ("amqp://u:p,q@a", Url("amqp", hosts=(Address("a", 5672),), user="u", password="p,q", vhost="/")),
        (
            "amqps://a%40b:s%2Fecret@h1,[::1]:5673,h3/my%2Fhost?heartbeat=5&x=",
            Url(
                "amqps",
                hosts=(Address("h1", 5671), Address("::1", 5673), Address("h3", 5671)),
                user="a@b",
                password="s/ecret",
                vhost="my/host",
                options=(("heartbeat", "5"), ("x", "")),
            ),
        ),
    ],
)
def test_brokers_that_listen(url: str, expected: Url) -> None:
    assert parse_url(url) == expected
    assert parse_url(expected) is expected
    with pytest.raises(InvalidOption, match="is not a directory"):
        directory_of(url)


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("", "empty"), (Path("\0"), "zero byte"), ("x\0", "zero byte"), ("file://host/x", "names the host 'host'"),
        ("file:", "names no path"), ("file:///x?y", "takes no options"), ("file:///%zz", "not part of an escape"),
        ("file:///%ff", "not UTF-8"), ("memory://name", "takes no name"), ("redis://h", "no broker speaks redis://"),
        ("amqp://a:b@h,c:d@i", "share one login"), ("amqp:/h", "lacks its //"), ("amqp://h:0", "not a port"),
        ("amqp://h:x", "not a port"), ("amqp://h:99999", "not a port"), ("amqp://h,,i", "is not a host"),
        ("amqp://::1", "is not a host"), ("amqp://[::1", "is not a host"), ("amqp://h/v#x", "no fragment"),
        ("\ud800", "lone surrogate"), ("~", "home directory"), ("~/x", "expanduser"), (Path("~/x"), "home directory"),
        (5, "must be a string or a path"), (b"x", "must be a string or a path"), (None, "must be a string or a path"),
    ],
)  # fmt: skip
def test_what_names_no_place_is_refused(url: Any, text: str) -> None:
    with pytest.raises(InvalidOption, match=text):
        parse_url(url)


def test_a_password_is_never_shown() -> None:
    url = parse_url("amqp://ann:hunter2@h/v")
    assert "hunter2" not in f"{url} {url!r}"
    assert str(url) == "amqp://ann:***@h:5672/v"
    assert "hunter2" not in str(parse_url("amqps://h/v?keyfile=k&password=hunter2"))
    for wrong in (
        "amqp://ann:hunter2@h:x/",
        "amqp://ann:hunter2@h,b:x@i",
        "amqp:/ann:hunter2@h",
        "amqp://a:hunter2%@h",
    ):
        with pytest.raises(InvalidOption) as refused:
            parse_url(wrong)
        assert "hunter2" not in str(refused.value)


@given(st.text())
def test_any_text_is_a_place_or_a_clear_refusal(text: str) -> None:
    try:
        parsed = parse_url(text)
    except InvalidOption:
        return
    str(parsed)
