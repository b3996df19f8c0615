"""Values that handlers ask for by type, made for each message: functions, coroutines, or generators that clean up."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Iterable
from typing import Any, Final

import msgspec

from remuda.bus.handlers.context import Context
from remuda.bus.handlers.middleware import MiddlewareStack
from remuda.bus.handlers.signature import BY_TYPE
from remuda.model.errors import InvalidOption
from remuda.model.values.texts import shown

_END: Final = object()


class Provider(msgspec.Struct, frozen=True):
    """A function that creates a value; `takes_context` says whether it takes the message's `Context`."""

    function: Callable[..., Any]
    takes_context: bool
    is_async: bool

    def make(self, context: Context) -> Any:
        return self.function(context) if self.takes_context else self.function()


class Providers:
    """The providers of one bus, by the type that they make."""

    def __init__(self) -> None:
        self._by_type: dict[Any, Provider] = {}

    def __contains__(self, wanted: Any) -> bool:
        return wanted in self._by_type

    def add(self, wanted: Any, function: Callable[..., Any]) -> None:
        name = getattr(function, "__qualname__", repr(function))
        if wanted in BY_TYPE:
            raise InvalidOption(f"{wanted.__name__} is filled in by the bus itself; {name} cannot provide it")
        if not callable(function):
            raise InvalidOption(f"a provider must be a function, not {shown(function)}")
        parameters = [one for one in inspect.signature(function).parameters.values() if one.default is one.empty]
        if len(parameters) > 1:
            raise InvalidOption(f"provider {name} may take the message's Context and nothing else")
        is_async = inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
        self._by_type[wanted] = Provider(function, bool(parameters), is_async)

    def get(self, wanted: Any) -> Provider | None:
        return self._by_type.get(wanted)

    def begin(self, wanted: Any, context: Context, opened: list[Any]) -> Generator[Any, Any, Any]:
        """Create one value, as steps for `drive`; generators to end later are added to `opened`."""
        provider = self._by_type[wanted]
        made = provider.make(context)
        if inspect.isasyncgen(made):
            opened.append(made)
            return (yield made.__anext__())
        if inspect.isgenerator(made):
            opened.append(made)
            return next(made)
        return (yield made)


def end_all(opened: list[Any], error: BaseException | None) -> Generator[Any, Any, None]:
    """End the generators, the last first, as steps for `drive`; the handler's error, if any, is raised in each."""
    failure = error
    while opened:
        made = opened.pop()
        try:
            if inspect.isasyncgen(made):
                yield from _end_async(made, failure)
            elif failure is None:
                next(made, _END)
            else:
                made.throw(failure)
        except StopIteration:
            continue
        except BaseException as raised:
            if raised is not failure:
                failure = raised
    if failure is not None and failure is not error:
        raise failure


def _end_async(made: Any, failure: BaseException | None) -> Generator[Any, Any, None]:
    try:
        if failure is None:
            yield made.__anext__()
        else:
            yield made.athrow(failure)
    except StopAsyncIteration:
        return


class Provided:
    """The types that providers and middleware of a bus offer to its handlers."""

    def __init__(self, providers: Providers, stack: MiddlewareStack) -> None:
        self._providers = providers
        self._stack = stack

    def __contains__(self, wanted: object) -> bool:
        return wanted in self._providers or wanted in self._stack.provided


def refuse_async_providers(
    function: Callable[..., Any], name: str, wanted: Iterable[Any], providers: Providers
) -> None:
    """Raise `InvalidOption` if a plain function asks for a value that a coroutine creates."""
    if inspect.iscoroutinefunction(function):
        return
    for one in wanted:
        provider = providers.get(one)
        if provider is not None and provider.is_async:
            raise InvalidOption(
                f"handler {name} is a plain function, but the provider of {shown(one)} is a coroutine; "
                "make the handler a coroutine too"
            )
