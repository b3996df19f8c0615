"""What a plug-in implements: a `WorkerFactory`, or just a function."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Protocol, runtime_checkable

from remuda.model.errors import InvalidOption, RemudaError
from remuda.worker.tasks import Result, Task

Answer = Result | bytes | str | None | Iterable[Result]
"""What work returns: results, the data of one successful result, or None for nothing to send."""

Work = Callable[[], Answer]


class NotNow(RemudaError):
    """The worker cannot take this task now: it goes back to the input queue, and this does not count as a retry."""


class InvalidTask(RemudaError):
    """The task is invalid: an INVALID_TASK response with this text goes to the output."""


@runtime_checkable
class WorkerFactory(Protocol):
    """Turns tasks into work. Both methods may be called from several threads at once."""

    def accept(self, task: Task) -> Work:
        """Return the work for this task; raise `NotNow` or `InvalidTask` to refuse it."""
        ...

    def health_check(self) -> None:
        """Raise an error with a short text if the worker cannot work now."""
        ...


class FunctionFactory:
    """A plain function as a worker."""

    def __init__(self, function: Callable[[Task], Answer]) -> None:
        self._function = function

    def accept(self, task: Task) -> Work:
        return lambda: self._function(task)

    def health_check(self) -> None:
        pass


def factory_of(given: WorkerFactory | Callable[[Task], Answer]) -> WorkerFactory:
    for function in (given, getattr(given, "accept", None)):
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            raise InvalidOption(
                f"{getattr(function, '__qualname__', function)} is a coroutine function; a worker runs in threads, so "
                "give it a plain function, which may call asyncio.run"
            )
    if isinstance(given, type) and isinstance(given, WorkerFactory):
        raise InvalidOption(
            f"{given.__name__} is a class; a worker needs an instance of it, such as {given.__name__}()"
        )
    if isinstance(given, WorkerFactory):
        return given
    if callable(given):
        return FunctionFactory(given)
    raise InvalidOption(f"a worker needs a function or a WorkerFactory, not a {type(given).__name__}")


def results_of(answer: Answer) -> list[Result]:
    """What a plug-in returned, as results."""
    if answer is None:
        return []
    if isinstance(answer, Result):
        return [answer]
    if isinstance(answer, bytes | str):
        return [Result(answer if isinstance(answer, bytes) else answer.encode())]
    if not isinstance(answer, Iterable) or isinstance(answer, bytearray | memoryview | dict):
        raise InvalidOption(
            f"a worker returned a {type(answer).__name__}; return bytes, a string, a Result, "
            "several of them in a list, or None"
        )
    results = list(answer)
    for result in results:
        if not isinstance(result, Result):
            raise InvalidOption(f"a worker returned a {type(result).__name__} where a Result was expected")
    return results
