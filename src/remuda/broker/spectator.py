"""Reading the log (L8): from any offset or time, as often as you like, changing nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

from remuda.log.eventlog import Ends, EventLog, follow
from remuda.model.records import Appended, Events


class Spectator:
    """Reads the log up to now, or follows it as it grows."""

    def __init__(self, log: EventLog, refresh: Callable[[], None] = lambda: None) -> None:
        self.log = log
        self._refresh = refresh

    def ends(self) -> Ends:
        """Where the log begins and ends now."""
        self._refresh()
        return self.log.ends()

    def messages(self, offset: int = 0, *, since: int | None = None) -> Iterator[Appended]:
        """Messages from an offset, or from a time in microseconds."""
        self._refresh()
        yield from self.log.messages(self.log.offset_at(since) if since is not None else offset)

    def events(self, position: int = 0, *, since: int | None = None) -> Iterator[Events]:
        """Events from a position, or from a time in microseconds."""
        self._refresh()
        yield from self.log.events(self.log.position_at(since) if since is not None else position)

    def follow(self, offset: int = 0, *, poll: float = 0.1, stop: threading.Event | None = None) -> Iterator[Appended]:
        """Messages from an offset, waiting for more until `stop` is set."""
        return follow(self.messages, offset, poll, stop)

    def follow_events(
        self, position: int = 0, *, poll: float = 0.1, stop: threading.Event | None = None
    ) -> Iterator[Events]:
        """Events from a position, waiting for more until `stop` is set."""
        return follow(self.events, position, poll, stop)
