"""Messages that result from a handler call: replies, reports of failures, and results that are kept (B20)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import msgspec

from remuda.bus.publishing import headers as names
from remuda.model.queues.system_queues import RESULTS


class Reply(msgspec.Struct, frozen=True):
    """A return value for the callback, a kept result, or the report of a failure.

    With `queue`, it goes to that queue only, whatever is subscribed to the topic.
    """

    topic: str
    body: bytes
    mime_type: str
    headers: dict[str, str]
    queue: str | None = None
    id: str = ""


def result_id(queue: str, message_id: str) -> str:
    """The id under which the result of a message in a queue is kept, as a message of its own."""
    return "result-" + hashlib.sha256(f"{queue}\0{message_id}".encode("utf-8", "surrogatepass")).hexdigest()[:40]


def kept_result(
    queue: str, message_id: str, body: bytes, mime_type: str, more: Mapping[str, str] | None = None
) -> Reply:
    headers = {names.CORRELATION: message_id, **(more or {})}
    return Reply("remuda.result", body, mime_type, headers, RESULTS, result_id(queue, message_id))
