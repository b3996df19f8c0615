"""Logs of either kind, written by the same few words."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from remuda import Message, open_broker
from remuda.amqp.client.connection import Connection
from remuda.log.eventlog import EventLog, open_event_log
from remuda.log.streams.stream_numbers import reference
from remuda.log.streams.stream_writer import StreamWriter
from remuda.model.ids import Snowflakes
from remuda.model.messages import Messages
from remuda.model.records import Appended, Event, Events
from remuda.model.state import State


class Written(Protocol):
    """A log that is being written: messages go to the queue `q`."""

    url: str

    def publish(self, messages: Sequence[Message]) -> list[str]:
        """The ids."""
        ...

    def handle(self, count: int) -> None:
        """The oldest messages that wait are fetched, succeed and are completed."""
        ...

    def close(self) -> None: ...


class WrittenDirectory:
    def __init__(self, path: Path) -> None:
        self.url = str(path)
        self._broker = open_broker(path, sync="os")
        self._broker.create_queue("q", type="pull")

    def publish(self, messages: Sequence[Message]) -> list[str]:
        return [self._broker.publish(message).id for message in messages]

    def handle(self, count: int) -> None:
        for _ in range(count):
            delivery = self._broker.pull("q")
            assert delivery is not None
            delivery.ack()

    def close(self) -> None:
        self._broker.close()


class WrittenStream:
    def __init__(self, url: str) -> None:
        self.url = f"{url}?log=log-{uuid.uuid4().hex[:8]}"
        self.writer = StreamWriter(self.url)
        self._ids = Snowflakes(7)
        self._waiting: list[str] = []

    def publish(self, messages: Sequence[Message]) -> list[str]:
        given: list[str] = []
        for message in messages:
            id = message.id or str(self._ids.take_one(now()))
            columns = Messages(
                bodies=[message.body], name=message.name, ids=[id], created=now(), headers=message.headers,
                object=message.object, key=message.key,
            )  # fmt: skip
            self.writer.append([Appended(0, now(), columns, ("q",))])
            given.append(id)
        self.writer.flush()
        self._waiting += given
        return given

    def handle(self, count: int) -> None:
        for id in self._waiting[:count]:
            tell(self.writer, id, State.FETCHED, State.SUCCESS, State.COMPLETED)
        del self._waiting[:count]
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()
        with Connection(self.url.partition("?")[0]) as connection:
            connection.channel().delete_queue(self.writer.stream)


def tell(writer: StreamWriter, id: str, *states: State, queue: str = "q") -> None:
    """Events of one message."""
    rows = [Event(queue, state, reference(id), consumer="c", attempt=1) for state in states]
    writer.append([Events(0, now(), rows)])


def now() -> int:
    return time.time_ns() // 1000


def read(written: Written) -> EventLog:
    return open_event_log(written.url)
