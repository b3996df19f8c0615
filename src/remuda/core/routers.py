"""Routers (Q18): a name in front of several queues and topics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from remuda.model.message import CORRELATION
from remuda.model.messages import Messages, cell
from remuda.model.records import Binding, RouterKind


class Router:
    """Chooses bindings for messages. Of equal priority, the binding named first comes first."""

    def __init__(self, kind: RouterKind, bindings: tuple[Binding, ...]) -> None:
        self.kind = kind
        self.bindings = tuple(sorted(bindings, key=lambda binding: -binding.priority))
        self._turn = 0

    def choose(self, messages: Messages) -> Iterator[tuple[tuple[Binding, ...], Messages]]:
        """Bindings to try, with the messages for them. `first` goes down the list until one takes the message."""
        if not self.bindings:
            return
        if self.kind is RouterKind.DISTRIBUTE:
            yield self.bindings, messages
        elif self.kind is RouterKind.FIRST:
            for row in range(len(messages)):
                yield self.bindings, messages.slice(row, row + 1)
        else:
            for row in range(len(messages)):
                turn = self._turn % len(self.bindings)
                self._turn += 1
                yield (self.bindings[turn],), messages.slice(row, row + 1)


def copies_of(messages: Messages, binding: Binding) -> Messages:
    """Copies for one binding: new ids, the original's id as correlation."""
    headers: list[Mapping[str, str]] = []
    for row in range(len(messages)):
        original: Mapping[str, str] = cell(messages.headers, row)
        headers.append({**original, CORRELATION: messages.id(row)})
    copies = msgspec.structs.replace(messages, ids=None, headers=headers)
    if binding.topic is not None:
        copies = msgspec.structs.replace(copies, name=binding.topic, topics=())
    return copies
