"""Parts of Remuda that need more than it installs by itself."""

from __future__ import annotations

import importlib.util
from functools import cache

from remuda.model.errors import RemudaError


class MissingExtra(RemudaError, ImportError):
    """A library is not installed; the text holds the line that installs it."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f'{what} need an extra that is not installed: pip install "remuda[{extra}]"')


@cache
def has_arrow() -> bool:
    """Whether Arrow is installed. Queues, handlers and the tail of the log do without it."""
    try:
        return importlib.util.find_spec("pyarrow") is not None
    except ValueError:
        return False
