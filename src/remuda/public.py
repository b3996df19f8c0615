"""The public API: everything that `import remuda` offers, and which other modules are public."""

from typing import Final

from remuda.broker.opening import open_async_broker, open_broker
from remuda.bus.broker_api import MessageFilter
from remuda.bus.bus import Bus
from remuda.bus.errors import HandlerFailed, NoResult, ResultNotReady
from remuda.bus.handlers.context import Attempt, Context, Headers, Response, StopToken
from remuda.bus.handlers.exceptions import HandlerTimeout, NotInterested, NotNow, Reject, Retry
from remuda.bus.handlers.handler_registry import handles
from remuda.bus.handlers.middleware import Handled, Middleware
from remuda.bus.publishing.dead_letters import DeadLetter
from remuda.bus.publishing.tracking import MessageStatus
from remuda.bus.publishing.typed import message
from remuda.bus.settings.retry import RetryPolicy
from remuda.bus.testing import ManualClock
from remuda.bus.workflows.errors import Diverged, MembersFailed, StepFailed, UndoFailed, WaitTimeout
from remuda.bus.workflows.history import StepRecord
from remuda.bus.workflows.run import step
from remuda.bus.workflows.work import call, chain, gather, group
from remuda.bus.workflows.workflow_run import MemberResult, Run
from remuda.bus.workflows.workflows import WorkflowStatus
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
from remuda.model.queues.options import QueueOptions
from remuda.model.queues.routing import Binding

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
    "Diverged",
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
    "MemberResult",
    "MembersFailed",
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
    "Run",
    "StepFailed",
    "StepRecord",
    "StopToken",
    "StorageError",
    "TooManyFiles",
    "UndoFailed",
    "Unsupported",
    "UnsupportedFormat",
    "WaitTimeout",
    "WorkflowStatus",
    "arrow",
    "call",
    "chain",
    "gather",
    "group",
    "handles",
    "message",
    "open_async_broker",
    "open_broker",
    "step",
]

MODULES: Final = (
    "remuda",
    "remuda.broker.port",
    "remuda.bus.observing.metrics",
    "remuda.bus.observing.tracing",
    "remuda.index",
    "remuda.lake",
    "remuda.log.eventlog",
    "remuda.model.errors",
    "remuda.model.state",
    "remuda.outbox",
    "remuda.server.http.mounting",
    "remuda.server.http.webhooks",
    "remuda.spark",
    "remuda.testing",
    "remuda.worker",
)
"""What users may import. All other modules are internal: they may move with any release."""
