"""Which queues a message goes to (T1, T2): that of each topic's root, and every channel whose topics fit."""

from __future__ import annotations

from collections.abc import Iterable

from remuda.model.topics import has_prefix, matches, root


class Distributor:
    """Knows the channels' prefixes, and the queue for roots that have none of their own."""

    def __init__(self, default_queue: str | None = None) -> None:
        self.default_queue = default_queue
        self._channels: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {}

    def open_channel(self, name: str, prefixes: Iterable[str], patterns: Iterable[str] = ()) -> None:
        self._channels[name] = tuple(prefixes), tuple(patterns)

    def close_channel(self, name: str) -> None:
        self._channels.pop(name, None)

    def roots(self, topics: tuple[str, ...]) -> list[str]:
        """The roots of these topics, each once, in order."""
        return list(dict.fromkeys(root(topic) for topic in topics))

    def channels(self, topics: tuple[str, ...]) -> tuple[str, ...]:
        """The channels that want a message with these topics."""
        return tuple(
            name
            for name, (prefixes, patterns) in self._channels.items()
            if any(has_prefix(topic, prefix) for topic in topics for prefix in prefixes)
            or any(matches(pattern, topic) for topic in topics for pattern in patterns)
        )
