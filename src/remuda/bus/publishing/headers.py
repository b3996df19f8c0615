"""The names of headers that the bus reads and writes: CAP's (M3), and its own."""

from __future__ import annotations

from typing import Final

from remuda.model import cap_headers
from remuda.model.queues.end_reports import AWAITED as AWAITED
from remuda.model.queues.end_reports import CALLBACK as CALLBACK
from remuda.model.queues.end_reports import ERROR_TYPE as ERROR_TYPE
from remuda.model.queues.end_reports import EXCEPTION as EXCEPTION
from remuda.model.queues.end_reports import FAILURE_CALLBACK as FAILURE_CALLBACK
from remuda.model.queues.end_reports import GROUP as GROUP
from remuda.model.queues.end_reports import REPLY_TOPIC as REPLY_TOPIC
from remuda.model.queues.end_reports import SEQUENCE as SEQUENCE

MESSAGE_TYPE: Final = cap_headers.TYPE
CORRELATION: Final = cap_headers.CORRELATION
TRACE: Final = cap_headers.TRACE
USER: Final = "remuda-user"
"""Who caused the message, however many handlers lie between."""

CALL_DEADLINE: Final = "remuda-call-deadline"
"""Until when the caller waits for the reply, in microseconds since the epoch."""
KEEP_RESULT: Final = "remuda-keep-result"
"""Asks to keep the handler's result, so that it can be found by the message's id."""

INVALID: Final = "remuda-invalid"
"""Why a message from another system could not be understood."""
