"""A client's login: SASL's PLAIN, and RabbitMQ's own AMQPLAIN."""

from __future__ import annotations

from typing import Any, Final

from remuda.amqp.codec.methods import ConnectionStartOk
from remuda.amqp.codec.tables import decode_table
from remuda.amqp.errors import ProtocolError

MECHANISMS: Final = b"PLAIN AMQPLAIN"
EXTERNAL: Final = "EXTERNAL"
"""Offered to clients with a certificate: its common name is the user's."""


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


def common_name(certificate: Any) -> str | None:
    """The common name of a client's certificate, if it showed one that was verified."""
    if not isinstance(certificate, dict):
        return None
    names = [value for part in certificate.get("subject", ()) for kind, value in part if kind == "commonName"]
    return str(names[-1]) if names else None


def login_name(method: ConnectionStartOk) -> str:
    """The name that a client wanted to log in as, for the log."""
    found = credentials(method.mechanism, method.response)
    return "" if found is None else found[0][:64]


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")
