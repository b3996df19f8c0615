"""A client's login: SASL's PLAIN, and RabbitMQ's own AMQPLAIN."""

from __future__ import annotations

from typing import Final

from remuda.amqp.errors import ProtocolError
from remuda.amqp.tables import decode_table

MECHANISMS: Final = b"PLAIN AMQPLAIN"


def credentials(mechanism: str, response: bytes) -> tuple[str, str] | None:
    """Name and password; None if they cannot be read."""
    if mechanism == "PLAIN":
        parts = response.split(b"\x00")
        if len(parts) != 3:
            return None
        return _text(parts[1]), _text(parts[2])
    if mechanism == "AMQPLAIN":
        try:
            table = decode_table(response)
        except (ProtocolError, IndexError):
            return None
        name, password = table.get("LOGIN"), table.get("PASSWORD")
        if isinstance(name, str) and isinstance(password, str):
            return name, password
    return None


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")
