"""Kept results (B20): each is a message of its own, with an id made from the queue and the handled message's id."""

from __future__ import annotations

import hashlib
from typing import Final

from remuda.bus.publishing import headers as names
from remuda.bus.publishing.reply import Reply

RESULTS: Final = "remuda.results"
"""The queue of kept results. They are settled at once, and stay in the log as long as any message that succeeded."""


def result_id(queue: str, message_id: str) -> str:
    """The id under which the result of a message in a queue is kept."""
    return "result-" + hashlib.sha256(f"{queue}\0{message_id}".encode("utf-8", "surrogatepass")).hexdigest()[:40]


def kept_result(queue: str, message_id: str, body: bytes, mime_type: str) -> Reply:
    headers = {names.CORRELATION: message_id}
    return Reply("remuda.result", body, mime_type, headers, RESULTS, result_id(queue, message_id))
