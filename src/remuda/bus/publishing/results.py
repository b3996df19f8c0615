"""Results and errors by a message's id (B20): a kept result is a message of its own, found by an id made from both."""

from __future__ import annotations

import hashlib
from typing import Final

from remuda.bus.publishing import headers as names
from remuda.bus.publishing.reply import Reply

RESULTS: Final = "remuda.results"
"""The queue of kept results. They are done at once, and stay in the log as long as messages that succeeded."""


def result_id(queue: str, message_id: str) -> str:
    """The id under which the result of a message in a queue is kept."""
    return "result-" + hashlib.sha256(f"{queue}\0{message_id}".encode("utf-8", "surrogatepass")).hexdigest()[:40]


def kept_result(queue: str, message_id: str, body: bytes, mime_type: str) -> Reply:
    headers = {names.CORRELATION: message_id}
    return Reply("remuda.result", body, mime_type, headers, RESULTS, result_id(queue, message_id))
