"""O2: at once after the commit, by scan after a crash; shared, in order, never skipped, never in a hot loop."""

from __future__ import annotations

import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any, cast

import psycopg
import pytest

from remuda import Bus
from remuda.bus.settings.retry import RetryPolicy
from remuda.model.errors import StorageError
from remuda.outbox import Outbox, Status
from remuda.outbox.database.connections import PostgresSession
from remuda.outbox.database.feeds import LeaseLost, PostgresFeed, open_feed
from remuda.outbox.database.table_names import Names
from remuda.outbox.records import LANES
from tests.outbox.kit import app, connect, eventually


def test_a_commit_is_sent_at_once(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """O2: long before the idle poll comes round, which here is an hour, also for commits of other connections."""
    monkeypatch.setattr("remuda.outbox.relay._IDLE", 3600)
    with app(url, lease="6h") as made:
        made.bus.start()
        connection = made.connect()
        for number in range(3):
            time.sleep(0.5)  # long enough for the relay to be idle
            made.bus.publish("order", number, transaction=connection)
            connection.commit()
            eventually(lambda number=number: number in made.got)  # type: ignore[misc]
        connection.close()


def test_a_row_that_becomes_visible_late_is_not_skipped(postgres_url: str) -> None:
    """O2: its transaction began first, took the lower number, and ended last."""
    with app(postgres_url) as made:
        early, late = psycopg.connect(postgres_url), psycopg.connect(postgres_url)
        made.bus.publish("order", "early", transaction=early)
        for number in range(5):
            made.bus.publish("order", number, transaction=late)
            late.commit()
            assert made.run() == list(range(number + 1)), "others do not wait for the open transaction"
        early.commit()
        assert made.run() == [0, 1, 2, 3, 4, "early"]
        early.close()
        late.close()


def test_a_commit_that_stalls_is_not_skipped(postgres_url: str) -> None:
    """O2: it has its place in the order, a number above all that the relay's snapshot knows, and comes late."""
    with app(postgres_url) as made, psycopg.connect(postgres_url) as holder, psycopg.connect(postgres_url) as stalled:
        holder.execute("CREATE TABLE slow (x int)")
        holder.execute(
            "CREATE FUNCTION stall() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN PERFORM pg_advisory_xact_lock_shared(42); RETURN NULL; END $$"
        )
        holder.execute(
            "CREATE CONSTRAINT TRIGGER stall AFTER INSERT ON slow DEFERRABLE INITIALLY DEFERRED "
            "FOR EACH ROW EXECUTE FUNCTION stall()"
        )
        holder.commit()
        feed = PostgresFeed(postgres_url, Names(), "watching")
        feed.lease(60)
        holder.execute("SELECT pg_advisory_xact_lock(42)")
        made.bus.publish("order", "stalled", transaction=stalled)
        stalled.execute("INSERT INTO slow VALUES (1)")
        committing = threading.Thread(target=stalled.commit)
        committing.start()
        position = "SELECT is_called FROM remuda_position"
        eventually(lambda: holder.execute(position.encode()).fetchone() == (True,))
        for _ in range(4):
            assert feed.read(10) is None
        holder.rollback()
        committing.join(60)
        batch = feed.read(10)
        assert batch is not None
        assert [row.topic for row in batch.rows] == ["order"]
        feed.advance(batch, [])
        assert feed.read(10) is None
        feed.release()
        feed.close()


def test_the_order_of_a_key_is_that_of_the_commits(postgres_url: str) -> None:
    """O2: not that of the inserts, and also when the relay comes later than both."""
    with app(postgres_url) as made:
        connections = [psycopg.connect(postgres_url) for _ in range(6)]
        for number, connection in enumerate(connections):
            made.bus.publish("order", number, key="k", transaction=connection)
        for number in (3, 0, 5, 1, 4, 2):
            connections[number].commit()
        assert made.run() == [3, 0, 5, 1, 4, 2]
        for connection in connections:
            connection.close()


def writers(url: str, bus: Bus, count: int, each: int) -> list[threading.Thread]:
    def write(writer: int) -> None:
        connection = connect(url)
        for number in range(each):
            with bus.transaction(connection):
                bus.publish("order", [writer, number], key=str(writer))
        connection.close()

    return [threading.Thread(target=write, args=(number,)) for number in range(count)]


def in_order(got: list[Any]) -> bool:
    seen: dict[int, int] = {}
    for writer, number in got:
        if number != seen.get(writer, -1) + 1:
            return False
        seen[writer] = number
    return True


def test_two_relays_share_and_none_doubles(url: str, tmp_path: Path) -> None:
    """O2: each gets half of the lanes; every message is sent once, each key in order."""
    with app(url, lease="9s") as one:
        # Two relays of one bus: what either sends arrives at the same handlers.
        other = Outbox(_Twin(one.bus), url, lease="9s").relay  # type: ignore[arg-type]
        one.bus.companions.append(other)
        one.bus.start()
        eventually(lambda: sorted(map(len, _relays(one.outbox).values())) == [LANES // 2] * 2)
        threads = writers(url, one.bus, 6, 40)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        eventually(lambda: len(one.got) >= 240)
        time.sleep(0.3)
        assert Counter(map(str, one.got)).most_common(1)[0][1] == 1
        assert len(one.got) == 240
        assert in_order(one.got)
        assert min(one.outbox.relay.sent, other.sent) > 0, "both had a part in it"
        other.stop()
        eventually(lambda: list(map(len, _relays(one.outbox).values())) == [LANES])


class _Twin:
    """A second outbox's bus: the same broker."""

    def __init__(self, bus: Bus) -> None:
        self.outbox = None
        self.companions: list[Any] = []
        self._bus = bus

    @property
    def broker(self) -> Any:
        return self._bus.broker


def _relays(outbox: Outbox) -> dict[str, list[int]]:
    from remuda.outbox.admin import Administration

    with Administration.open(outbox.url, outbox.names) as administration:
        return administration.relays()


def test_a_relay_that_was_frozen_can_do_no_harm(url: str) -> None:
    """O2: its lease is over by the database's clock, so what it notes is not taken."""
    with app(url) as made:
        connection = made.connect()
        made.bus.publish("order", 1, transaction=connection)
        connection.commit()
        frozen = open_feed(url, Names(), "frozen")
        frozen.lease(0.2)
        batch = frozen.read(10)
        assert batch is not None
        time.sleep(0.4)
        heir = open_feed(url, Names(), "heir")
        heir.lease(10)
        assert len(heir.lanes) == LANES
        second = heir.read(10)
        assert second is not None
        assert [row.id for row in second.rows] == [row.id for row in batch.rows]
        heir.advance(second, [])
        with pytest.raises(LeaseLost):
            frozen.advance(batch, [])
        assert heir.read(10) is None
        frozen.close()
        heir.close()
        connection.close()


def test_leases_do_not_depend_on_the_clocks_of_relays(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """O2: a machine whose clock is a day ahead takes no lanes away, and one a day behind loses none."""
    with app(url):
        holder = open_feed(url, Names(), "holder")
        holder.lease(30)
        real = time.time
        for skew in (86_400, -86_400):
            monkeypatch.setattr(time, "time", lambda skew=skew: real() + skew)
            monkeypatch.setattr(time, "time_ns", lambda skew=skew: int((real() + skew) * 1e9))
            other = open_feed(url, Names(), f"skewed {skew}")
            other.lease(30)
            assert not set(other.lanes) & set(holder.lanes)
            assert holder.renew(30) is False, "shares are dealt anew, since there are more relays"
            other.release()
            other.close()
        holder.close()


class Stubborn:
    """A broker in front of the bus's own that fails as a test says."""

    def __init__(self, bus: Bus) -> None:
        self._broker = bus.broker
        bus._lazy.broker = cast(Any, self)
        self.failing: Exception | None = None
        self.calls = 0

    def publish(self, *arguments: Any, **options: Any) -> Any:
        self.calls += 1
        if self.failing is not None:
            raise self.failing
        return self._broker.publish(*arguments, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._broker, name)


def test_a_broker_that_is_down_costs_time_only(url: str) -> None:
    """O2: backoff and no hot loop; nothing is lost, nothing counts as an attempt, and the order stays."""
    with app(url) as made:
        broker = Stubborn(made.bus)
        broker.failing = StorageError("the broker is away")
        connection = made.connect()
        for number in range(20):
            made.bus.publish("order", number, transaction=connection)
            connection.commit()
        connection.close()
        made.bus.start()
        eventually(lambda: broker.calls and made.outbox.relay.trouble)
        time.sleep(1.5)
        assert broker.calls <= 8
        assert made.outbox.counts() == {
            Status.SCHEDULED: 20, Status.SUCCEEDED: 0, Status.DELAYED: 0, Status.FAILED: 0
        }  # fmt: skip
        assert made.outbox.relay.trouble is not None
        health = made.bus.health()
        assert (health["live"], health["ready"], list(health["problems"])) == (True, False, ["relay"])
        broker.failing = None
        eventually(lambda: made.got == list(range(20)))
        eventually(lambda: made.bus.health() == {"live": True, "ready": True})


def test_idle_it_asks_at_most_twice_a_second(postgres_url: str) -> None:
    """O2."""
    with app(postgres_url) as made, psycopg.connect(postgres_url, autocommit=True) as watcher:
        made.bus.start()
        eventually(lambda: made.outbox.relay._drained >= 2)
        asked = 0
        began = time.monotonic()
        with pytest.MonkeyPatch.context() as patch:
            real = PostgresSession.run

            def counted(self: PostgresSession, *names: Any, **given: Any) -> Any:
                nonlocal asked
                asked += 1
                return real(self, *names, **given)

            patch.setattr(PostgresSession, "run", counted)
            time.sleep(4)
        assert asked / (time.monotonic() - began) <= 2
        # The server agrees that nothing else is asked: the last statement of the relay is one of those.
        seen = watcher.execute("SELECT query FROM pg_stat_activity WHERE application_name = 'remuda outbox'").fetchall()
        assert len(seen) == 1


def test_refused_messages_are_held_tried_again_and_given_up(url: str) -> None:
    """O2, B5: by schedule; the threshold callback comes once; a person can have it retried."""
    told: list[tuple[str, str, str]] = []
    policy = RetryPolicy(max_retries=3, intervals=(10_000,))
    with app(url, retry=policy, on_threshold=lambda *what: told.append(what)) as made:
        made.bus.broker.create_queue("small", type="pull", patterns=["big"], message_size_limit=10)
        connection = made.connect()
        bad = made.bus.publish("big", "x" * 100, transaction=connection)
        good = made.bus.publish("big", "ok", transaction=connection)
        connection.commit()
        made.bus.start()
        eventually(lambda: told)
        status = made.outbox.status(bad)
        assert status is not None
        assert (status.status, status.attempts) == (Status.FAILED, 4)
        assert "MessageTooLarge" in (status.reason or "")
        assert [one.id for one in made.outbox.messages("failed")] == [bad]
        assert made.outbox.status(good).status is Status.SUCCEEDED  # type: ignore[union-attr]
        time.sleep(0.2)
        assert told == [(bad, "big", status.reason)]
        made.bus.broker.configure_queue("small", message_size_limit=0)
        assert made.outbox.retry([bad]) == 1
        eventually(lambda: made.outbox.status(bad).status is Status.SUCCEEDED)  # type: ignore[union-attr]
        assert made.outbox.retry() == 0
        connection.close()


def test_behind_a_held_message_its_key_waits_and_others_do_not(url: str) -> None:
    """O2: the order of a key holds also when the broker refuses one of its messages for a while."""
    with app(url, batch=1, retry=RetryPolicy(max_retries=1000, intervals=(50_000,))) as made:
        made.bus.broker.create_queue("small", type="pull", patterns=["big"], message_size_limit=10)
        connection = made.connect()
        made.bus.publish("big", "x" * 100, key="a", transaction=connection)
        made.bus.publish("order", 1, key="a", transaction=connection)
        made.bus.publish("order", 2, key="b", transaction=connection)
        connection.commit()
        made.bus.start()
        eventually(lambda: made.got == [2])
        made.bus.publish("order", 3, key="a", transaction=connection)
        connection.commit()
        eventually(lambda: made.outbox.counts()[Status.DELAYED] == 3)
        assert made.got == [2]
        made.bus.broker.configure_queue("small", message_size_limit=0)
        eventually(lambda: len(made.got) == 4)
        assert made.got == [2, "x" * 100, 1, 3]
        connection.close()


def test_the_default_schedule_is_caps() -> None:
    """B5: three at once, then from the fourth minute one each minute, fifty in all."""
    with Bus("memory://") as bus:
        policy = Outbox(bus, "sqlite:///x.db").relay._options.retry
    waits = [policy.after(attempt) for attempt in range(1, 51)]
    assert waits[:4] == [0, 0, 240_000_000, 60_000_000]
    assert waits[48] == 60_000_000
    assert waits[49] is None


def test_the_collector_keeps_what_is_not_sent_and_what_is_young(url: str) -> None:
    """L6, O5: succeeded rows go after their retention, failed ones after theirs; it says what it removed."""
    with app(url, keep_succeeded="0s", keep_failed="0s", retry="never") as made:
        made.bus.broker.create_queue("small", type="pull", patterns=["big"], message_size_limit=10)
        connection = made.connect()
        made.bus.publish("big", "x" * 100, transaction=connection)
        made.bus.publish_many("order", range(50), transaction=connection)
        connection.commit()
        made.run()
        waiting = made.bus.publish("order", 50, transaction=connection)
        connection.commit()
        removed = made.outbox.collect()
        removed = _sum(removed, made.outbox.collect())
        assert removed.failed == 1
        assert made.outbox.status(waiting).status is Status.SCHEDULED  # type: ignore[union-attr]
        assert made.run()[-1] == 50
        removed = _sum(removed, made.outbox.collect())
        removed = _sum(removed, made.outbox.collect())
        connection.close()
        if url.startswith("sqlite"):
            assert removed.succeeded == 52
            assert sum(made.outbox.counts().values()) == 0


def _sum(one: Any, other: Any) -> Any:
    return type(one)(one.succeeded + other.succeeded, one.failed + other.failed, one.inbox + other.inbox)


def test_slots_rotate_and_are_emptied(postgres_url: str) -> None:
    """L6, O2: by TRUNCATE; an open transaction that has written to a slot keeps it, and loses nothing."""
    with app(postgres_url, keep_succeeded="0s", lease="1s") as made:
        late = psycopg.connect(postgres_url)
        made.bus.publish("order", "late", transaction=late)
        connection = psycopg.connect(postgres_url)
        sent = 0
        for _ in range(12):
            made.bus.publish_many("order", range(sent, sent + 10), transaction=connection)
            connection.commit()
            sent += 10
            made.run()
            feed = PostgresFeed(postgres_url, Names(), "collector")
            feed.lease(5)
            feed.read(1)
            feed.checkpoint()
            feed.lease(5)
            made.outbox.collect()
            feed.release()
            feed.close()
        late.commit()
        assert sorted(map(str, made.run())) == sorted([*map(str, range(sent)), "late"])
        for table in range(4):
            size = connection.execute(f"SELECT count(*) FROM remuda_messages_{table}".encode()).fetchone()
            assert size is not None
            assert size[0] <= 60
        late.close()
        connection.close()


def test_q12_of_two_rows_with_one_id_each_has_its_own_fate(url: str) -> None:
    """Q12, O2: the accepted one is not sent again because the other was refused."""
    with app(url, retry="never") as made:
        made.bus.broker.create_queue("once", type="pull", patterns=["single"], unique_ids=True)
        connection = made.connect()
        made.bus.publish("single", "first", id="a", transaction=connection)
        made.bus.publish("single", "second", id="a", transaction=connection)
        connection.commit()
        made.run()
        assert (made.outbox.counts()[Status.FAILED], made.outbox.counts()[Status.DELAYED]) == (1, 0)
        held = made.outbox.messages("failed")
        assert [one.id for one in held] == ["a"]
        assert "Duplicate" in (held[0].reason or "")
        delivery = made.bus.broker.pull("once", 5)
        assert delivery is not None
        assert delivery.bodies == [b'"first"']
        delivery.ack()
        assert made.outbox.retry(["a"]) == 1
        made.run()
        again = made.bus.broker.pull("once", 5)
        assert again is not None
        assert again.bodies == [b'"second"']
        connection.close()


def test_o2_what_is_delayed_can_be_sent_at_once(url: str) -> None:
    """An operator need not wait for the next attempt once the cause is gone."""
    with app(url, retry=RetryPolicy(max_retries=10, intervals=(3_600_000_000,))) as made:
        made.bus.broker.create_queue("small", type="pull", patterns=["big"], message_size_limit=10)
        connection = made.connect()
        held = made.bus.publish("big", "x" * 100, transaction=connection)
        connection.commit()
        made.bus.start()
        eventually(lambda: made.outbox.counts()[Status.DELAYED] == 1)
        made.bus.broker.configure_queue("small", message_size_limit=0)
        assert made.outbox.retry() == 1
        eventually(lambda: made.outbox.status(held).status is Status.SUCCEEDED)  # type: ignore[union-attr]
        connection.close()
