"""Kept results (B20): each is a message of its own, with an id made from the queue and the handled message's id."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from remuda.bus.publishing import headers as names
from remuda.bus.publishing.reply import Reply
from remuda.model.queues.system_queues import RESULTS


def result_id(queue: str, message_id: str) -> str:
    """The id under which the result of a message in a queue is kept."""
    return "result-" + hashlib.sha256(f"{queue}\0{message_id}".encode("utf-8", "surrogatepass")).hexdigest()[:40]


def kept_result(
    queue: str, message_id: str, body: bytes, mime_type: str, more: Mapping[str, str] | None = None
) -> Reply:
    headers = {names.CORRELATION: message_id, **(more or {})}
    return Reply("remuda.result", body, mime_type, headers, RESULTS, result_id(queue, message_id))
