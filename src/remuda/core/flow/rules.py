"""What a queue's options say of its keys, worked out when they change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from remuda.core.flow.buckets import Bucket, bucket
from remuda.core.flow.keys import number_of
from remuda.model.messages import Messages, cell
from remuda.model.queues.flow_info import FLOW_KEY, flow_key_of, key_header
from remuda.model.queues.options import OnRetry, QueueOptions

_DIGITS: Final = 7
_REMEMBERED: Final = 2000


class KeyRules:
    """Rules of a queue for each of its keys."""

    __slots__ = (
        "_known", "bucket", "buckets", "header", "holds", "most", "mosts", "ordered", "settles", "settling", "weights"
    )  # fmt: skip

    def __init__(self, options: QueueOptions) -> None:
        self.holds = options.on_retry is OnRetry.HOLD or (options.ordered and options.on_retry is OnRetry.AUTO)
        """Whether messages of a key wait for one of them that is to be tried again."""
        self.most = 1 if options.ordered else options.concurrency_per_key
        """How many of a key may be in flight; 0 means no limit."""
        self.ordered = options.ordered
        self.bucket = bucket(options.rate_per_key)
        own = [(number_of(name), value) for name, value in pairs(options.key_limits)]
        self.mosts = {number: int(value) for number, value in own if value.isdecimal()}
        """How many of a key may be in flight, of those that have a limit of their own."""
        self.buckets: dict[int, Bucket] = {number: Bucket(value) for number, value in own if not value.isdecimal()}
        self.weights = {number_of(name): float(weight) for name, weight in pairs(options.weights)}
        """How many turns a key has where others have one."""
        self.header = key_header(options.flow_key)
        self.settling = options.debounce > 0, options.throttle > 0
        """Whether a key has to be quiet before one of its messages, or is after one."""
        self.settles = options.debounce > 0 or options.throttle > 0
        self._known: dict[str | None, int] = {}
        """The numbers of keys that came lately."""

    def most_of(self, number: int, own: int) -> int:
        """How many of a key may be in flight; 0 means no limit. `own` is what its messages say."""
        if own and self.most and not self.ordered:
            return own
        return self.mosts.get(number, self.most) if self.mosts else self.most

    def bucket_of(self, number: int) -> Bucket | None:
        return self.buckets.get(number, self.bucket) if self.buckets else self.bucket

    @property
    def paces(self) -> bool:
        """Whether a key may have a rate."""
        return self.bucket is not None or bool(self.buckets)

    def number(self, key: str | None, headers: Mapping[str, str]) -> int:
        """The key of one message, as a number."""
        return number_of(self.text(key, headers))

    def numbers(self, messages: Messages, start: int, stop: int) -> Sequence[int]:
        """The keys of these rows; one for all if they share it."""
        key, headers = messages.key, messages.headers
        if not isinstance(headers, list) and (
            not isinstance(key, list) or (headers and (FLOW_KEY in headers or self.header is not None))
        ):
            return [self.number(None if isinstance(key, list) else key, headers)]
        known = self._known
        if len(known) > _REMEMBERED:
            known.clear()
        found = []
        for row in range(start, stop):
            own = self.text(cell(key, row), cell(headers, row))
            number = known.get(own)
            if number is None:
                number = known[own] = number_of(own)
            found.append(number)
        return found

    def text(self, key: str | None, headers: Mapping[str, str]) -> str | None:
        """The key of one message; None if it has none."""
        return flow_key_of(self.header, key, headers)


def said(headers: Mapping[str, str], name: str) -> int:
    """The whole number that a header says; 0 if it says none."""
    text = headers.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _DIGITS else 0


def pairs(texts: Sequence[str]) -> list[tuple[str, str]]:
    """Names and values of texts like `name=value`."""
    return [(name, value) for name, _, value in (text.rpartition("=") for text in texts)]
