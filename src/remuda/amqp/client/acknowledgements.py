"""Which deliveries of a channel are still unsettled, and the fewest frames that acknowledge the rest."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import takewhile

from remuda.amqp.codec.frames import method_frame
from remuda.amqp.codec.methods import BasicAck


class AckWindow:
    """Gathers acknowledgements; those at the front of the window go out as one, with `multiple`."""

    def __init__(self) -> None:
        self._unsettled: dict[int, None] = {}
        self._acked: set[int] = set()

    def __len__(self) -> int:
        return len(self._unsettled)

    @property
    def unanswered(self) -> int:
        """How many deliveries were neither acknowledged nor rejected."""
        return len(self._unsettled) - len(self._acked)

    def delivered(self, tags: Iterable[int]) -> None:
        self._unsettled.update(dict.fromkeys(tags))

    def ack(self, tags: Iterable[int]) -> int:
        """Mark deliveries as acknowledged; unknown and settled ones are skipped. Returns how many were marked."""
        known = self._unsettled.keys() & set(tags)
        known -= self._acked
        self._acked |= known
        return len(known)

    def settle(self, tag: int) -> bool:
        """Drop a delivery that is rejected; False if it is unknown or settled."""
        if tag in self._acked or tag not in self._unsettled:
            return False
        del self._unsettled[tag]
        return True

    def frames(self, channel: int) -> list[bytes]:
        """The frames for everything acknowledged since the last call."""
        acked, unsettled = self._acked, self._unsettled
        if not acked:
            return []
        front = list(unsettled) if len(acked) == len(unsettled) else list(takewhile(acked.__contains__, unsettled))
        out = []
        if front:
            out.append(method_frame(channel, BasicAck(front[-1], len(front) > 1)))
            acked.difference_update(front)
            for tag in front:
                del unsettled[tag]
        for tag in sorted(acked):
            out.append(method_frame(channel, BasicAck(tag, False)))
            del unsettled[tag]
        acked.clear()
        return out

    def clear(self) -> None:
        """Drop everything, since the channel is gone."""
        self._unsettled.clear()
        self._acked.clear()
