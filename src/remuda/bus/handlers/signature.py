"""How to call a handler: which parameter takes the body, of what type, and which are filled in by type."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Container, Mapping
from types import CodeType, MethodType
from typing import Any, Final, get_args, get_origin, get_type_hints

import msgspec

from remuda.bus.handlers.context import Attempt, Context, Headers, Response, StopToken
from remuda.bus.publishing import bodies
from remuda.model.errors import InvalidOption
from remuda.model.message import Message


class Signature(msgspec.Struct, frozen=True):
    """A handler's parameters, sorted by what goes into them."""

    body: str | None
    body_type: Any
    batch: bool
    by_type: dict[str, Any]
    body_first: bool = False
    """Whether the body can be passed by position, which is faster."""


BY_TYPE: Final[dict[Any, Callable[[Context], Any]]] = {
    Context: lambda context: context,
    Message: lambda context: context.message,
    Headers: lambda context: context.headers,
    Attempt: lambda context: context.attempt,
    Response: lambda context: context.response,
    StopToken: lambda context: context.stop,
    logging.Logger: lambda context: context.logger,
    logging.LoggerAdapter: lambda context: context.logger,
}
"""The types that every handler can ask for."""


def read_signature(function: Callable[..., Any], *, batch: bool, provided: Container[Any] = ()) -> Signature:
    """Read a handler's signature; one that could not be called raises `InvalidOption` at registration.

    `provided` are the types that providers and middleware fill in.
    """
    name = getattr(function, "__qualname__", repr(function))
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidOption(
            f"handler {name} is a generator: calling it would run nothing of its body. Return a value instead of "
            "yielding it"
        )
    required: list[str] = []
    optional: list[str] = []
    by_type: dict[str, Any] = {}
    spread: list[str] = []
    wanted_types = _parameter_types(function, name)
    parameters = inspect.signature(function).parameters
    for parameter in parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            spread.append(str(parameter).partition(":")[0])
            continue
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise InvalidOption(f"handler {name} takes {parameter.name} by position only; handlers are called by name")
        wanted = bodies.without_extras(wanted_types[parameter.name])
        base = get_origin(wanted) or wanted
        if base in BY_TYPE:
            by_type[parameter.name] = base
        elif _is_in(wanted, provided):
            by_type[parameter.name] = wanted
        elif parameter.default is parameter.empty:
            required.append(parameter.name)
        else:
            optional.append(parameter.name)
    if len(required) > 1:
        raise InvalidOption(
            f"handler {name} has {len(required)} parameters for one body: {', '.join(required)}. Take the body in one "
            "of them; the others need a default, or a provider for their type that is registered before the handler"
        )
    body = next(iter(required or optional), None)
    if spread and not required and not by_type and _is_by_name_only(parameters, body):
        raise InvalidOption(
            f"handler {name} takes {' and '.join(spread)} but names no parameter for the body, so it would be called "
            "without it. Name one; if a decorator hides the handler's parameters, use functools.wraps in it"
        )
    body_type = Any if body is None else wanted_types[body]
    alone = getattr(function, "takes_no_list", None) if batch else None
    if alone is not None:
        raise InvalidOption(f"handler {name} cannot take lists: {alone}; leave out batch")
    if batch:
        body_type = bodies.without_extras(body_type)
        if body is None or (get_origin(body_type) or body_type) is not list:
            raise InvalidOption(
                f"handler {name} has a batch size, so its body must be annotated as a list, like list[Order]"
            )
        body_type = (*get_args(body_type), Any)[0]
    try:
        bodies.check_wanted(body_type)
    except TypeError as error:
        raise InvalidOption(f"handler {name} wants {body} as {body_type}, which no body can become: {error}") from error
    return Signature(body, body_type, batch, by_type, body is not None and _comes_first(function, body))


def _parameter_types(function: Callable[..., Any], name: str) -> dict[str, Any]:
    try:
        inspect.signature(function)
        hints = get_type_hints(function, include_extras=True)
    except Exception as error:
        raise InvalidOption(f"the annotations of handler {name} cannot be read: {error}") from error
    found = {}
    for parameter in inspect.signature(function).parameters:
        wanted = hints.get(parameter, Any)
        if not any(isinstance(extra, msgspec.Meta) for extra in getattr(wanted, "__metadata__", ())):
            wanted = bodies.without_extras(wanted)
        found[parameter] = Any if wanted is object else wanted
    return found


def _is_by_name_only(parameters: Mapping[str, inspect.Parameter], name: str | None) -> bool:
    """Whether the parameter is keyword-only, as after `*args`: `print` would get the body as its `sep`."""
    return name is None or parameters[name].kind is inspect.Parameter.KEYWORD_ONLY


def _comes_first(function: Callable[..., Any], parameter: str) -> bool:
    """Read from the code itself: a wrapper may show the signature of the function inside, but take keywords only."""
    bound = isinstance(function, MethodType)
    code = getattr(function.__func__ if isinstance(function, MethodType) else function, "__code__", None)
    return isinstance(code, CodeType) and code.co_varnames[: code.co_argcount][bound : bound + 1] == (parameter,)


def _is_in(wanted: Any, types: Container[Any]) -> bool:
    try:
        return wanted in types
    except TypeError:
        return False
