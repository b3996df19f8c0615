"""What the URL of a RabbitMQ says beyond where it is."""

from __future__ import annotations

from typing import Final
from urllib.parse import parse_qsl, urlencode

import msgspec

from remuda.amqp.options import ConnectionOptions, parse_url
from remuda.broker.rabbitmq.support import QueueKind
from remuda.log.streams.numbers import STREAM
from remuda.model.errors import InvalidOption
from remuda.model.options import read_enum

OPEN: Final = 20.0
"""Seconds within which a first connection must come about."""


class RabbitSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where RabbitMQ is, and which kind of queue to make."""

    connection: ConnectionOptions
    queue_type: QueueKind = QueueKind.QUORUM
    log: str | None = STREAM
    """The stream that is the event log; None keeps none."""

    @classmethod
    def read(cls, url: str) -> RabbitSettings:
        """From `amqp://user:password@host1,host2/vhost?queue_type=classic`; other options are the connection's."""
        place, _, query = url.partition("?")
        own: dict[str, str] = {}
        others: list[tuple[str, str]] = []
        for name, text in parse_qsl(query, keep_blank_values=True):
            if name in ("queue_type", "log"):
                own[name] = text
            else:
                others.append((name, text))
        connection = parse_url(place + (f"?{urlencode(others)}" if others else ""))
        if connection.attempts is not None:
            raise InvalidOption(
                "attempts in the URL would end the broker when RabbitMQ is away for a while; leave it out"
            )
        kind = read_enum("queue_type in the broker's URL", own.get("queue_type", QueueKind.QUORUM), QueueKind)
        return cls(
            connection=connection, queue_type=kind, log=None if own.get("log") == "no" else own.get("log", STREAM)
        )
