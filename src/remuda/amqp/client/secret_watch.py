"""A password in a file that is renewed, such as a token that expires: the broker is told while the connection lasts."""

from __future__ import annotations

import math
import time
from typing import Final

from remuda.amqp.connection_options import ConnectionOptions
from remuda.model.errors import InvalidOption

_LOOK: Final = 1.0
"""Seconds between two looks at the file."""


class SecretWatch:
    """Looks now and then whether the password is still the one that the connection logged in with."""

    def __init__(self, options: ConnectionOptions, known: str) -> None:
        self._options = options
        self._known = known
        self._next = math.inf if options.password_file is None else time.monotonic() + _LOOK

    def until_next(self) -> float:
        return self._next - time.monotonic()

    def renewed(self) -> str | None:
        """The new password, once; None while there is none. A file that cannot be read has none."""
        if time.monotonic() < self._next:
            return None
        self._next = time.monotonic() + _LOOK
        try:
            found = self._options.secret()
        except InvalidOption:
            return None
        if not found or found == self._known:  # it may be half written
            return None
        self._known = found
        return found
