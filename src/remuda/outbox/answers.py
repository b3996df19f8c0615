"""What a handler answered, as the inbox keeps it for a message that comes again."""

from __future__ import annotations

from typing import Any

import msgspec

from remuda.bus.handlers.context import Context
from remuda.bus.publishing import bodies
from remuda.model.errors import InvalidMessage


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """The value that the handler returned, and what it said of the reply."""

    body: bytes
    mime_type: str
    headers: dict[str, str]
    rewritten: str | None = None
    removed: bool = False

    @staticmethod
    def of(result: Any, context: Context) -> bytes | None:
        """The answer as bytes; None if it says nothing, or nothing that could be sent."""
        if result is None and not context.changes_reply:
            return None
        try:
            body, mime_type = bodies.encode(result, context.encoding)
        except InvalidMessage:
            return None  # if it is wanted, the message fails for that
        if not context.changes_reply:
            return msgspec.msgpack.encode(Answer(body, mime_type, {}))
        response = context.response
        rewritten = response.callback if response.rewritten else None
        return msgspec.msgpack.encode(Answer(body, mime_type, response.headers, rewritten, response.removed))

    @staticmethod
    def again(kept: bytes | None, context: Context) -> Any:
        """The value to return for a message that comes again; says the same of the reply."""
        if kept is None:
            return None
        answer = msgspec.msgpack.decode(bytes(kept), type=Answer)
        if answer.headers or answer.removed or answer.rewritten is not None:
            context.response.headers |= answer.headers
            if answer.removed:
                context.response.remove()
            elif answer.rewritten is not None:
                context.response.rewrite(answer.rewritten)
        return bodies.decode(answer.body, answer.mime_type)
