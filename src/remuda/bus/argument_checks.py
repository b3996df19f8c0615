"""Checks of the arguments that an application gives to a bus, made before anything is opened."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from remuda.bus.handlers.middleware import Middleware
from remuda.model.errors import InvalidMessage, InvalidOption
from remuda.model.message import Message
from remuda.model.messages import Messages
from remuda.model.values.texts import shown

F = TypeVar("F", bound=Callable[..., Any])


def read_middleware(layers: Any) -> list[Middleware]:
    """Instances of middleware, outermost first."""
    if not isinstance(layers, Iterable) or isinstance(layers, str | bytes):
        raise InvalidOption(f"middleware must be a list of Middleware, not {shown(layers)}")
    found = list(layers)
    for layer in found:
        if isinstance(layer, type):
            raise InvalidOption(
                f"middleware must hold instances: write {layer.__name__}(…), not the class {layer.__name__}"
            )
        missing = [hook for hook in _HOOKS if not callable(getattr(layer, hook, None))]
        if missing:
            raise InvalidOption(f"{shown(layer)} in middleware has no {missing[0]}; derive it from remuda.Middleware")
    return found


def read_function(name: str, function: F | None) -> F | None:
    if function is not None and not callable(function):
        raise InvalidOption(f"{name} must be a function, not {shown(function)}")
    return function


def read_hook(name: str, function: F) -> F:
    """A function without arguments that must be given, to be called at startup or shutdown."""
    if not callable(function):
        raise InvalidOption(f"{name} takes a function, not {shown(function)}; it is written @bus.{name}")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidOption(
            f"{name} takes a function or a coroutine, and {_named(function)} is a generator, whose body would "
            "never run; write what comes before its yield into on_startup, and the rest into on_shutdown"
        )
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        raise InvalidOption(f"{name} calls {_named(function)} without arguments: {error}") from None
    except ValueError:
        pass  # a builtin whose signature cannot be read
    return function


def check_type(name: str, wanted: Any) -> None:
    """Raise `InvalidOption` for what cannot be the annotation of a parameter."""
    if wanted is None or inspect.isroutine(wanted) or isinstance(wanted, str | bytes | int | float):
        raise InvalidOption(
            f"{name} takes the type that handlers ask for, not {shown(wanted)}; it is written @bus.{name}(Session)"
        )


def needs_instance(method: Callable[..., Any]) -> bool:
    """Whether this is a method taken from its class, so that a call would lack `self`."""
    return inspect.isfunction(method) and next(iter(inspect.signature(method).parameters), None) == "self"


def read_bodies(bodies: Any) -> Iterable[Any]:
    """The bodies of a batch. A string, bytes or a mapping is refused: it is one body, and meant for `publish`."""
    if isinstance(bodies, str | bytes | bytearray | memoryview | Mapping) or not isinstance(bodies, Iterable):
        raise InvalidMessage(
            f"bodies must be a list of bodies, not {shown(bodies)}; publish takes a single one. Nothing was stored"
        )
    return bodies


def read_messages(messages: Any) -> Messages:
    """One `Message` or several, as one batch."""
    if isinstance(messages, Messages):
        return messages
    if isinstance(messages, Message):
        return Messages.of([messages])
    listed = list(messages) if isinstance(messages, Iterable) else [messages]
    for row, message in enumerate(listed):
        if not isinstance(message, Message):
            raise InvalidMessage(
                f"row {row}: publish_messages takes Messages, not {shown(message)}. Nothing of the batch was stored"
            )
    return Messages.of(listed)


_HOOKS = (
    "before_publish", "after_publish", "publish_error", "before_handle", "after_handle", "handle_error",
)  # fmt: skip


def _named(function: Any) -> str:
    return str(getattr(function, "__qualname__", function))
