"""The headers that CAF workers set, and deciding by them what to do with a delivery (W3, W4)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from remuda.amqp.client.amqp_delivery import Delivery
from remuda.amqp.codec.frames import FRAME_MAX
from remuda.amqp.codec.properties import PERSISTENT, Properties, encode_properties, with_headers, without_property
from remuda.amqp.errors import ProtocolError
from remuda.worker.config import QueueType, WorkerConfig
from remuda.worker.tasks import InvalidTaskMessage, TaskMessage, parse_task

RETRY: Final = "x-caf-worker-retry"
LIMIT: Final = "x-caf-worker-retry-limit"
MISSPELT_LIMIT: Final = "x-caf-worker-retry-lmit"
REJECTED: Final = "x-caf-worker-rejected"
DELIVERY_COUNT: Final = "x-delivery-count"

INVALID: Final = "TASKMESSAGE_INVALID"
EXCEEDED: Final = "RETRIES_EXCEEDED"

_BROKERS_OWN: Final = frozenset({DELIVERY_COUNT, "x-acquired-count", "CC", "BCC"})
"""Dropped when a message is sent again: counts of the queue that it leaves, and routes already taken."""
_MOST: Final = 2**31 - 1
_HEADER_ROOM: Final = FRAME_MAX - 20


class Run(msgspec.Struct, frozen=True):
    """Run the task."""

    message: TaskMessage
    retries: int


class Forward(msgspec.Struct, frozen=True):
    """Pass the message on, as it came, to the queue that it names."""

    queue: str


class Retry(msgspec.Struct, frozen=True):
    """Move the message to the retry queue with this count."""

    retries: int


class Reject(msgspec.Struct, frozen=True):
    """Answer with an error and mark the message."""

    reason: str
    text: str
    message: TaskMessage | None


def decide(delivery: Delivery, config: WorkerConfig) -> Run | Forward | Retry | Reject:
    """What to do with a delivery."""
    offloaded = next((name for name in headers_of(delivery) if is_offloading(name)), None)
    if offloaded is not None:
        text = (
            f"its payload was off-loaded to a data store (header {offloaded}), which this worker cannot read; switch "
            "payload off-loading off where the task is sent"
        )
        return Reject(INVALID, text, None)
    try:
        message = parse_task(delivery.body)
    except InvalidTaskMessage as error:
        return Reject(INVALID, str(error), None)
    stamped = _count(_header(delivery, RETRY)) or 0
    if not delivery.redelivered:
        return _aim(message, stamped, config)
    limit = retry_limit(delivery, config.retry_limit)
    quorum = config.queue_type is QueueType.QUORUM
    counted = max(_count(_header(delivery, DELIVERY_COUNT)) or 0, 1) if quorum else 1
    retries = min(stamped + counted, _MOST)
    if retries > limit:
        return Reject(EXCEEDED, f"the task was delivered {retries} times and never acknowledged", message)
    if quorum and config.retry_queue == config.input_queue:
        return _aim(message, retries, config)  # the broker counts by itself, so the message can keep its place
    return Retry(retries)


def _aim(message: TaskMessage, retries: int, config: WorkerConfig) -> Run | Forward:
    """A task that names another queue belongs to another worker."""
    own = {config.input_queue.lower(), config.retry_queue.lower()}
    return Forward(message.to) if message.to and message.to.lower() not in own else Run(message, retries)


def is_offloading(header: str) -> bool:
    """Whether a header refers to a payload, or a part of one, that lies in a data store of CAF's."""
    name = header.lower()
    return name.startswith("x-caf-") and any(word in name for word in ("offload", "dehydration", "minimization"))


def retry_limit(delivery: Delivery, default: int) -> int:
    """How often this message may be retried: by its own header, in either spelling, else by the config."""
    for name in (LIMIT, MISSPELT_LIMIT):
        limit = _count(_header(delivery, name))
        if limit is not None:
            return limit
    return default


def restamped(delivery: Delivery, entries: Mapping[str, Any]) -> bytes:
    """The properties with which to send a delivery again: these headers set, all others unchanged, byte for byte."""
    try:
        raw = with_headers(delivery.raw_properties, entries, without=_BROKERS_OWN)
        raw = without_property(raw, "user_id")  # the broker refuses the name of another user
    except (ProtocolError, IndexError):
        raw = b""
    if 0 < len(raw) <= _HEADER_ROOM:
        return raw
    return encode_properties(Properties(delivery_mode=PERSISTENT, headers=dict(entries)))


def headers_of(delivery: Delivery) -> dict[str, Any]:
    """All headers, for a plug-in; none if they cannot be decoded."""
    try:
        return delivery.properties.headers or {}
    except ProtocolError:
        return {}


def _header(delivery: Delivery, name: str) -> Any:
    try:
        return delivery.header(name)
    except (ProtocolError, IndexError):
        return None


def _count(value: Any) -> int | None:
    """A header's value as a count; None if it is not one."""
    if isinstance(value, bytes):
        value = value.decode("ascii", "replace")
    if isinstance(value, str):
        value = value.strip()
        if not (value.isascii() and value.isdecimal()) or len(value) > 10:
            return None
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        return None
    return min(int(value), _MOST)


def retries_of(delivery: Delivery, config: WorkerConfig) -> int:
    """How often a delivery was retried so far, by its stamp and by the broker's own count."""
    stamped = _count(_header(delivery, RETRY)) or 0
    if config.queue_type is QueueType.QUORUM and delivery.redelivered:
        stamped += max(_count(_header(delivery, DELIVERY_COUNT)) or 0, 1)
    return min(stamped, _MOST)
