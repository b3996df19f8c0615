"""The names of CAP's headers (M3), so that .NET CAP services and Remuda understand each other."""

from __future__ import annotations

from typing import Final

MESSAGE_ID: Final = "cap-msg-id"
MESSAGE_NAME: Final = "cap-msg-name"
MESSAGE_TYPE: Final = "cap-msg-type"
SENT_TIME: Final = "cap-senttime"
GROUP: Final = "cap-msg-group"
CALLBACK: Final = "cap-callback-name"
CORRELATION: Final = "cap-corr-id"
SEQUENCE: Final = "cap-corr-seq"
EXCEPTION: Final = "cap-exception"
TRACE: Final = "traceparent"
USER: Final = "remuda-user"
"""Who caused the message, however many handlers lie between."""

FAILURE_CALLBACK: Final = "remuda-failure-callback"
"""The topic to which the error is published if the message ends without success."""
ERROR_TYPE: Final = "remuda-error-type"
"""In a reply that reports a failure: the name of the exception's type."""
CALL_DEADLINE: Final = "remuda-call-deadline"
"""Until when the caller waits for the reply, in microseconds since the epoch."""
KEEP_RESULT: Final = "remuda-keep-result"
"""Asks to keep the handler's result, so that it can be found by the message's id."""

INVALID: Final = "remuda-invalid"
"""Why a message from another system could not be understood."""

REQUIRED: Final = (MESSAGE_ID, MESSAGE_NAME)
