"""A message as it was delivered."""

from __future__ import annotations

from typing import Any

import msgspec

from remuda.amqp.codec.properties import Properties, decode_properties, raw_headers
from remuda.amqp.codec.tables import entry_value, scan


class Delivery(msgspec.Struct, frozen=True, gc=False):
    """A message with its raw properties. `tag` is its delivery tag, valid only during that `epoch` of its channel."""

    tag: int
    epoch: int
    redelivered: bool
    exchange: str
    routing_key: str
    raw_properties: bytes
    body: bytes
    message_count: int | None = None

    @property
    def properties(self) -> Properties:
        """The decoded properties; raises a `ProtocolError` if they are malformed."""
        return decode_properties(self.raw_properties)

    def header(self, name: str) -> Any:
        """One header, decoded without the others; None if it is not there."""
        raw = raw_headers(self.raw_properties)
        sought = name.encode()
        for entry in scan(raw):
            if entry.key == sought:
                return entry_value(raw, entry)
        return None
