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

INVALID: Final = "remuda-invalid"
"""Why a message that came from elsewhere could not be understood."""

REQUIRED: Final = (MESSAGE_ID, MESSAGE_NAME)
