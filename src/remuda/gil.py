"""Calls of the C library that keep the interpreter lock, for those that take less time than waking another thread."""

from __future__ import annotations

import ctypes
import os
from typing import Any, NoReturn


def keeping_interpreter(name: str, *arguments: Any) -> Any:
    """A function of the C library that returns a size, called without releasing the interpreter lock; None if the
    platform has none."""
    try:
        found = getattr(ctypes.PyDLL(None, use_errno=True), name)
    except (AttributeError, OSError, TypeError):
        return None
    found.argtypes = arguments
    found.restype = ctypes.c_ssize_t
    return found


def raise_failed() -> NoReturn:
    """Raise the error of the last such call."""
    code = ctypes.get_errno()
    raise OSError(code, os.strerror(code))


send = keeping_interpreter("send", ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int)
recv = keeping_interpreter("recv", ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
"""As `send` and `recv` of the C library, for sockets that are told not to wait."""
