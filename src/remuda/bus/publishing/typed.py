"""Types that carry their topic, queue and options (B21): `bus.publish(Order(...))` needs no topic."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar, Unpack

import msgspec

from remuda.bus.handlers.queue_rules import Rules, read_rules
from remuda.bus.publishing.message_checks import check_target
from remuda.model.errors import InvalidMessage, InvalidOption
from remuda.model.queues.options import QueueRuleKwargs
from remuda.model.values.option_reading import check_keywords
from remuda.model.values.texts import read_name, shown

T = TypeVar("T", bound=type)
_MARK: Final = "__remuda_message__"


class TypedMessage(msgspec.Struct, frozen=True):
    """What a type of messages carries."""

    topic: str
    queue: str | None = None
    rules: Rules = ()


def message(topic: str, *, queue: str | None = None, **options: Unpack[QueueRuleKwargs]) -> Callable[[T], T]:
    """Give a type of messages its topic, and the queue of its handlers with its options.

        @message("order.placed", queue="orders", message_limit=10_000)
        @dataclass
        class Order: ...

        bus.publish(Order(...))
        @bus.subscribe(Order)

    Whoever comes first creates the queue, a publisher or a handler, and its options are the same in both cases.
    """
    try:
        check_target("topic", topic)
    except InvalidMessage as error:
        raise InvalidOption(str(error).removesuffix("; nothing was stored")) from None
    if queue is not None:
        read_name("queue", queue)
    check_keywords("message", options, sorted(QueueRuleKwargs.__annotations__))
    if options and queue is None:
        raise InvalidOption(f"{', '.join(sorted(options))}: options are of a queue; name it: queue='...'")
    carried = TypedMessage(topic, queue, read_rules(options))

    def mark(kind: T) -> T:
        if not isinstance(kind, type):
            raise InvalidOption(f"@message marks a class, not {shown(kind)}")
        try:
            setattr(kind, _MARK, carried)
        except (AttributeError, TypeError) as error:
            raise InvalidOption(f"{kind.__name__} cannot carry a topic: {error}") from None
        return kind

    return mark


def carried_by(kind: object) -> TypedMessage | None:
    """What a type carries itself; that of its base is another message."""
    found = vars(kind).get(_MARK) if isinstance(kind, type) else None
    return found if isinstance(found, TypedMessage) else None


def addressed(topic: Any, body: Any) -> tuple[str, Any, TypedMessage | None]:
    """The topic and body that are meant where a value of a marked type may stand for both."""
    carried = carried_by(type(topic))
    if isinstance(topic, str) and (carried is None or body is not None):
        return topic, body, None
    if carried is None or body is not None:
        raise InvalidMessage(
            f"a topic must be a string, not {shown(topic)}; nothing was stored. A type carries its topic with "
            "@message('topic')"
        )
    return carried.topic, topic, carried


def with_carried(topics: tuple[str | type, ...], options: Mapping[str, Any]) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Topics with those of marked types in their places. What a single type carries holds where nothing is said."""
    found = [carried_by(topic) for topic in topics]
    for topic, carried in zip(topics, found, strict=True):
        if isinstance(topic, type) and carried is None:
            raise InvalidOption(f"{topic.__name__} carries no topic; mark it with @message('topic'), or give a string")
    carrying = [carried for carried in found if carried is not None]
    if len(carrying) == len(topics) == 1 and carrying[0].queue is not None:
        named = options.get("queue") or options.get("group")
        if named is None or named == carrying[0].queue:
            defaults: dict[str, Any] = {"queue": carrying[0].queue, **dict(carrying[0].rules)}
            if "group" in options:
                del defaults["queue"]
            options = {**defaults, **options}
    plain: list[Any] = [
        topic if carried is None else carried.topic for topic, carried in zip(topics, found, strict=True)
    ]
    return tuple(plain), dict(options)
