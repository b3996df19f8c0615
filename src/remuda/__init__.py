"""Remuda: a message bus that starts inside your process and grows without a change to your code."""

from remuda.broker.opening import open_async_broker, open_broker
from remuda.bus.answers import NotInterested, NotNow, Reject, Retry
from remuda.bus.bus import Bus, handles
from remuda.bus.context import Attempt, Context, Headers, Response
from remuda.bus.middleware import Handled, Middleware
from remuda.bus.retry import RetryPolicy
from remuda.lake import arrow
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
    "arrow",
    "handles",
    "open_async_broker",
    "open_broker",
]
