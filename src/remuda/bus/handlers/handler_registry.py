"""All handlers of a bus, checked when they are registered."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypedDict, TypeVar, Unpack

from remuda.bus.handlers.handler import ExecutorKind, Handler, HandlerOptions, is_typed_in
from remuda.bus.handlers.queue_rules import read_rules
from remuda.bus.publishing.typed import with_carried
from remuda.bus.settings.properties import MOST_THREADS
from remuda.bus.settings.retry import RetrySpec, error_types, policy
from remuda.model.errors import InvalidMessage, InvalidOption
from remuda.model.queues.options import QueueRuleKwargs
from remuda.model.queues.system_queues import SYSTEM_QUEUES
from remuda.model.topics import WILDCARDS, check_topic
from remuda.model.values.durations import Duration
from remuda.model.values.option_reading import check_keywords, read_duration, read_enum
from remuda.model.values.texts import LARGEST, read_count, shown

_log = logging.getLogger("remuda.bus")

_LONGEST_NAME: Final = 255

F = TypeVar("F", bound=Callable[..., Any])
ErrorTypes = type[BaseException] | tuple[type[BaseException], ...] | list[type[BaseException]]


class RuleKwargs(TypedDict, total=False):
    """The rules a handler runs under."""

    retry: RetrySpec
    retry_on: ErrorTypes | None
    give_up_on: ErrorTypes | None
    timeout: Duration | None
    failover: str | None
    threads: int | None
    executor: ExecutorKind | str | None
    keep_result: bool


class SubscribeKwargs(RuleKwargs, QueueRuleKwargs, total=False):
    """Options of `subscribe` and `handles`: rules of the handler, and options of its queue."""

    queue: str | None
    group: str | None
    batch: int | None
    batch_wait: Duration | None
    batch_by_key: bool
    unique: bool


class HandlerRegistry:
    """Handlers in order of registration."""

    def __init__(self) -> None:
        self.handlers: list[Handler] = []

    def __iter__(self) -> Iterator[Handler]:
        return iter(self.handlers)

    def add(self, handler: Handler) -> None:
        if handler.queue in SYSTEM_QUEUES:
            raise InvalidOption(f"the queue {handler.queue} belongs to the bus itself; give {handler.id} another")
        self._replace_redefined(handler)
        for other in self.handlers:
            if other.queue != handler.queue:
                continue
            if other.id == handler.id == handler.queue and other.function != handler.function:
                raise InvalidOption(
                    f"two handlers are called {handler.id} and would compete for one queue; give one of them another "
                    "queue, or both the same group if that is intended"
                )
            if other.options != handler.options:
                raise InvalidOption(
                    f"handlers {other.id} and {handler.id} share the queue {handler.queue} but differ in their "
                    "options; give them the same options, or different groups"
                )
            if handler.signature.batch and other.function != handler.function:
                raise InvalidOption(
                    f"handlers {other.id} and {handler.id} take lists and cannot share the queue {handler.queue}: "
                    "a list may hold messages for both"
                )
        self.handlers.append(handler)

    def taking(self, topic: str) -> list[Handler]:
        """One handler of each queue that takes this topic."""
        chosen: dict[str, Handler] = {}
        for handler in self.handlers:
            if handler.takes(topic):
                chosen.setdefault(handler.queue, handler)
        return list(chosen.values())

    def _replace_redefined(self, handler: Handler) -> None:
        """Running a notebook cell again defines its handler again: the new one replaces the old one."""
        function = handler.function
        if not is_typed_in(function):
            return
        redefined = [
            other
            for other in self.handlers
            if other.function is not function
            and getattr(other.function, "__module__", None) == function.__module__
            and getattr(other.function, "__qualname__", None) == function.__qualname__
        ]
        if redefined:
            self.handlers = [other for other in self.handlers if other not in redefined]
            _log.info("%s was defined again and replaces the earlier handler", handler.id)


def read_options(given: Mapping[str, Any]) -> HandlerOptions:
    """Options as an application writes them, checked."""
    timeout, executor = given.get("timeout"), given.get("executor")
    limit = None if timeout is None else read_duration("timeout", timeout)
    if limit == 0:
        raise InvalidOption(f"timeout must be longer than zero, not {shown(timeout)}")
    failover = given.get("failover")
    _check_name("failover", failover)
    rules = read_rules(given)
    wait = None if given.get("batch_wait") is None else read_duration("batch_wait", given["batch_wait"])
    by_key = _flag("batch_by_key", given.get("batch_by_key", False))
    if given.get("batch") is None and (wait is not None or by_key):
        raise InvalidOption("batch_wait and batch_by_key are for handlers of lists; give batch=, the most of one")
    unique = _flag("unique", given.get("unique", False)) or ("unique_ids", True) in rules
    return HandlerOptions(
        retry=policy(given.get("retry")),
        retry_on=error_types("retry_on", given.get("retry_on")),
        give_up_on=error_types("give_up_on", given.get("give_up_on")),
        timeout=limit,
        failover=failover,
        threads=_count("threads", given.get("threads"), MOST_THREADS),
        executor=None if executor is None else read_enum("executor", executor, ExecutorKind),
        batch=_count("batch", given.get("batch")),
        batch_wait=wait,
        batch_by_key=by_key,
        unique=unique,
        rules=tuple(rule for rule in rules if rule[0] != "unique_ids"),
        keep_result=_flag("keep_result", given.get("keep_result", False)),
    )


def check_queue(queue: str | None, group: str | None) -> str | None:
    """The name given as `queue` or `group`, if any."""
    _check_name("queue", queue)
    _check_name("group", group)
    if queue is not None and group is not None and queue != group:
        raise InvalidOption(
            f"a group is a queue that handlers share: give queue={shown(queue)} or group={shown(group)}, not both"
        )
    return queue or group


def check_topics(topics: tuple[str, ...], decorator: str = "@bus.subscribe") -> None:
    if not topics:
        raise InvalidOption(f"{decorator.rpartition('.')[2].lstrip('@')} needs at least one topic")
    for topic in topics:
        if not isinstance(topic, str):
            raise InvalidOption(
                f"a topic must be a string, not {shown(topic)}; the decorator is written {decorator}('topic')"
            )
        try:
            check_topic(topic)
        except InvalidMessage as error:
            raise InvalidOption(str(error).removesuffix("; nothing was stored")) from None
        if any(word not in WILDCARDS and not WILDCARDS.isdisjoint(word) for word in topic.split(".")):
            _log.warning(
                "topic %r has * or # inside a word, where it is an ordinary character; a wildcard stands for whole "
                "words, as in 'order.*'",
                topic,
            )


def marked_methods(instance: object) -> Iterator[tuple[Callable[..., Any], tuple[str, ...], SubscribeKwargs]]:
    """The methods of an object that `handles` has marked, static and class methods included."""
    kind = instance if isinstance(instance, type) else type(instance)
    for name in dir(kind):
        raw = inspect.getattr_static(kind, name, None)
        inner = raw.__func__ if isinstance(raw, staticmethod | classmethod) else raw
        marks = [*getattr(inner, "__remuda_handles__", ())]
        if raw is not inner:
            marks += [mark for mark in getattr(raw, "__remuda_handles__", ()) if mark not in marks]
        for topics, options in marks:
            yield getattr(instance, name), topics, options


def handles(*topics: str | type, **options: Unpack[SubscribeKwargs]) -> Callable[[F], F]:
    """Mark a method as a handler; `bus.subscribe_class(instance)` registers all marked methods."""
    check_known(options, SubscribeKwargs, "handles")
    plain, given = with_carried(topics, options)
    check_topics(plain, "@handles")
    read_options(given)
    check_queue(given.get("queue"), given.get("group"))

    def mark(function: F) -> F:
        marks = [*getattr(function, "__remuda_handles__", ()), (plain, given)]
        target = function.__func__ if isinstance(function, staticmethod | classmethod) else function
        target.__remuda_handles__ = marks  # type: ignore[attr-defined]
        return function

    return mark


def check_known(options: Mapping[str, Any], known: Any, what: str) -> None:
    check_keywords(what, options, sorted({*known.__annotations__, *RuleKwargs.__annotations__}))


def class_name(instance: object) -> str:
    return instance.__name__ if isinstance(instance, type) else type(instance).__name__


def _check_name(option: str, name: object) -> None:
    if name is None:
        return
    if not isinstance(name, str) or not name or not name.isprintable() or len(name.encode()) > _LONGEST_NAME:
        raise InvalidOption(
            f"{option} must be a queue's name, 1 to {_LONGEST_NAME} bytes of printable text, not {shown(name)}"
        )


def _count(name: str, value: int | None, most: int = LARGEST) -> int | None:
    return None if value is None else read_count(name, value, 1, most)


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise InvalidOption(f"{name} must be True or False, not {shown(value)}")
    return value
