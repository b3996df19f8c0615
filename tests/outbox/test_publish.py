"""O1: committed = sent, in order; rolled back = never; savepoints respected."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from remuda import Bus, Message, Middleware, Priority, message
from remuda.model.errors import InvalidMessage, InvalidOption, RemudaError
from remuda.outbox import Outbox, Status
from remuda.outbox.records import SchemaMissing
from tests.outbox.kit import App, app, connect, eventually


def test_committed_is_sent_in_order_and_rolled_back_is_never_sent(url: str) -> None:
    """O1."""
    with app(url) as made, made.connect() as connection:
        made.bus.publish("order", 1, transaction=connection)
        made.bus.publish_many("order", range(2, 50), transaction=connection)
        made.bus.publish("order", 50, key="a", transaction=connection)
        connection.commit()
        made.bus.publish("order", 99, transaction=connection)
        connection.rollback()
        made.bus.publish("order", 51, transaction=connection)
        connection.commit()
        assert made.run() == list(range(1, 52))
        assert made.run() == list(range(1, 52))


def test_nothing_is_sent_before_the_commit(url: str) -> None:
    """O1: not even while a relay is at work."""
    with app(url) as made:
        made.bus.start()
        connection = made.connect()
        made.bus.publish("order", 1, transaction=connection)
        threading.Event().wait(0.3)
        assert made.got == []
        connection.commit()
        eventually(lambda: made.got == [1])
        connection.close()


def undone(bus: Bus, connection: Any) -> None:
    """A block that publishes and then fails."""
    with suppress(KeyError), bus.transaction(connection):
        bus.publish("order", 98)
        bus.publish("order", 99)
        raise KeyError


def test_a_block_is_a_transaction(url: str) -> None:
    """O1: `with bus.transaction(connection)` commits at its end, and rolls back when it raises."""
    with app(url) as made:
        connection = made.connect()
        with made.bus.transaction(connection):
            made.bus.publish("order", 1)
            made.bus.publish_messages([Message("order", b"2", mime_type="application/json")])
        undone(made.bus, connection)
        made.bus.publish("order", 3)
        connection.close()
        assert sorted(made.run()) == [1, 2, 3]


def test_savepoints_are_respected(url: str) -> None:
    """O1: what an inner block rolls back is not sent, the rest is."""
    with app(url) as made:
        connection = made.connect()
        with made.bus.transaction(connection):
            made.bus.publish("order", 1)
            undone(made.bus, connection)
            with made.bus.transaction(connection):
                made.bus.publish("order", 2)
        connection.close()
        assert made.run() == [1, 2]


def test_a_savepoint_of_ones_own(postgres_url: str) -> None:
    """O1."""
    with app(postgres_url) as made, psycopg.connect(postgres_url) as connection:
        connection.execute("SAVEPOINT s")
        made.bus.publish("order", 99, transaction=connection)
        connection.execute("ROLLBACK TO s")
        made.bus.publish("order", 1, transaction=connection)
        connection.commit()
        assert made.run() == [1]


def test_all_fields_arrive(url: str) -> None:
    """O1, M2: the outbox keeps every field, and the id that was given or made."""
    seen: list[Message] = []
    with app(url) as made:

        @made.bus.subscribe("full.#", queue="full")
        def look(message: Message) -> None:
            seen.append(message)

        connection = made.connect()
        options: dict[str, Any] = {"callback": "answers", "headers": {"ünï": 'q"\n'}, "object": "order", "key": "k'1"}
        first = made.bus.publish(
            "full.ä", b"\x00\xff", id="mine", mime_type="image/x", priority="high", expires="1h", user="ada",
            transaction=connection, **options,
        )  # fmt: skip
        connection.commit()
        with made.bus.transaction(connection):
            second = made.bus.publish_messages(
                [
                    Message("full.b", b"", topics=("full.b", "full.c"), timestamp=5, wire=b"\x00\xfe"),
                    Message("full.d", b"x" * 100_000),
                ]
            )
        made.run()
        connection.close()
    assert (first, seen[0].id) == ("mine", "mine")
    assert [message.id for message in seen] == ["mine", *second]
    assert len(set(second)) == 2
    assert seen[0].body == b"\x00\xff"
    assert (seen[0].mime_type, seen[0].object, seen[0].key, seen[0].priority) == (
        "image/x",
        "order",
        "k'1",
        Priority.HIGH,
    )
    assert seen[0].headers["ünï"] == 'q"\n'
    assert seen[0].headers["cap-callback-name"] == "answers"
    assert seen[0].headers["remuda-user"] == "ada"
    assert seen[0].expires is not None
    assert (seen[1].topics, seen[1].timestamp, seen[1].body) == (("full.b", "full.c"), 5, b"")
    assert seen[2].body == b"x" * 100_000
    assert [message.wire for message in seen] == [None, b"\x00\xfe", None]


@pytest.mark.parametrize("batch", [1, 3])
def test_what_a_foreign_protocol_brought_is_kept_exactly(batch: int, url: str) -> None:
    """O1, M2: alone, and shared by all of a batch."""
    with app(url) as made:
        made.bus.broker.create_queue("foreign", patterns=["foreign"])
        with made.connect() as connection:
            made.bus.publish_messages([Message("foreign", b"", wire=b"\x01\x00")] * batch, transaction=connection)
        made.outbox.relay.pump()
        assert [message.wire for message in made.bus.broker.pull("foreign", 10) or ()] == [b"\x01\x00"] * batch
        connection.close()


def test_a_call_in_a_transaction_is_refused(url: str) -> None:
    """B1, O1: its message would be sent after the commit, which waits for the reply."""
    with app(url) as made:
        connection = made.connect()
        with made.bus.transaction(connection):
            with pytest.raises(RemudaError, match="inside a transaction"):
                made.bus.call("order", 1, timeout="20s")
            with pytest.raises(RemudaError, match="inside a transaction"):
                asyncio.run(made.bus.call_async("order", 1, timeout="20s"))
            made.bus.publish("order", 2)
        connection.close()
        assert made.run() == [2]


def test_ten_thousand_in_one_statement(url: str) -> None:
    """O1: publish_many keeps its order at any size; batches of the relay join without a gap."""
    with app(url, batch=700) as made:
        connection = made.connect()
        ids = made.bus.publish_many("order", range(10_000), transaction=connection)
        connection.commit()
        connection.close()
        assert len(set(ids)) == 10_000
        assert made.run() == list(range(10_000))


def test_middleware_sees_what_is_published(url: str) -> None:
    """B11: before-hooks may change the message, and after-hooks are told."""
    told: list[str] = []

    class Sign(Middleware):
        def before_publish(self, message: Message) -> Message:
            return Message(message.name, b'"signed"', mime_type=message.mime_type)

        def after_publish(self, message: Message) -> None:
            told.append(message.name)

    with app(url) as made:
        made.bus.stack.layers.append(Sign())
        connection = made.connect()
        made.bus.publish("order", 1, transaction=connection)
        connection.commit()
        connection.close()
        assert made.run() == ["signed"]
    assert told == ["order"]


WRONG: list[Any] = [object(), 1, 1.5, b"x", [], {}, "nowhere", lambda: None, Bus]


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: type(wrong).__name__)
def test_what_is_no_connection_is_refused(wrong: Any, tmp_path: Path) -> None:
    """O1: with an error that names the argument; nothing is stored."""
    with app(f"sqlite:///{tmp_path}/app.db") as made:
        with pytest.raises(RemudaError, match="transaction"):
            made.bus.publish("order", 1, transaction=wrong)
        with pytest.raises(RemudaError, match="transaction"):
            asyncio.run(made.bus.publish_async("order", 1, transaction=wrong))
        assert made.run() == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"id": "x" * 300},
        {"id": "a\0b"},
        {"key": "a\0"},
        {"key": "\ud800"},
        {"object": 5},
        {"headers": {"a": "\0"}},
        {"key": 7},
    ],
    ids=repr,
)
def test_what_no_database_can_hold_is_refused(wrong: dict[str, Any], url: str) -> None:
    """O1: before anything is written, so that the caller's transaction goes on."""
    with app(url) as made:
        connection = made.connect()
        made.bus.publish("order", 1, transaction=connection)
        if wrong != {"headers": {"a": "\0"}}:
            with pytest.raises(InvalidMessage):
                made.bus.publish("order", 2, transaction=connection, **wrong)
        else:
            made.bus.publish("order", 2, transaction=connection, **wrong)
        connection.commit()
        connection.close()
        assert made.run()[0] == 1


def test_without_an_outbox_the_error_says_how_to_get_one() -> None:
    with Bus("memory://") as bus:
        with pytest.raises(RemudaError, match="Outbox"):
            bus.publish("order", 1, transaction=sqlite3.connect(":memory:"))
        with pytest.raises(RemudaError, match="Outbox"):
            bus.transaction(None)


def test_missing_tables_are_told(url: str) -> None:
    """O5."""
    with Bus("memory://") as bus:
        Outbox(bus, url)
        connection = connect(url)
        with pytest.raises(SchemaMissing, match="remuda db init"):
            bus.publish("order", 1, transaction=connection)
        connection.close()


def test_a_connection_that_commits_by_itself_is_refused(tmp_path: Path, postgres_url: str) -> None:
    """O1: else the message would be sent although the caller's work is undone."""
    with app(f"sqlite:///{tmp_path}/app.db") as made:
        connection = sqlite3.connect(tmp_path / "app.db", isolation_level=None)
        with pytest.raises(RemudaError, match="BEGIN"):
            made.bus.publish("order", 1, transaction=connection)
        connection.execute("BEGIN")
        made.bus.publish("order", 2, transaction=connection)
        connection.execute("COMMIT")
        connection.close()
        assert made.run() == [2]
    with app(postgres_url) as made, psycopg.connect(postgres_url, autocommit=True) as connection2:
        with pytest.raises(RemudaError, match="transaction"):
            made.bus.publish("order", 1, transaction=connection2)
        with connection2.transaction():
            made.bus.publish("order", 2, transaction=connection2)
        assert made.run() == [2]


@pytest.mark.parametrize(
    "wrong",
    [
        {"batch": 0}, {"batch": "x"}, {"batch": True}, {"lease": "0s"}, {"lease": "soon"}, {"schema": "a;drop"},
        {"prefix": ""}, {"prefix": "X"}, {"prefix": 5}, {"on_threshold": 3}, {"keep_failed": -1}, {"retry": "nonsense"},
        {"retry": None}, {"journal": 5}, {"collect_every": 0},
    ],
    ids=repr,
)  # fmt: skip
def test_wrong_options_are_refused(wrong: dict[str, Any]) -> None:
    with Bus("memory://") as bus, pytest.raises(InvalidOption):
        Outbox(bus, "sqlite:///x.db", **wrong)


@pytest.mark.parametrize(
    "wrong", ["", "x.db", "mysql://h/d", "sqlite://", "sqlite:///:memory:", None, 5, "postgresq://"]
)
def test_wrong_urls_are_refused(wrong: Any) -> None:
    with Bus("memory://") as bus, pytest.raises(InvalidOption, match=r"URL|outbox|memory"):
        Outbox(bus, wrong)


def test_one_bus_has_one_outbox(tmp_path: Path) -> None:
    with Bus("memory://") as bus:
        Outbox(bus, f"sqlite:///{tmp_path}/a.db")
        with pytest.raises(RemudaError, match="already"):
            Outbox(bus, f"sqlite:///{tmp_path}/b.db")


def test_in_a_users_own_test(tmp_path: Path) -> None:
    """B18: `bus.testing()` sends what was committed too."""
    with app(f"sqlite:///{tmp_path}/app.db") as made:
        connection = made.connect()
        with made.bus.testing() as test:
            with made.bus.transaction(connection):
                made.bus.publish("order", 1)
            assert test.run() >= 1
            assert made.got == [1]
        connection.close()


def test_in_a_users_own_coroutine_test(tmp_path: Path) -> None:
    """B18: `run_async` sends what was committed too."""

    async def check(made: App) -> None:
        connection = made.connect()
        async with made.bus.testing() as test:
            with made.bus.transaction(connection):
                made.bus.publish("order", 1)
            assert await test.run_async() >= 1
        connection.close()

    with app(f"sqlite:///{tmp_path}/app.db") as made:
        asyncio.run(check(made))
        assert made.got == [1]


def test_the_relay_runs_as_long_as_the_bus_does(url: str) -> None:
    """O2: on the application's own loop as well; it is over when the bus has stopped."""
    with app(url) as made:
        connection = made.connect()
        made.bus.publish("order", 1, transaction=connection)
        connection.commit()
        asyncio.run(made.bus.run_async(until_idle=True, timeout="60s"))
        assert made.got == [1]
        made.bus.publish("order", 2, transaction=connection)
        connection.commit()
        connection.close()
        assert made.outbox.counts()[Status.SCHEDULED] == 1
        assert made.run() == [1, 2]


@pytest.mark.parametrize("option", ["unique", "idempotency_key"])
def test_a_transaction_takes_no_key_that_the_broker_must_know(option: str, tmp_path: Path) -> None:
    """O1: the broker could not know of what is not committed; the caller is told what to use instead."""
    given: dict[str, Any] = {option: "invoice-1"}
    with app(f"sqlite:///{tmp_path}/app.db") as made:
        connection = made.connect()
        with pytest.raises(InvalidMessage, match="id="):
            made.bus.publish("order", 1, transaction=connection, **given)
        with made.bus.transaction(connection), pytest.raises(InvalidMessage, match="id="):
            made.bus.publish("order", 1, **given)
        with pytest.raises(InvalidMessage, match="id="):
            asyncio.run(made.bus.publish_async("order", 1, transaction=connection, **given))
        connection.close()
        assert made.bus.publish("order", 2, **given) == "invoice-1"
        assert made.run() == [2]


def test_a_prefix_is_part_of_the_topic(tmp_path: Path) -> None:
    """B1: messages of a transaction go where those without one go."""
    got: list[int] = []
    with Bus("memory://", prefix="shop.") as bus:
        Outbox(bus, f"sqlite:///{tmp_path}/app.db").create_tables()

        @bus.subscribe("order")
        def note(body: int) -> None:
            got.append(body)

        connection = connect(f"sqlite:///{tmp_path}/app.db")
        with bus.transaction(connection):
            bus.publish("order", 1)
            bus.publish_many("order", [2, 3])
        connection.close()
        bus.run(until_idle=True)
    assert got == [1, 2, 3]


@message("order.typed", queue="typed", message_limit=5)
@dataclass
class Typed:
    number: int


def test_b21_a_typed_message_in_a_transaction_asks_no_broker(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """O2: a broker that is down costs nothing but time."""
    with app(url) as made:
        broker: Any = made.bus.broker
        monkeypatch.setattr(broker, "create_queue", None)
        monkeypatch.setattr(broker, "publish", None)
        connection = made.connect()
        own = made.bus.publish(Typed(3), transaction=connection)
        connection.commit()
        connection.close()
        stored = made.outbox.status(own)
        assert stored is not None
        assert (stored.topic, stored.status) == ("order.typed", Status.SCHEDULED)
