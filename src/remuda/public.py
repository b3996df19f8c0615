"""The public API: everything that `import remuda` offers."""

from remuda.broker.opening import open_async_broker, open_broker
from remuda.bus.broker_api import MessageFilter
from remuda.bus.bus import Bus
from remuda.bus.errors import HandlerFailed, NoResult, ResultNotReady
from remuda.bus.handlers.context import Attempt, Context, Headers, Response, StopToken
from remuda.bus.handlers.exceptions import HandlerTimeout, NotInterested, NotNow, Reject, Retry
from remuda.bus.handlers.middleware import Handled, Middleware
from remuda.bus.handlers.registry import handles
from remuda.bus.publishing.dead_letters import DeadLetter
from remuda.bus.publishing.tracking import MessageStatus
from remuda.bus.settings.retry import RetryPolicy
from remuda.bus.testing import ManualClock
from remuda.lake import arrow
from remuda.model.errors import (
    BrokerClosed,
    CommitTimeout,
    Conflict,
    ConsumersFull,
    DataLost,
    DeliveryFailed,
    DirectoryInUse,
    DirectoryNotWritable,
    DiskFull,
    Duplicate,
    ForeignDirectory,
    HostNotResponding,
    IllegalMove,
    InvalidMessage,
    InvalidOption,
    MessageTooLarge,
    NotAllowed,
    NotFound,
    PartlyRefused,
    QueueFull,
    QueueNotAccepting,
    Refused,
    RemudaError,
    StorageError,
    TooManyFiles,
    Unsupported,
    UnsupportedFormat,
)
from remuda.model.message import Message, Priority
from remuda.model.messages import Messages
from remuda.model.options import QueueOptions
from remuda.model.routing import Binding

__all__ = [
    "Attempt",
    "Binding",
    "BrokerClosed",
    "Bus",
    "CommitTimeout",
    "Conflict",
    "ConsumersFull",
    "Context",
    "DataLost",
    "DeadLetter",
    "DeliveryFailed",
    "DirectoryInUse",
    "DirectoryNotWritable",
    "DiskFull",
    "Duplicate",
    "ForeignDirectory",
    "Handled",
    "HandlerFailed",
    "HandlerTimeout",
    "Headers",
    "HostNotResponding",
    "IllegalMove",
    "InvalidMessage",
    "InvalidOption",
    "ManualClock",
    "Message",
    "MessageFilter",
    "MessageStatus",
    "MessageTooLarge",
    "Messages",
    "Middleware",
    "NoResult",
    "NotAllowed",
    "NotFound",
    "NotInterested",
    "NotNow",
    "PartlyRefused",
    "Priority",
    "QueueFull",
    "QueueNotAccepting",
    "QueueOptions",
    "Refused",
    "Reject",
    "RemudaError",
    "Response",
    "ResultNotReady",
    "Retry",
    "RetryPolicy",
    "StopToken",
    "StorageError",
    "TooManyFiles",
    "Unsupported",
    "UnsupportedFormat",
    "arrow",
    "handles",
    "open_async_broker",
    "open_broker",
]
