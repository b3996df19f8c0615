"""`remuda search` and `remuda index`."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from remuda import Bus, ForeignDirectory, Message, open_broker
from tests.begun import begun
from tests.cli.kit import Remuda, start, wait_for


def test_search_finds_by_words_and_fields(remuda: Remuda, data: str) -> None:
    """U3, T4: the index is built where there is none, and brought up to the log."""
    found = remuda("search", data, "state:invalid", "--json").value
    assert [hit["id"] for hit in found["messages"]] == ["order-3"]
    assert found["messages"][0]["reason"] == "no such order"
    assert found["messages"][0]["body"] == {"id": 3}
    assert found["behind"]["messages"] == 0
    assert [hit["id"] for hit in remuda("search", data, "hello", "--json").value["messages"]] == ["lost"]
    assert len(remuda("search", data, "topic:order.*", "queue:ship", "--json").value["messages"]) == 4
    assert "no stock" in remuda("search", data, "state:retry").out
    assert "nothing found" in remuda("search", data, "since:2020-01-01", "until:2020-01-02").out


def test_search_goes_on_page_by_page(remuda: Remuda, data: str) -> None:
    first = remuda("search", data, "queue:ship", "--limit", "3", "--json").value
    rest = remuda("search", data, "queue:ship", "--limit", "3", "--cursor", first["next"], "--json").value
    assert [hit["id"] for hit in first["messages"] + rest["messages"]] == ["order-5", "order-3", "order-2", "order-1"]
    assert rest["next"] is None
    assert f"--cursor {first['next']}" in remuda("search", data, "queue:ship", "--limit", "3").out


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("stat:dead", "the fields are"),
        ("state:gone", "the states are"),
        ("since:never", "since: 'never' is not a time"),
        ("!!!", "no word"),
        ("text:" + "a" * 300, "longer than"),
    ],
)
def test_a_wrong_query_is_told(remuda: Remuda, data: str, query: str, words: str) -> None:
    assert words in remuda("search", data, query, code=1).err


def test_hostile_content_is_shown_and_not_obeyed(remuda: Remuda, folder: Path) -> None:
    with open_broker("data") as broker:
        broker.publish(
            Message("a", b"evil \x1b[2J\x1b]0;title\x07 [red]text[/red]", mime_type="text/plain", key="\x1b")
        )
    shown = remuda("search", "data", "evil").out
    assert "\x1b" not in shown
    assert "\x07" not in shown
    assert "[red]text[/red]" in shown
    assert remuda("search", "data", "evil", "--json").value["messages"][0]["key"] == "\x1b"


def test_a_search_can_be_read_at_80_columns(remuda: Remuda, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with Bus("data") as bus:
        for number in range(3):
            bus.publish("warehouse.stock.counted.again", {"text": "many words " * 30, "number": number})
    shown = remuda("search", "data", "many").out
    assert max(map(len, shown.splitlines())) <= 80
    assert "many" in shown


def test_an_index_is_built_told_of_and_dropped(remuda: Remuda, data: str) -> None:
    assert "remuda index build" in remuda("index", "status", data, code=1).err
    built = remuda("index", "build", data, "--json").value
    assert built["offset"] == 5
    status = remuda("index", "status", data, "--json").value
    assert status["queues"]["ship"] == {"I": 1, "Q": 1, "R": 1, "X": 1}
    assert status["behind"] == {"messages": 0, "events": 0, "seconds": 0.0}
    assert "ship" in remuda("index", "status", data).out
    with open_broker(data) as broker:
        broker.publish(Message("order.placed", b"{}"))
    assert remuda("index", "status", data, "--json").value["behind"]["messages"] == 1
    assert "1 messages and 0 events behind" in remuda("search", data, "--stale").out
    assert remuda("index", "build", data, "--from", "4", "--json").value["offset"] == 6
    assert {hit["offset"] for hit in remuda("search", data, "--json").value["messages"]} == {4, 5}
    remuda("index", "drop", data, "--yes")
    assert not Path(data, "index").exists()
    remuda("index", "status", data, code=1)


def test_an_index_may_be_there_before_the_first_message(remuda: Remuda, tmp_path: Path) -> None:
    """U3, L7: a follower may start before the first message, but not in an empty directory, which is no log (P6).
    Somebody else's folder of that name is still foreign."""
    data = tmp_path / "empty"
    data.mkdir()
    assert "holds no log" in remuda("search", str(data), "lemon", code=1).err
    begun(data)
    assert "nothing found" in remuda("search", str(data), "lemon").out
    with Bus(data) as bus:
        bus.publish("fruit", "lemon")
    assert len(remuda("search", str(data), "lemon", "--json").value["messages"]) == 1
    foreign = tmp_path / "site"
    (foreign / "index").mkdir(parents=True)
    (foreign / "index" / "index.html").touch()
    with pytest.raises(ForeignDirectory), Bus(foreign) as bus:
        bus.publish("fruit", "lemon")


def test_follow_keeps_up_and_ends_when_told(folder: Path, remuda: Remuda) -> None:
    with open_broker("data") as broker:
        broker.publish(Message("a", b"one"))
        process = start(folder, "index", "follow", "data", "--json")
        wait_for(process, '"offset":1')
        broker.publish(Message("a", b"two"))
        deadline = time.monotonic() + 60
        while remuda("index", "status", "data", "--json").value["offset"] < 2:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        assert '"offset":2' in process.communicate(timeout=100)[0]
        assert process.returncode == 0


def test_a_place_that_cannot_be_is_told(remuda: Remuda, data: str) -> None:
    assert "is not known" in remuda("search", data, "--index", "ftp://host/x", code=1).err
    assert "is a file" in remuda("search", data, "--index", "app.py", code=1).err
    assert "cannot be reached" in remuda("search", data, "--index", "opensearch://127.0.0.1:9/x", code=1).err


def test_t4_a_message_that_failed_over_is_moved_and_not_dead(remuda: Remuda, folder: Path) -> None:
    with Bus("data") as bus:

        @bus.subscribe("x", queue="first", retry=0, failover="second")
        def first(body: int) -> None:
            raise ValueError("no stock")

        bus.publish("x", 1)
        bus.run(until_idle=True)
    assert "nothing found" in remuda("search", "data", "state:dead").out
    found = remuda("search", "data", "state:moved").out
    assert "moved  first" in found
    assert "second" not in found.splitlines()[0]
    assert "waiting  second" in remuda("search", "data", "state:queued,dead").out
    assert len(remuda("search", "data", "state:moved,queued", "--json").value["messages"]) == 2


def test_t1_topics_and_the_producers_time_are_published_and_shown(remuda: Remuda, folder: Path) -> None:
    """T4, M2: also of a message that no queue took, with its flags."""
    for _ in range(2):
        remuda(
            "publish", "data", "order.placed", "lemon", "--topics", "order.placed", "--topics", "audit.x", "--create",
            "--timestamp", "2026-05-01T10:30+00:00", "--object", "order", "--key", "1",
        )  # fmt: skip
    rows = remuda("search", "data", "topic:audit", "--json").value["messages"]
    states = [(row["queue"], row["state"], row["archived"]) for row in rows]
    assert states == [(None, "U", True), ("remuda.unrouted", "Q", False)]
    assert all(row["topics"] == ["order.placed", "audit.x"] and row["topicCount"] == 2 for row in rows)
    assert all(row["timestamp"].startswith("2026-05-01T") for row in rows)
    told = remuda("message", "data", rows[0]["id"], "--json").value
    assert (told["state"], told["archived"], told["queued"], told["topicCount"]) == ("unchanged", True, False, 2)
    assert remuda("publish", "data", "order.placed", "--timestamp", "yesterday", code=1).err
