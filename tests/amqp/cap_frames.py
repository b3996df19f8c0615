"""Properties as CAP and its documentation's Java example write them, byte for byte."""

from __future__ import annotations

import struct


def table(entries: dict[str, str]) -> bytes:
    """A header table as CAP writes it: all values are long strings."""
    return b"".join(
        bytes((len(name),)) + name.encode() + b"S" + struct.pack(">I", len(value.encode())) + value.encode()
        for name, value in entries.items()
    )


def as_cap_sends_it(headers: dict[str, str]) -> bytes:
    """The properties of CAP's RabbitMQ transport: headers, persistent, and the message's id."""
    raw, own = table(headers), headers.get("cap-msg-id", "").encode()
    flags = 0x2000 | 0x1000 | 0x0080
    return struct.pack(">HI", flags, len(raw)) + raw + b"\x02" + bytes((len(own),)) + own


def as_java_sends_it(own: str, name: str) -> bytes:
    """The properties of the Java example in CAP's documentation: two headers and nothing else."""
    raw = table({"cap-msg-id": own, "cap-msg-name": name})
    return struct.pack(">HI", 0x2000, len(raw)) + raw
