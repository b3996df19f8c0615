"""One message as a document: from the event log, or of a dead letter from its own headers."""

from __future__ import annotations

import msgspec

from remuda.broker import checks
from remuda.broker.rabbitmq.numbers import id_of, number_of
from remuda.broker.rabbitmq.operating import Operating
from remuda.broker.rabbitmq.runtime import Runtime
from remuda.model.document import Document
from remuda.model.errors import NotFound


def document_of(runtime: Runtime, operating: Operating, message: str | int) -> Document:
    """The life of a message, by its id or its number."""
    runtime.check_open()
    if isinstance(message, int) and not isinstance(message, bool):
        known = operating.remembered(message)
        if known is not None:
            return known
    name = checks.message_name(message)
    own = id_of(name) if isinstance(name, int) else name
    found = None if own is None else runtime.document(own)
    if own is None or found is None:
        raise NotFound(f"there is no message {message!r}; it may have been collected after its retention")
    return msgspec.structs.replace(found, offset=number_of(own))
