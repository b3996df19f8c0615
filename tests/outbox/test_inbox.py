"""O3: the same message id is handled once per group, also when it is delivered again."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psycopg
import pytest

from remuda import Bus, Message, Response
from remuda.model.errors import InvalidOption
from remuda.outbox import Inbox, Outbox
from tests.outbox.kit import connect


@pytest.fixture
def tables(url: str) -> str:
    Inbox(url).create_tables()
    connection = connect(url)
    connection.execute("CREATE TABLE shipped (number INTEGER)")
    connection.commit()
    connection.close()
    return url


class Db:
    """What the handlers of these tests ask for."""


def shipped(url: str) -> list[int]:
    connection = connect(url)
    rows = connection.execute("SELECT number FROM shipped ORDER BY number").fetchall()
    connection.close()
    return [number for (number,) in rows]


def repeated(bus: Bus, ids: int, times: int) -> None:
    for _ in range(times):
        bus.publish_messages(
            [Message("order", str(n).encode(), id=f"m{n}", mime_type="application/json") for n in range(ids)]
        )


def test_in_the_handlers_transaction(tables: str) -> None:
    """O3: the handler's own work and the note are committed together."""
    inbox = Inbox(tables, provide={Db: lambda: connect(tables)})
    with Bus("memory://") as bus:

        @bus.subscribe("order", queue="ship", threads=4)
        @inbox.once
        def ship(number: int, db: Db) -> None:
            db.execute(f"INSERT INTO shipped VALUES ({number})")  # type: ignore[attr-defined]

        repeated(bus, 20, 3)
        bus.run(until_idle=True)
    assert shipped(tables) == list(range(20))


def test_a_failure_undoes_the_note(tables: str) -> None:
    """O3: and the retry runs."""
    calls: list[int] = []
    inbox = Inbox(tables, provide={Db: lambda: connect(tables)})
    with Bus("memory://") as bus:

        @bus.subscribe("order", queue="ship", retry=["10ms"] * 3)
        @inbox.once
        def ship(number: int, db: Db, message: Message) -> None:
            calls.append(number)
            db.execute(f"INSERT INTO shipped VALUES ({number})")  # type: ignore[attr-defined]
            if len(calls) < 3:
                raise ValueError("not yet")

        bus.publish("order", 7)
        with_retries(bus, lambda: len(calls) >= 3)
    assert calls == [7, 7, 7]
    assert shipped(tables) == [7]


def with_retries(bus: Bus, done: Any) -> None:
    bus.start()
    deadline = time.monotonic() + 60
    while not done() and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.1)


def test_groups_are_separate(tables: str) -> None:
    """O3: each group handles a message once."""
    seen: Counter[str] = Counter()
    inbox = Inbox(tables)
    with Bus("memory://") as bus:
        for group in ("one", "two"):

            def note(number: int, group: str = group) -> None:
                seen[group] += 1

            note.__qualname__ = f"note_{group}"
            bus.subscribe("order", group=group)(inbox.once(note))
        repeated(bus, 10, 3)
        bus.run(until_idle=True)
        inbox.close()
    assert seen == {"one": 10, "two": 10}


def test_without_a_connection_and_in_parallel(tables: str) -> None:
    """O3: a message that is delivered twice at the same time is handled by one of the two."""
    seen: Counter[int] = Counter()
    guard = threading.Lock()
    inbox = Inbox(tables)
    with Bus("memory://") as bus:

        @bus.subscribe("order", queue="ship", threads=4)
        @inbox.once
        def ship(number: int) -> None:
            time.sleep(0.05)
            with guard:
                seen[number] += 1

        repeated(bus, 1, 4)
        with_retries(bus, lambda: bus.broker.queue("ship").size == 0)
        inbox.close()
    assert seen == {0: 1}


def test_a_failure_without_a_connection(tables: str) -> None:
    calls: list[int] = []
    inbox = Inbox(tables)
    with Bus("memory://") as bus:

        @bus.subscribe("order", queue="ship", retry=["10ms"] * 3)
        @inbox.once
        def ship(number: int) -> None:
            calls.append(number)
            if len(calls) < 2:
                raise ValueError("not yet")

        repeated(bus, 1, 2)
        with_retries(bus, lambda: bus.broker.queue("ship").size == 0)
        inbox.close()
    assert calls == [0, 0]


def test_coroutines(tables: str) -> None:
    """O3: with a connection that is awaited, and without any."""
    seen: list[int] = []

    async def made() -> Any:
        if tables.startswith("sqlite"):
            import aiosqlite

            return await aiosqlite.connect(tables.removeprefix("sqlite:///"))
        return await psycopg.AsyncConnection.connect(tables)

    inbox = Inbox(tables, provide={Db: made})
    with Bus("memory://") as bus:

        @bus.subscribe("order", queue="ship")
        @inbox.once
        async def ship(number: int, db: Db) -> None:
            await db.execute(f"INSERT INTO shipped VALUES ({number})")  # type: ignore[attr-defined]

        @bus.subscribe("order", queue="look")
        @inbox.once
        async def look(number: int) -> None:
            seen.append(number)

        repeated(bus, 5, 2)
        bus.run(until_idle=True)
        inbox.close()
    assert shipped(tables) == list(range(5))
    assert sorted(seen) == list(range(5))


def test_what_a_handler_publishes_is_part_of_its_transaction(tables: str) -> None:
    """O1, O3: from broker to broker exactly once, by inbox and outbox in one transaction."""
    inbox = Inbox(tables, provide={Db: lambda: connect(tables)})
    got: list[int] = []
    with Bus("memory://") as bus:
        Outbox(bus, tables)
        fail = [True]

        @bus.subscribe("order", queue="ship", retry=["10ms"] * 3)
        @inbox.once
        def ship(number: int, db: Db) -> None:
            bus.publish("shipped", number)
            if fail:
                fail.pop()
                raise ValueError("undone")

        @bus.subscribe("shipped", queue="tell")
        def tell(number: int) -> None:
            got.append(number)

        bus.publish("order", 7)
        with_retries(bus, lambda: got)
    assert got == [7]


def test_the_retention(tables: str) -> None:
    """O3, L6: forgotten after `keep`, not before."""
    inbox = Inbox(tables, keep="1h")
    connection = connect(tables)
    connection.execute("INSERT INTO remuda_inbox (consumer, id) VALUES ('ship', 'm')")
    connection.commit()
    connection.close()
    assert inbox.collect() == 0
    assert Inbox(tables, keep="0s").collect() == 1


def test_wrong_arguments(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    for wrong in ({"provide": {"x": connect}}, {"provide": {Db: 5}}, {"keep": "soon"}, {"prefix": "A"}):
        with pytest.raises(InvalidOption):
            Inbox(url, **wrong)
    with pytest.raises(InvalidOption):
        Inbox("nowhere")

    def two(a: Db, b: sqlite3.Connection) -> None: ...

    with pytest.raises(InvalidOption, match="one"):
        Inbox(url, provide={Db: object, sqlite3.Connection: object}).once(two)


@pytest.mark.parametrize("kind", ["connection", "none", "coroutine"])
@pytest.mark.parametrize("encoding", ["json", "msgpack"])
def test_o3_the_first_answer_is_given_again(tables: str, kind: str, encoding: str) -> None:
    """O3, B9, B20: to a callback, a caller and a kept result, with all that the handler said of it."""
    inbox = Inbox(tables, provide={Db: lambda: connect(tables)})
    calls: list[int] = []
    answers: list[tuple[Any, str | None]] = []
    with Bus("memory://", encoding=encoding) as bus:

        def answer(number: int, response: Response) -> Any:
            calls.append(number)
            response.headers["at"] = str(len(calls))
            if number == 2:
                response.rewrite("elsewhere")
            if number == 3:
                response.remove()
            return {"number": number, "call": len(calls)}

        if kind == "connection":

            @bus.subscribe("order", queue="ship")
            @inbox.once
            def ship(number: int, db: Db, response: Response) -> Any:
                return answer(number, response)

        elif kind == "none":

            @bus.subscribe("order", queue="ship")
            @inbox.once
            def ship_alone(number: int, response: Response) -> Any:
                return answer(number, response)

        else:

            @bus.subscribe("order", queue="ship")
            @inbox.once
            async def ship_async(number: int, response: Response) -> Any:
                return answer(number, response)

        @bus.subscribe("told", "elsewhere", queue="told")
        def told(body: Any, message: Message) -> None:
            answers.append((body, message.headers.get("at")))

        for _ in range(2):
            for number in (1, 2, 3):
                bus.publish("order", number, id=f"m{number}", callback="told", keep_result=True)
        bus.run(until_idle=True)
        assert calls == [1, 2, 3]
        expected: list[tuple[Any, str | None]] = [({"number": n, "call": n}, str(n)) for n in (1, 2)]
        assert sorted(answers, key=lambda one: one[0]["number"]) == [one for one in expected for _ in range(2)]
        assert bus.result("m3") == {"number": 3, "call": 3}
        bus.start()
        assert bus.call("order", 1, id="m1") == {"number": 1, "call": 1}
        bus.stop()
        inbox.close()
    assert calls == [1, 2, 3]


def test_o3_what_cannot_be_sent_is_no_matter_where_nobody_asks(tables: str) -> None:
    """O3: a handler may return what it likes to nobody."""
    inbox = Inbox(tables)
    with Bus("memory://") as bus:
        bus.subscribe("order", queue="ship")(inbox.once(_returns_an_object))
        repeated(bus, 2, 2)
        bus.run(until_idle=True)
        assert bus.broker.queue("ship").dead == 0
        inbox.close()


def _returns_an_object(number: int) -> Any:
    return threading.Lock()


def test_o3_f6_a_handler_with_an_inbox_takes_no_lists(tables: str) -> None:
    """O3, F6: the inbox would look at the first message of a list and lose the others."""
    inbox = Inbox(tables)
    with pytest.raises(InvalidOption, match="cannot take lists: its inbox knows one message at a time"):

        @Bus("memory://").subscribe("order", batch=10)
        @inbox.once
        def ship(numbers: list[int]) -> None: ...
