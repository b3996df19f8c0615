"""A verb's outcome before it is kept: the result, and what must happen before it may be told."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Generic, TypeVar

T = TypeVar("T")


class Pending(Generic[T]):
    """`result` counts once everything up to `ticket` is kept and `commit`, if any, has come."""

    __slots__ = ("commit", "result", "ticket")

    def __init__(self, result: T, ticket: int, commit: Future[None] | None = None) -> None:
        self.result = result
        self.ticket = ticket
        self.commit = commit
