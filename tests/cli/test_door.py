"""U3: what a command is told wrongly, it says by the option's name; and what it shows is true."""

from __future__ import annotations

import socket
from pathlib import Path

from tests.cli.kit import Remuda

WRONG = [
    (["reprocess", "data", "shop"], "there is no queue 'shop'; did you mean 'ship'?"),
    (["clear", "data", "nothing-like-it", "-y"], "there is no queue 'nothing-like-it'; the first publish"),
    (["publish", "data", "a", "1", "--delay", "soon"], "delay: 'soon' is not a duration"),
    (["publish", "data", "a", "1", "--expires", "soon"], "expires: 'soon' is not a duration"),
    (["publish", "data", "a", "1", "--id", ""], "--id is empty"),
    (["publish", "data", "a", "1", "--priority", "32"], "priority must be 0 to 31"),
    (["publish", "data", "a", "1", "--priority", "soon"], "priority must be 0 to 31"),
    (["publish", "data", "a", "1", "--priority", "3", "--high"], "give --high or --priority, not both"),
    (["log", "tail", "data", "--since", "soon"], "--since: 'soon' is not a time"),
    (["report", "data", "--until", "soon"], "--until: 'soon' is not a time"),
    (["search", "data", "until:soon"], "until: 'soon' is not a time"),
    (["top", "data", "--every", "0"], "--every must be longer than zero"),
    (["top", "data", "--every", "soon"], "--every: 'soon' is not a duration"),
    (["run", "app:bus", "--grace", "soon"], "--grace: 'soon' is not a duration"),
    (["run", "app:bus", "--threads", "shop=3"], "--threads: no handler has the queue 'shop'; the queues are: ship"),
    (["run", "app:bus", "--dashboard", "odd"], "--dashboard takes HOST:PORT"),
    (["db", "messages", "sqlite:///none.db"], "there is no database 'sqlite:///none.db'; nothing was created"),
    (["bench", "nowhere"], "there is no directory 'nowhere'"),
    (["bench", "--sync", "never"], "sync must be one of"),
]


def test_a_wrong_word_is_named(remuda: Remuda, data: str, folder: Path) -> None:
    """U3"""
    for arguments, words in WRONG:
        told = remuda(*arguments, code=1)
        assert words in told.err
        assert told.out == ""
    assert remuda("db", "status", "sqlite:///none.db", "--json").value["version"] == 0
    assert not (folder / "none.db").exists(), "looking makes no database"


def test_a_port_that_cannot_be_had_is_told_in_one_line(remuda: Remuda, folder: Path) -> None:
    """U3"""
    assert "--metrics" in remuda("run", "app:bus", "--until-idle", "--metrics", "99999", code=2).err
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        told = remuda("run", "app:bus", "--until-idle", "--metrics", port, code=1).err
    assert f"--metrics: port {port} is not available" in told


def test_retrying_a_message_that_did_not_fail_is_told(remuda: Remuda, folder: Path) -> None:
    """O5"""
    remuda("db", "init", "sqlite:///shop.db")
    assert "none of nope is a failed message" in remuda("db", "retry", "sqlite:///shop.db", "nope", code=1).err
    assert remuda("db", "retry", "sqlite:///shop.db", "--json").value == {"retried": 0}


def test_what_is_published_and_what_has_ended_is_shown_whole(remuda: Remuda, data: str) -> None:
    """M2, M7, U3: an object, a key and a priority go in; attempts of messages that have ended are told."""
    rows = {row["id"]: row for row in remuda("messages", data, "ship", "--json").values[0]}
    assert {id: row["attempts"] for id, row in rows.items()} == {"order-5": 0, "order-2": 1, "order-3": 1}
    remuda("publish", data, "order.placed", "1", "--id", "low", "--object", "order", "--key", "4711")
    remuda("publish", data, "order.placed", "2", "--id", "first", "--priority", "7")
    told = remuda("message", data, "low", "--json").value
    assert (told["object"], told["key"]) == ("order", "4711")
    rows = remuda("messages", data, "ship", "--state", "waiting", "--json").values[0]
    assert [row["id"] for row in rows] == ["first", "order-5", "low"]


def test_bench_measures_here_and_leaves_nothing(remuda: Remuda, folder: Path) -> None:
    """U3"""
    before = sorted(folder.iterdir())
    rows = remuda("bench", "--seconds", "0.05", "--sync", "os", "--size", "10", "--json").value
    assert [row["what"].split(",")[0].split(":")[0] for row in rows] == [
        "the disk alone", "publish", "publish", "pull and acknowledge", "a bus",
    ]  # fmt: skip
    assert all(row["messages"] > 0 and row["perSecond"] > 0 for row in rows)
    assert sorted(folder.iterdir()) == before
