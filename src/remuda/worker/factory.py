"""What a plug-in implements: a factory of work, or just a function."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, runtime_checkable

from remuda.model.errors import InvalidOption, RemudaError
from remuda.worker.tasks import Result, Task

Answer = Result | bytes | str | None | Iterable[Result]
"""What work gives back: results, the data of one successful result, or nothing to send."""

Work = Callable[[], Answer]


class NotNow(RemudaError):
    """The worker cannot take this task at the moment: it goes back to the input queue, and this does not count."""


class InvalidTask(RemudaError):
    """The task makes no sense: an INVALID_TASK response with this text goes to the output."""


@runtime_checkable
class WorkerFactory(Protocol):
    """Registers tasks. Both methods may be called from several threads at once."""

    def accept(self, task: Task) -> Work:
        """The work that this task asks for; raise `NotNow` or `InvalidTask` to refuse it."""
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
    if isinstance(given, WorkerFactory):
        return given
    if callable(given):
        return FunctionFactory(given)
    raise InvalidOption(f"a worker needs a function or a WorkerFactory, not a {type(given).__name__}")


def results_of(answer: Answer) -> list[Result]:
    """What a plug-in gave back, as results."""
    if answer is None:
        return []
    if isinstance(answer, Result):
        return [answer]
    if isinstance(answer, bytes | str):
        return [Result(answer if isinstance(answer, bytes) else answer.encode())]
    results = list(answer)
    for result in results:
        if not isinstance(result, Result):
            raise InvalidOption(f"a worker returned a {type(result).__name__} where a Result was expected")
    return results
