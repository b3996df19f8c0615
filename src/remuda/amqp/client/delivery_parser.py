"""The client's parser: consecutive deliveries of the same layout come out as one event.

RabbitMQ sends the messages of a queue in a row, and they mostly differ only in delivery tag, properties and body, whose
lengths are the same. Once one is parsed, its layout tells where these fields lie in the ones behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final

from remuda.amqp.client.amqp_delivery import Delivery
from remuda.amqp.codec.frames import Event, FrameParser
from remuda.amqp.codec.methods import BasicDeliver, Method

_BODY_HEAD: Final = 8
"""Bytes between properties and body: the end of one frame, and the head of the next."""
_TAG: Final = 8
_FEWEST: Final = 8
_MOST: Final = 4096
_LAYOUTS_KEPT: Final = 1000


class Deliveries(Method, frozen=True):
    """Several `basic.deliver` of one consumer in a row that differ only in tag, properties and body."""

    like: BasicDeliver
    tags: Sequence[int]
    properties: Sequence[bytes]
    bodies: Sequence[bytes]

    def of_epoch(self, epoch: int) -> list[Delivery]:
        """One `Delivery` for each, in this epoch of the channel."""
        again, exchange, key = self.like.redelivered, self.like.exchange, self.like.routing_key
        return [
            Delivery(tag, epoch, again, exchange, key, properties, body)
            for tag, properties, body in zip(self.tags, self.properties, self.bodies, strict=True)
        ]


class DeliveryReader(FrameParser):
    """A `FrameParser` that gives a run of deliveries as one event."""

    def __init__(self) -> None:
        super().__init__()
        self._layouts: dict[tuple[int, int, int, int], Struct] = {}
        self._ahead = _FEWEST
        """How many deliveries to compare at once; it grows with the runs."""

    def _content(self, buffer: bytes, begin: int, start: int, channel: int, method: Method, events: list[Event]) -> int:
        end = super()._content(buffer, begin, start, channel, method, events)
        whole = type(method) is BasicDeliver and channel not in self.gathering
        return self._run(buffer, begin, end, method, events) if whole else end  # type: ignore[arg-type]

    def _run(self, buffer: bytes, begin: int, end: int, first: BasicDeliver, events: list[Event]) -> int:
        """Merge the deliveries behind this one that have its layout into one event; returns where they end."""
        size = end - begin
        tag_at = begin + 12 + buffer[begin + 11]
        channel, _, properties, body = events[-1]
        if not body or buffer[end : end + tag_at - begin] != buffer[begin:tag_at]:
            return end
        body_at = end - 1 - len(body)
        properties_at = body_at - _BODY_HEAD - len(properties)
        layout = self._layout(tag_at - begin, properties_at - tag_at - _TAG, len(properties), len(body))
        count = min((len(buffer) - end) // size, self._ahead)
        if not count:
            return end
        rows = layout.iter_unpack(memoryview(buffer)[end : end + count * size])
        heads, tags, middles, raw, gaps, bodies, ends = zip(*rows, strict=True)
        alike = min(
            count_alike(heads, buffer[begin:tag_at]),
            count_alike(middles, buffer[tag_at + _TAG : properties_at]),
            count_alike(gaps, buffer[body_at - _BODY_HEAD : body_at]),
            count_alike(ends, b"\xce"),
        )
        self._ahead = min(2 * self._ahead, _MOST) if alike == count else max(alike, _FEWEST)
        if alike:
            run = Deliveries(
                first, (first.delivery_tag, *tags[:alike]), (properties, *raw[:alike]), (body, *bodies[:alike])
            )
            events[-1] = (channel, run, b"", b"")
        return end + alike * size

    def _layout(self, head: int, middle: int, properties: int, body: int) -> Struct:
        lengths = (head, middle, properties, body)
        found = self._layouts.get(lengths)
        if found is None:
            if len(self._layouts) >= _LAYOUTS_KEPT:
                self._layouts.clear()
            found = self._layouts[lengths] = Struct(f">{head}sQ{middle}s{properties}s{_BODY_HEAD}s{body}sc")
        return found


def count_alike(column: Sequence[object], value: object) -> int:
    """How many values at the front of a column equal this one."""
    if column.count(value) == len(column):
        return len(column)
    return next(at for at, one in enumerate(column) if one != value)
