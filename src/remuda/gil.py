"""Calls of the C library that do not let go of the interpreter, for what is over before another thread has woken up."""

from __future__ import annotations

import ctypes
import os
from typing import Any, NoReturn


def keeping_interpreter(name: str, *arguments: Any) -> Any:
    """A function of the C library that gives a size, called without releasing the interpreter; None where there is
    none."""
    try:
        found = getattr(ctypes.PyDLL(None, use_errno=True), name)
    except (AttributeError, OSError, TypeError):
        return None
    found.argtypes = arguments
    found.restype = ctypes.c_ssize_t
    return found


def raise_failed() -> NoReturn:
    """Raise what the last of those calls failed with."""
    code = ctypes.get_errno()
    raise OSError(code, os.strerror(code))
