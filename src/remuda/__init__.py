"""Remuda: a message bus that starts inside your process and grows without a change to your code."""

from remuda.broker.opening import open_async_broker, open_broker
from remuda.model.message import Message, Priority
from remuda.model.messages import Messages
from remuda.model.options import QueueOptions

__all__ = ["Message", "Messages", "Priority", "QueueOptions", "open_async_broker", "open_broker"]
