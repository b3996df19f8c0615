"""What the calls of a queue's handlers need: middleware, providers, encoding, event loop and retry policy."""

from __future__ import annotations

import msgspec

from remuda.bus.handlers.loops import LoopHolder
from remuda.bus.handlers.middleware import MiddlewareStack
from remuda.bus.handlers.providers import Providers
from remuda.bus.settings.retry import RetryPolicy


class CallEnvironment(msgspec.Struct, frozen=True):
    """The same for all calls of a queue; it can be sent to another process."""

    middleware: MiddlewareStack
    providers: Providers
    encoding: str = "json"
    loop: LoopHolder = msgspec.field(default_factory=LoopHolder)
    retry: RetryPolicy | None = None
    prefix: str = ""
