"""What is done step by step and has to wait in between, written once for threads and for coroutines: a generator that
yields what it waits for. `wait` waits for it, and what came of it, or its error, goes back into the generator."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import Any, TypeVar

T = TypeVar("T")


def drive(steps: Generator[Any, Any, T], wait: Callable[[Any], Any]) -> T:
    """Take all steps in this thread."""
    advance, given = steps.send, None
    try:
        while True:
            awaited = advance(given)
            try:
                advance, given = steps.send, wait(awaited)
            except BaseException as error:
                advance, given = steps.throw, error
    except StopIteration as end:
        result: T = end.value
        return result


async def drive_async(steps: Generator[Any, Any, T], wait: Callable[[Any], Awaitable[Any]]) -> T:
    """Take all steps in a coroutine."""
    advance, given = steps.send, None
    try:
        while True:
            awaited = advance(given)
            try:
                advance, given = steps.send, await wait(awaited)
            except BaseException as error:
                advance, given = steps.throw, error
    except StopIteration as end:
        result: T = end.value
        return result
