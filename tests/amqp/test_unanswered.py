"""Requests that a broker does not answer: they are made again on a fresh channel, soon, and nobody who ends waits."""

from __future__ import annotations

import threading
import time

import pytest

from remuda.amqp.client.connection import Connection
from remuda.amqp.errors import ConnectionLost, ReplyTimeout
from tests.amqp.forgetful import LIMIT, ForgetfulBroker, eventually


def test_what_can_be_repeated_is_asked_again_on_a_fresh_channel() -> None:
    """Not after the whole time for a reply, and each time later than before."""
    with (
        ForgetfulBroker(QueueDeclare=2, BasicConsume=1) as broker,
        Connection(broker.url, retry_after=0.05, reply_timeout=LIMIT) as connection,
    ):
        channel = connection.channel()
        began = time.monotonic()
        channel.declare_queue("q")
        assert time.monotonic() - began >= 0.05 + 0.1, "twice as long the second time"
        consumer = channel.consume("q")
        assert list(channel.consumers.values()) == [consumer]
        assert time.monotonic() - began < LIMIT
        assert broker.count("QueueDeclare") >= 3
        assert broker.count("BasicConsume") >= 2
        assert connection.connects == 1, "the others go on"


def test_what_was_left_behind_is_closed_and_its_number_is_free_again() -> None:
    """A consumer that begins after all must not keep what it is sent."""
    with ForgetfulBroker(BasicConsume=1) as broker, Connection(broker.url, retry_after=0.05) as connection:
        channel = connection.channel()
        channel.consume("q")
        hung = next(number for number, name in broker.seen if name == "BasicConsume")
        assert channel.number != hung
        eventually(lambda: (hung, "ChannelClose") in broker.seen)
        assert hung in connection.restorer.left_behind
        broker.remember()
        eventually(lambda: not connection.restorer.left_behind)
        assert connection.channel().number == hung


def test_consumers_that_come_back_are_asked_for_until_they_are_answered() -> None:
    """B16: after a loss nobody waits for the answers, so nobody would miss them."""
    with ForgetfulBroker() as broker, Connection(broker.url, retry_after=0.05, backoff=0.01) as connection:
        channel = connection.channel()
        consumer = channel.consume("q")
        broker.forget["BasicConsume"] = 2
        broker.cut()
        eventually(lambda: channel.open and connection.connects == 2 and not channel.resuming)
        assert list(channel.consumers.values()) == [consumer]
        assert broker.count("BasicConsume") >= 1 + 3
        assert consumer.ended is None
        assert connection.connects == 2


def test_where_no_number_is_left_the_connection_is_made_anew() -> None:
    with (
        ForgetfulBroker(QueueDeclare=1, channel_max=1) as broker,
        Connection(broker.url, retry_after=1.0, backoff=0.01) as connection,
    ):
        channel = connection.channel()
        with pytest.raises(ConnectionLost, match="QueueDeclare was not answered"):
            channel.declare_queue("q")
        channel.declare_queue("q")
        assert connection.connects == 2


def test_what_cannot_be_repeated_is_not() -> None:
    with (
        ForgetfulBroker(QueueDelete=1) as broker,
        Connection(broker.url, retry_after=0.05, reply_timeout=1.5) as connection,
    ):
        with pytest.raises((ReplyTimeout, ConnectionLost)):
            connection.channel().delete_queue("q")
        assert broker.count("QueueDelete") == 1


def test_who_ends_does_not_wait_for_answers() -> None:
    """Neither those who wait already, nor those who ask later."""
    failures: list[Exception] = []
    with (
        ForgetfulBroker(BasicConsume=100, BasicCancel=100, QueueDelete=100) as broker,
        Connection(broker.url, retry_after=LIMIT, reply_timeout=2 * LIMIT) as connection,
    ):
        waiting, other = connection.channel(), connection.channel()

        def consume() -> None:
            try:
                waiting.consume("q")
            except (ReplyTimeout, ConnectionLost) as error:
                failures.append(error)

        thread = threading.Thread(target=consume, daemon=True)
        thread.start()
        eventually(lambda: broker.count("BasicConsume") == 1)
        began = time.monotonic()
        connection.hurry(0.1)
        thread.join(LIMIT)
        assert len(failures) == 1
        for _ in range(3):
            with pytest.raises((ReplyTimeout, ConnectionLost)):
                other.delete_queue("q")
        assert time.monotonic() - began < connection.options.retry_after


def test_who_waits_for_an_answer_does_not_spin(monkeypatch: pytest.MonkeyPatch) -> None:
    """While one channel is being opened, others wait for their turn; the connection's thread waits, too."""
    turns = 0
    turn = Connection.turn

    def counted(self: Connection, longest: float) -> None:
        nonlocal turns
        turns += 1
        turn(self, longest)

    monkeypatch.setattr(Connection, "turn", counted)
    with ForgetfulBroker(ChannelOpen=1) as broker, Connection(broker.url) as connection:
        opened: list[int] = []
        threads = [
            threading.Thread(target=lambda: opened.append(connection.channel().number), daemon=True) for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        eventually(lambda: broker.count("ChannelOpen") == 1 and len(connection.channels) == 2)
        before = turns
        time.sleep(0.3)
        assert turns - before < 50
        broker.remember()
        for thread in threads:
            thread.join(LIMIT)
        assert sorted(opened) == [1, 2]


def test_a_connection_that_two_close_at_once_is_closed_once() -> None:
    """A file number that is closed twice may belong to somebody else by then."""
    for _ in range(20):
        with ForgetfulBroker() as broker:
            connection = Connection(broker.url).open()
            errors: list[BaseException] = []
            together = threading.Barrier(4)

            def close(
                connection: Connection = connection,
                errors: list[BaseException] = errors,
                together: threading.Barrier = together,
            ) -> None:
                together.wait()
                try:
                    connection.close()
                except BaseException as error:
                    errors.append(error)

            closing = [threading.Thread(target=close) for _ in range(4)]
            for thread in closing:
                thread.start()
            for thread in closing:
                thread.join()
            assert not errors
