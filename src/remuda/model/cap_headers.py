"""The names of CAP's headers (M3), by which .NET CAP services and Remuda understand each other."""

from __future__ import annotations

from typing import Final

ID: Final = "cap-msg-id"
NAME: Final = "cap-msg-name"
TYPE: Final = "cap-msg-type"
SENT: Final = "cap-senttime"
GROUP: Final = "cap-msg-group"
CALLBACK: Final = "cap-callback-name"
CORRELATION: Final = "cap-corr-id"
SEQUENCE: Final = "cap-corr-seq"
EXCEPTION: Final = "cap-exception"
TRACE: Final = "traceparent"
