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
"""The topic that is told when the message ends without success."""
ERROR_TYPE: Final = "remuda-error-type"
"""In a reply that tells of a failure: the name of the exception's type."""
CALL_DEADLINE: Final = "remuda-call-deadline"
"""Until when, in microseconds since the epoch, somebody waits for the reply."""
KEEP_RESULT: Final = "remuda-keep-result"
"""The handler's result is kept, to be found by the message's id."""
UNIQUE: Final = "remuda-unique"
"""The key that makes the message one of a kind while it waits."""

INVALID: Final = "remuda-invalid"
"""Why a message that came from elsewhere could not be understood."""

REQUIRED: Final = (MESSAGE_ID, MESSAGE_NAME)
