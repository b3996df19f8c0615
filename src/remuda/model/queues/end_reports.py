"""Who is told when a message ends without success (B9), and what: by the bus, or by the broker if no handler had it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from remuda.model import cap_headers
from remuda.model.message import CORRELATION

CALLBACK: Final = cap_headers.CALLBACK
FAILURE_CALLBACK: Final = "remuda-failure-callback"
"""The topic to which the error is published if the message ends without success."""
REPLY_TOPIC: Final = "remuda-reply."
"""The prefix of the topics to which the replies to `call` go. A failure is reported there without a
`failure_callback`."""
TOLD_TOPIC: Final = "remuda-told."
"""The prefix of the topics under which runs of workflows are told how messages ended that they wait for."""
AWAITED: Final = (REPLY_TOPIC, TOLD_TOPIC)
"""Whoever gave such a callback waits, and is told also if the handler sends no reply, or sends it elsewhere."""
SEQUENCE: Final = cap_headers.SEQUENCE
EXCEPTION: Final = cap_headers.EXCEPTION
ERROR_TYPE: Final = "remuda-error-type"
"""In a reply that reports a failure: the name of the exception's type."""
GROUP: Final = cap_headers.GROUP
_INHERITED: Final = ("remuda-user", cap_headers.TRACE)


def asks(headers: Mapping[str, Any]) -> bool:
    """Whether somebody wants to be told of a failure."""
    return bool(headers) and report_topic(headers) is not None


def report_topic(headers: Mapping[str, Any]) -> str | None:
    """Where a failure is reported: to the caller that waits for the reply, else to the failure callback."""
    callback = headers.get(CALLBACK)
    if isinstance(callback, str) and callback.startswith(REPLY_TOPIC):
        return callback
    target = headers.get(FAILURE_CALLBACK)
    return target if isinstance(target, str) and target else None


def report_headers(headers: Mapping[str, Any], own: str, queue: str, reason: str, kind: str) -> dict[str, str]:
    """The headers of the report that a message ended for this reason."""
    before = headers.get(SEQUENCE, "")
    count = int(before) if isinstance(before, str) and before.isascii() and before.isdigit() else 0
    made = {CORRELATION: own, SEQUENCE: str(count + 1), EXCEPTION: reason, ERROR_TYPE: kind, GROUP: queue}
    return made | {name: str(headers[name]) for name in _INHERITED if name in headers}
