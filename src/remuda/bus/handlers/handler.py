"""A handler: a plain function or coroutine, the topics it wants, and the rules it runs under (B2)."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from enum import StrEnum
from typing import Any, Final, get_args, get_origin, get_type_hints

import msgspec

from remuda.bus.handlers.context import Attempt, Context, Headers, Response
from remuda.bus.publishing import bodies
from remuda.bus.settings.retry import RetryPolicy
from remuda.model.errors import InvalidOption
from remuda.model.message import Message
from remuda.model.topics import matches


class ExecutorKind(StrEnum):
    ASYNCIO = "asyncio"
    THREADS = "threads"
    PROCESSES = "processes"


class HandlerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What was said where the handler was written; None leaves it to the settings."""

    retry: RetryPolicy | None = None
    timeout: int | None = None
    failover: str | None = None
    threads: int | None = None
    executor: ExecutorKind | None = None
    batch: int | None = None
    queue_size: int | None = None


class Handler(msgspec.Struct, frozen=True):
    """Who handles what."""

    id: str
    queue: str
    topics: tuple[str, ...]
    function: Callable[..., Any]
    options: HandlerOptions
    plan: Signature

    @property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.function)

    def takes(self, topic: str) -> bool:
        return any(matches(pattern, topic) for pattern in self.topics)


class Signature(msgspec.Struct, frozen=True):
    """How to call the function: which parameter takes the body, as what, and which are filled by type."""

    body: str | None
    body_type: Any
    batch: bool
    values: dict[str, Any]


_BY_TYPE: Final[dict[Any, Callable[[Context], Any]]] = {
    Context: lambda context: context,
    Message: lambda context: context.message,
    Headers: lambda context: context.headers,
    Attempt: lambda context: context.attempt,
    Response: lambda context: context.response,
    logging.Logger: lambda context: context.logger,
    logging.LoggerAdapter: lambda context: context.logger,
}


def handler_id(function: Callable[..., Any]) -> str:
    """`Class.method` for a method, else `module.function`."""
    if not hasattr(function, "__qualname__") or not hasattr(function, "__module__"):
        raise InvalidOption(f"a handler must be a function or a method, not {function!r}; put it into one")
    parts = function.__qualname__.split(".")
    if len(parts) > 1 and parts[-2] != "<locals>":
        return ".".join(parts[-2:])
    module = "main" if function.__module__ == "__main__" else function.__module__
    return f"{module}.{parts[-1]}"


def plan(function: Callable[..., Any], *, batch: bool) -> Signature:
    """Read the signature once, so that a handler that cannot be called fails where it is written."""
    name = getattr(function, "__qualname__", repr(function))
    try:
        hints = get_type_hints(function)
    except Exception as error:
        raise InvalidOption(f"the annotations of handler {name} cannot be read: {error}") from error
    body: str | None = None
    body_type: Any = Any
    values: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        wanted = hints.get(parameter.name, Any)
        wanted = Any if wanted is object else wanted
        base = get_origin(wanted) or wanted
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise InvalidOption(f"handler {name} takes {parameter.name} by position only; handlers are called by name")
        if base in _BY_TYPE:
            values[parameter.name] = base
        elif body is None:
            body, body_type = parameter.name, wanted
        elif parameter.default is parameter.empty:
            values[parameter.name] = wanted
    if batch:
        if body is None or (get_origin(body_type) or body_type) is not list:
            raise InvalidOption(
                f"handler {name} has a batch size, so its body must be annotated as a list, like list[Order]"
            )
        body_type = (*get_args(body_type), Any)[0]
    try:
        bodies.check_wanted(body_type)
    except TypeError as error:
        raise InvalidOption(f"handler {name} wants {body} as {body_type}, which no body can become: {error}") from error
    return Signature(body, body_type, batch, values)


def arguments(call: Signature, body: Any, context: Context) -> dict[str, Any]:
    """The values for one call."""
    given = {} if call.body is None else {call.body: body}
    for name, wanted in call.values.items():
        make = _BY_TYPE.get(wanted)
        given[name] = make(context) if make is not None else provided(context, wanted)
    return given


def provided(context: Context, wanted: Any) -> Any:
    """A value that some middleware put into the context for handlers."""
    if wanted in context.values:
        return context.values[wanted]
    raise LookupError(f"handler {context.handler} asks for a {wanted!r}, which no middleware provides")
