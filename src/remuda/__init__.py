"""Remuda: a message bus that starts inside your process and grows without a change to your code."""

from remuda.broker.opening import open_async_broker, open_broker
from remuda.bus.bus import Bus, handles
from remuda.bus.handlers.context import Attempt, Context, Headers, Response
from remuda.bus.handlers.exceptions import NotInterested, NotNow, Reject, Retry
from remuda.bus.handlers.middleware import Handled, Middleware
from remuda.bus.settings.retry import RetryPolicy
from remuda.model.message import Message, Priority
from remuda.model.messages import Messages
from remuda.model.options import QueueOptions

__all__ = [
    "Attempt",
    "Bus",
    "Context",
    "Handled",
    "Headers",
    "Message",
    "Messages",
    "Middleware",
    "NotInterested",
    "NotNow",
    "Priority",
    "QueueOptions",
    "Reject",
    "Response",
    "Retry",
    "RetryPolicy",
    "handles",
    "open_async_broker",
    "open_broker",
]
