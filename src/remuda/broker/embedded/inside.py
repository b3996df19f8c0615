"""Calls from inside another call of the same thread."""

from __future__ import annotations

from typing import Final

from remuda.model.errors import RemudaError

_TEXT: Final = (
    "the broker cannot be called from inside one of its own calls, as by an extension, or by a signal's handler or a "
    "finalizer that interrupts it; nothing was changed. Call it from another thread"
)


class CalledFromInside(RemudaError):
    """The thread that calls is inside another call, which cannot go on before this one ends."""

    def __init__(self, text: str = _TEXT) -> None:
        super().__init__(text)


def is_refusal(error: BaseException) -> bool:
    """Whether the core itself refused, which it does with its own errors before it changes anything. That somebody
    called from inside is told to a signal's handler, and comes out of it between any two changes, like Ctrl-C."""
    return isinstance(error, RemudaError) and not isinstance(error, CalledFromInside)
