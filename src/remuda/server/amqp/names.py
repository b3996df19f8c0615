"""Vhosts: in the broker, names of `/` stay as they are, and those of other vhosts begin with the vhost."""

from __future__ import annotations

from typing import Final

import msgspec

from remuda.model.texts import MAX_NAME_BYTES
from remuda.server.amqp.failures import ACCESS_REFUSED, PRECONDITION_FAILED, Failure

DEFAULT_EXCHANGE: Final = "amq.default"
"""The broker's name of the exchange that clients call by the empty name."""
DEAD_LETTERS: Final = "amq.dead-letters."
"""The prefix of the queue through which a queue's dead letters pass."""
REPLY_TO: Final = "amq.rabbitmq.reply-to"


class VHost(msgspec.Struct, frozen=True):
    """One vhost's names."""

    name: str
    others: frozenset[str] = frozenset()
    """The other vhosts, whose names `/` must not reach."""

    @property
    def prefix(self) -> str:
        return "" if self.name == "/" else f"{self.name}/"

    def queue(self, name: str) -> str:
        """The broker's name of a queue."""
        return self._full("queue", name)

    def exchange(self, name: str) -> str:
        """The broker's name of an exchange."""
        return self._full("exchange", name or DEFAULT_EXCHANGE)

    def short(self, full: str) -> str:
        """What clients of this vhost call it."""
        return full.removeprefix(self.prefix)

    def holds(self, full: str) -> bool:
        """Whether a name of the broker belongs to this vhost."""
        if self.prefix:
            return full.startswith(self.prefix)
        return full.partition("/")[0] not in self.others or "/" not in full

    def _full(self, kind: str, name: str) -> str:
        full = self.prefix + name
        if not self.holds(full):
            raise Failure(ACCESS_REFUSED, f"{kind} '{name}' belongs to another vhost than '{self.name}'")
        if not full.isprintable() or len(full.encode("utf-8", "replace")) > MAX_NAME_BYTES:
            text = f"a name, with its vhost, is at most {MAX_NAME_BYTES} bytes of printable text"
            raise Failure(PRECONDITION_FAILED, text)
        return full
