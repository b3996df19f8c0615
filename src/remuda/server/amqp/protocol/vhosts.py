"""Vhosts: in the broker, names of `/` stay as they are, and those of other vhosts begin with `vhost:NAME/`.

In the prefix, `%`, `/` and unprintable characters of the vhost's name are percent-encoded, so no two vhosts share a
name, whatever they are called. Names of `/` may not begin with `vhost:`, so they share none with another vhost either,
whether it exists or not.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final
from urllib.parse import quote, unquote

import msgspec

from remuda.broker.shared.wire.permissions import OF_VHOSTS
from remuda.model.values.texts import MAX_NAME_BYTES
from remuda.server.amqp.protocol.failures import ACCESS_REFUSED, PRECONDITION_FAILED, Failure

DEFAULT_EXCHANGE: Final = "amq.default"
"""The broker's name of the exchange that clients call by the empty name."""
DEAD_LETTERS: Final = "amq.dead-letters."
"""The prefix of the queue through which a queue's dead letters pass."""
REPLY_TO: Final = "amq.rabbitmq.reply-to"
ROOT: Final = "/"
"""The vhost whose names are the broker's own."""


class VHost(msgspec.Struct, frozen=True):
    """One vhost's names."""

    name: str

    @property
    def prefix(self) -> str:
        return prefix_of(self.name)

    @lru_cache(maxsize=4096)  # noqa: B019 - equal vhosts share the names
    def queue(self, name: str) -> str:
        """The broker's name of a queue."""
        return self._full("queue", name)

    @lru_cache(maxsize=4096)  # noqa: B019
    def exchange(self, name: str) -> str:
        """The broker's name of an exchange."""
        return self._full("exchange", name or DEFAULT_EXCHANGE)

    def short(self, full: str) -> str:
        """What clients of this vhost call it."""
        return full.removeprefix(self.prefix)

    def holds(self, full: str) -> bool:
        """Whether a name of the broker belongs to this vhost."""
        return split_name(full)[0] == self.prefix

    def _full(self, kind: str, name: str) -> str:
        full = self.prefix + name
        if not self.prefix and name.startswith(OF_VHOSTS):
            text = f"{kind} '{name}' cannot be in vhost '/': names of other vhosts begin with '{OF_VHOSTS}'"
            raise Failure(ACCESS_REFUSED, text)
        if not full.isprintable() or len(full.encode("utf-8", "replace")) > MAX_NAME_BYTES:
            text = f"a name, with its vhost, is at most {MAX_NAME_BYTES} bytes of printable text"
            raise Failure(PRECONDITION_FAILED, text)
        return full


@lru_cache(maxsize=1024)
def prefix_of(vhost: str) -> str:
    """What the broker's names of a vhost begin with."""
    if vhost == ROOT:
        return ""
    return f"{OF_VHOSTS}{''.join(one if one.isprintable() and one not in '%/' else quote(one, '') for one in vhost)}/"


def split_name(full: str) -> tuple[str, str]:
    """The prefix of a name's vhost, and what clients of that vhost call it."""
    if not full.startswith(OF_VHOSTS):
        return "", full
    vhost, slash, short = full.partition("/")
    return (vhost + slash, short) if slash else ("", full)


def vhost_name(full: str) -> str:
    """The name of the vhost that a name of the broker belongs to."""
    prefix, _ = split_name(full)
    return unquote(prefix.removeprefix(OF_VHOSTS).removesuffix("/")) if prefix else ROOT


def dead_letters_of(full: str) -> str:
    """The queue through which a queue's dead letters pass."""
    prefix, short = split_name(full)
    return f"{prefix}{DEAD_LETTERS}{short}"
