"""OpenTelemetry spans as middleware: one for each publish, one for each call, linked through `traceparent` (B17).

Put it last, so that its span is the current one in the handler.
"""

from __future__ import annotations

from contextvars import Token
from typing import Any, Final

import msgspec

from remuda.bus.handlers.context import Context
from remuda.bus.handlers.exceptions import HandlerDecision
from remuda.bus.handlers.middleware import Handled, Middleware
from remuda.bus.publishing import headers as names
from remuda.model.message import Message
from remuda.model.values.extras import MissingExtra

try:
    from opentelemetry import context as contexts
    from opentelemetry import trace
    from opentelemetry.trace import Span, SpanKind, Status, StatusCode, TracerProvider
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError as error:
    raise MissingExtra("OpenTelemetry traces", "tracing") from error

_PROPAGATOR: Final = TraceContextTextMapPropagator()


class _Call(msgspec.Struct, frozen=True):
    """The span of a running call, and how to leave it."""

    span: Span
    token: Token[contexts.Context]


class Tracing(Middleware):
    """Creates spans with the given provider, or with the one that the application has set globally."""

    def __init__(self, provider: TracerProvider | None = None) -> None:
        self._tracer = trace.get_tracer("remuda", tracer_provider=provider)
        self._publishing: dict[str, Span] = {}

    def before_publish(self, message: Message) -> Message:
        # In a handler, its span is the current one. A reply is published after that span has ended, and takes its
        # parent from the headers instead.
        active = trace.get_current_span().get_span_context().is_valid
        parent = None if active else _PROPAGATOR.extract(message.headers)
        span = self._tracer.start_span(
            f"publish {message.name}", parent, SpanKind.PRODUCER, _attributes("publish", message.name, message.id)
        )
        headers = dict(message.headers)
        _PROPAGATOR.inject(headers, trace.set_span_in_context(span))
        if names.TRACE in headers and span.is_recording():
            self._publishing[headers[names.TRACE]] = span
        return msgspec.structs.replace(message, headers=headers)

    def after_publish(self, message: Message) -> None:
        span = self._publishing.pop(message.headers.get(names.TRACE, ""), None)
        if span is not None:
            span.end()

    def publish_error(self, message: Message, error: Exception) -> None:
        span = self._publishing.pop(message.headers.get(names.TRACE, ""), None)
        if span is not None:
            _fail(span, error)
            span.end()

    def before_handle(self, context: Context) -> None:
        message = context.message
        span = self._tracer.start_span(
            f"handle {message.name}", _PROPAGATOR.extract(context.headers), SpanKind.CONSUMER,
            {
                **_attributes("process", message.name, message.id),
                "messaging.consumer.group.name": context.queue,
                "remuda.handler": context.handler,
                "remuda.attempt": int(context.attempt),
            },
        )  # fmt: skip
        context.values[_Call] = _Call(span, contexts.attach(trace.set_span_in_context(span)))

    def after_handle(self, context: Context, result: Any) -> Any:
        if (call := _ended(context)) is not None:
            call.span.end()
        return result

    def handle_error(self, context: Context, error: BaseException) -> Handled | None:
        if (call := _ended(context)) is not None:
            if isinstance(error, HandlerDecision):
                call.span.set_attribute("remuda.answer", type(error).__name__)
            else:
                _fail(call.span, error)
            call.span.end()
        return None

    def __reduce__(self) -> tuple[type[Tracing], tuple[()]]:
        # A handler's process has its own provider, which the application sets up when it is imported there.
        return Tracing, ()


def _ended(context: Context) -> _Call | None:
    call = context.values.pop(_Call, None)
    if not isinstance(call, _Call):
        return None
    contexts.detach(call.token)
    return call


def _fail(span: Span, error: BaseException) -> None:
    span.record_exception(error)
    span.set_status(Status(StatusCode.ERROR, f"{type(error).__name__}: {error}"))


def _attributes(operation: str, topic: str, message: str) -> dict[str, str | int]:
    attributes: dict[str, str | int] = {
        "messaging.system": "remuda",
        "messaging.operation.type": operation,
        "messaging.destination.name": topic,
    }
    if message:
        attributes["messaging.message.id"] = message
    return attributes
