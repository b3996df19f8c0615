"""The rules of one queue for how much goes out, and when: its own slots and rate, those it shares, and its keys'."""

from __future__ import annotations

from typing import Any

from remuda.core.flow.buckets import MOST, Weights, bucket, put_right, weight_of
from remuda.core.flow.keyed import KeyedMessages, KeyTimes
from remuda.core.flow.limits import SharedLimit
from remuda.core.flow.rules import KeyRules
from remuda.core.queues.ready import NEVER
from remuda.model.queues.options import QueueOptions

Signature = tuple[Any, ...]


def signature(options: QueueOptions) -> Signature | None:
    """The rules among the options; None if there are none."""
    rules = (
        options.concurrency, options.rate, options.limits, options.ordered, options.on_retry, options.flow_key,
        options.concurrency_per_key, options.rate_per_key, options.key_limits, options.fair, options.weights,
        options.takes_turns, options.debounce > 0, options.throttle > 0,
    )  # fmt: skip
    return rules if options.has_flow else None


class Flow:
    """How much of a queue may go out now, and when that changes by itself."""

    __slots__ = ("bucket", "due", "keyed", "most", "rules", "served", "shared", "signature", "started")

    def __init__(self, options: QueueOptions) -> None:
        self.signature = signature(options)
        self.most = options.concurrency
        self.bucket = bucket(options.rate)
        self.due = 0.0
        """When the next message is due by the queue's rate."""
        self.started = 0
        """When a message last started, or a snapshot was made since."""
        self.shared: list[SharedLimit] = []
        self.rules = KeyRules(options) if options.takes_turns else None
        self.keyed: KeyedMessages | None = None
        self.served = 0
        """Higher for queues that were served later, among those that share a limit."""

    def room(self, now: int, in_flight: int) -> int:
        """How many messages may go now, by what holds for the queue as a whole."""
        room = self.most - in_flight if self.most else MOST
        if self.bucket is not None:
            room = min(room, self.bucket.room(self.due, now))
        for limit in self.shared:
            room = min(room, limit.room(now))
        return max(room, 0)

    def opens(self, now: int, in_flight: int) -> int:
        """When more may go, if nothing but time goes by."""
        if self.most and in_flight >= self.most:
            return NEVER
        at = 0 if self.bucket is None else self.bucket.opens(self.due, now)
        for limit in self.shared:
            at = max(at, limit.opens(now))
        if at > now:
            return at
        return NEVER if self.keyed is None else self.keyed.opens()

    def state(self) -> tuple[float, list[KeyTimes], list[tuple[int, int]]]:
        """What its rates, its paused keys and the limits of single keys have come to."""
        keyed = self.keyed
        return (self.due, [], []) if keyed is None else (self.due, keyed.times(), keyed.limits())

    def resume(self, due: float, keys: list[KeyTimes], limits: list[tuple[int, int]], time: int) -> None:
        self.due, self.started = due, time
        if self.keyed is not None:
            self.keyed.resume(keys)
            for number, most in limits:
                self.keyed.limit(number, most)

    def turn_back(self, now: int) -> None:
        """After a start with a clock that is behind the last one, which was ahead: what is due by it would be late."""
        ahead = self.started - now
        if ahead > 0:
            self.started = now
            self.due = put_right(self.due, now, ahead)
            if self.keyed is not None:
                self.keyed.turn_back(now, ahead)

    def spend(self, first: int, count: int, time: int, weights: Weights) -> None:
        """Messages started."""
        if time < self.started:
            self.turn_back(time)
        self.started = time
        weight = weight_of(weights, first, count)
        if self.bucket is not None:
            self.due = self.bucket.spend(self.due, time, weight)
        for limit in self.shared:
            limit.spend(weight, time)
        if self.keyed is not None:
            self.keyed.spend(first, count, time, weights)
