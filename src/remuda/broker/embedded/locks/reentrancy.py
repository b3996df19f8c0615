"""Calls from within another call of the same thread."""

from __future__ import annotations

from typing import Final

from remuda.model.errors import RemudaError

_TEXT: Final = (
    "the broker cannot be called from inside one of its own calls: by an extension, or by a signal handler or "
    "finalizer that interrupts the call; nothing was changed. Call it from another thread"
)


class CalledFromInside(RemudaError):
    """The calling thread is within another call, which cannot go on before this one ends."""

    def __init__(self, text: str = _TEXT) -> None:
        super().__init__(text)


def is_refusal(error: BaseException) -> bool:
    """Whether the core refused the command, which it does with its own errors before it changes anything. A
    `CalledFromInside` that leaves a signal handler is none: like Ctrl-C, it comes between any two changes."""
    return isinstance(error, RemudaError) and not isinstance(error, CalledFromInside)
