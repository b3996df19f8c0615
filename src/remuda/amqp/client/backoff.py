"""Which host is tried next, and after which pause."""

from __future__ import annotations

import time
from typing import Final

from remuda.amqp.connection_options import ConnectionOptions
from remuda.amqp.errors import AmqpError, ConnectFailed, ConnectionLost, LoginRefused
from remuda.jitter import CHANCE

_STEADY: Final = 5.0
"""A connection that held for this many seconds was a good one: the next loss starts the back-off anew."""


class Backoff:
    """Takes the hosts in turn, starting with a random one."""

    def __init__(self, options: ConnectionOptions) -> None:
        self._options = options
        self._turn = CHANCE.randrange(len(options.hosts))
        self._began = 0.0
        self._failures = 0

    def next_host(self) -> tuple[str, int]:
        hosts = self._options.hosts
        self._turn += 1
        self._began = time.monotonic()
        return hosts[(self._turn - 1) % len(hosts)]

    def failed(self, error: AmqpError) -> None:
        """The connection to the last host was lost, or not made."""
        held = time.monotonic() - self._began >= _STEADY and isinstance(error, ConnectionLost)
        self._failures = 1 if held else self._failures + 1

    def verdict(self, error: AmqpError, connects: int) -> AmqpError | None:
        """The error to give up with, after this many connections; None if another attempt is worthwhile."""
        if isinstance(error, LoginRefused) and connects == 0:
            return error
        options = self._options
        if options.attempts is None or self._failures < options.attempts:
            return None
        if isinstance(error, LoginRefused):
            return error
        return ConnectFailed(f"no connection to {options} within {self._failures} attempts: {error}")

    def pause(self) -> float:
        """Seconds before the next attempt: none while there are hosts not tried yet, then longer and longer."""
        hosts, failures = len(self._options.hosts), self._failures
        if failures < hosts:
            return 0.0
        rounds = (failures - 1) // hosts
        wait = min(self._options.backoff * 2.0 ** min(rounds, 20), self._options.backoff_max)
        return wait * CHANCE.uniform(0.5, 1.0)
