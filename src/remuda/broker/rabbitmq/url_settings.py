"""The broker's options in the URL of a RabbitMQ."""

from __future__ import annotations

from typing import Final
from urllib.parse import parse_qsl, urlencode

import msgspec

from remuda.amqp.connection_options import URL_OPTIONS, ConnectionOptions, parse_url
from remuda.broker.rabbitmq.support import QueueKind
from remuda.log.streams.stream_numbers import STREAM
from remuda.log.streams.stream_source import BROKER_OPTIONS
from remuda.model.errors import InvalidOption
from remuda.model.message import MAX_PRIORITY
from remuda.model.values.option_reading import read_enum, unknown

OPEN: Final = 20.0
"""Seconds within which the first connection must succeed, unless `reply_timeout` is less."""


class RabbitSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How to connect to RabbitMQ, and which kind of queue to create."""

    connection: ConnectionOptions
    queue_type: QueueKind = QueueKind.QUORUM
    max_priority: int = MAX_PRIORITY
    """The highest priority of a classic queue. RabbitMQ keeps a queue within the queue for each."""
    uses_existing: bool = False
    """Whether queues that another program declared with other arguments are used as they are."""
    log: str | None = STREAM
    """The stream that is the event log; None for no log."""

    @classmethod
    def read(cls, url: str) -> RabbitSettings:
        """From `amqp://user:password@host1,host2/vhost?queue_type=classic`; other options are the connection's."""
        place, _, query = url.partition("?")
        own: dict[str, str] = {}
        others: list[tuple[str, str]] = []
        for name, text in parse_qsl(query, keep_blank_values=True):
            if name in BROKER_OPTIONS:
                own[name] = text
            elif name in URL_OPTIONS:
                others.append((name, text))
            else:
                raise unknown("option", name, [*sorted(BROKER_OPTIONS), *URL_OPTIONS], "the broker's URL")
        connection = parse_url(place + (f"?{urlencode(others)}" if others else ""))
        if connection.attempts is not None:
            raise InvalidOption(
                "attempts in the URL would end the broker when RabbitMQ is away for a while; leave it out"
            )
        kind = read_enum("queue_type in the broker's URL", own.get("queue_type", QueueKind.QUORUM), QueueKind)
        highest = own.get("max_priority", str(MAX_PRIORITY))
        if not (highest.isascii() and highest.isdigit() and len(highest) < 3 and int(highest) <= MAX_PRIORITY):
            raise InvalidOption(f"max_priority in the broker's URL must be from 0 to {MAX_PRIORITY}, not {highest!r}")
        if own.get("existing", "refuse") not in ("use", "refuse"):
            raise InvalidOption(f"existing in the broker's URL must be use or refuse, not {own['existing']!r}")
        log = own.get("log", STREAM)
        return cls(
            connection=connection,
            queue_type=kind,
            max_priority=int(highest),
            uses_existing=own.get("existing") == "use",
            log=None if log == "no" else log,
        )
