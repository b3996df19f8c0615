"""Registers workflows as handlers of a bus: each name has a queue, and another where the messages it waits for come."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from remuda.bus.handlers.context import Context
from remuda.bus.handlers.handler import NO_TIMEOUT, ExecutorKind, Handler, HandlerOptions, queue_of
from remuda.bus.handlers.handler_registry import SubscribeKwargs, check_known, check_topics, read_options
from remuda.bus.handlers.signature import Signature
from remuda.bus.settings.retry import RetryPolicy, RetrySpec, policy
from remuda.bus.workflows import mailbox, told
from remuda.bus.workflows.conduct import conduct, conduct_async
from remuda.bus.workflows.definition import Definition, Family
from remuda.bus.workflows.workflow_run import perform
from remuda.model.errors import InvalidOption
from remuda.model.queues.system_queues import CANVAS, TOLD
from remuda.model.values.durations import SECOND
from remuda.model.values.texts import read_count, shown

if TYPE_CHECKING:
    from remuda.bus.bus import Bus

F = TypeVar("F", bound=Callable[..., Any])

SIGNALS: Final = ".signals"
"""Ends the name of the queue with the messages that runs wait for."""
_LOST_WORKERS: Final = RetryPolicy(max_retries=1000, intervals=(0, SECOND, 10 * SECOND), give_up_on=(BaseException,))
"""The attempts of a run's message count lost workers only: what fails in a step is retried there."""
_TOLD_AGAIN: Final = RetryPolicy(max_retries=1000, intervals=(SECOND, 10 * SECOND))
_NOT_FOR_RUNS: Final = frozenset(
    {"queue", "group", "batch", "unique", "failover", "keep_result", "retry_on", "give_up_on", "unique_ids"}
)


class Registering:
    """The workflows of one bus."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self.families: dict[str, Family] = {}
        self.enabled = False

    def workflow(
        self,
        topics: tuple[str, ...],
        name: str | None,
        version: int,
        retry: RetrySpec,
        waits_for: tuple[str, ...],
        options: dict[str, Any],
    ) -> Callable[[F], F]:
        if topics:
            check_topics(topics, "@bus.workflow")
        if isinstance(waits_for, str):
            waits_for = (waits_for,)
        if waits_for:
            check_topics(tuple(waits_for), "@bus.workflow")
            if any(word in ("*", "#") for topic in waits_for for word in topic.split(".")):
                raise InvalidOption("waits_for takes topics without wildcards: a run waits for one topic at a time")
        number = read_count("version", version, 1)
        if name is not None and (not isinstance(name, str) or not name):
            raise InvalidOption(f"name must be a string, not {shown(name)}")
        check_known(options, SubscribeKwargs, "workflow")
        for option in sorted(set(options) & _NOT_FOR_RUNS):
            raise InvalidOption(f"a workflow takes no {option}: a run is one message, whose steps are retried")
        chosen = read_options({"retry": retry, **options})
        steps = policy(retry)

        def register(function: F) -> F:
            own = name or queue_of(function)
            self.enable()
            family = self.families.get(own)
            wanted = HandlerOptions(retry=steps, timeout=chosen.timeout)
            defaults = self._bus.settings.for_queue(f"workflow.{own}", wanted)
            definition = Definition(own, number, function, defaults.retry, defaults.timeout)
            if family is None:
                self._add(own, topics, tuple(waits_for), definition, chosen)
                return function
            if topics and set(map(self._full, topics)) - set(family.topics):
                raise InvalidOption(f"the versions of workflow {own} share their topics; give them at the first one")
            missing = set(map(self._full, waits_for)) - set(family.topics_awaited)
            if missing:
                raise InvalidOption(
                    f"the versions of workflow {own} share what they wait for; give {', '.join(sorted(missing))} at "
                    "the first one too"
                )
            family.add(definition)
            return function

        return register

    def _full(self, topic: str) -> str:
        return self._bus.prefix + topic

    def _add(
        self,
        own: str,
        topics: tuple[str, ...],
        waits_for: tuple[str, ...],
        definition: Definition,
        chosen: HandlerOptions,
    ) -> None:
        bus = self._bus
        topic, queue = self._full(f"workflow.{own}"), self._full(f"workflow.{own}")
        family = Family(own, topic, queue, tuple(map(self._full, waits_for)), bus)
        family.topics = (topic, *map(self._full, topics))
        family.add(definition)
        conductor = conduct_async if definition.is_async else conduct
        options = HandlerOptions(
            retry=_LOST_WORKERS, threads=chosen.threads, executor=chosen.executor, timeout=NO_TIMEOUT,
            keep_result=True, rules=chosen.rules,
        )  # fmt: skip
        _register(bus, queue, family.topics, partial(conductor, family), options, replies=True)
        if family.topics_awaited:
            signals = HandlerOptions(retry=_TOLD_AGAIN, threads=1, executor=ExecutorKind.THREADS)
            _register(bus, f"{queue}{SIGNALS}", family.topics_awaited, partial(_came, bus), signals)
            mailboxes = self._full(mailbox.QUEUE)
            if not any(handler.queue == mailboxes for handler in bus.handlers):
                _register(bus, mailboxes, (mailbox.TOPIC,), partial(_close, bus), signals)
        self.families[own] = family

    def enable(self) -> None:
        """Take part in chains and groups: be told of members that ended without a handler, and carry them on."""
        if self.enabled:
            return
        self.enabled = True
        bus = self._bus
        hearing = HandlerOptions(retry=_TOLD_AGAIN, threads=1, executor=ExecutorKind.THREADS)
        _register(bus, self._full(TOLD), (f"{told.PREFIX}#",), partial(_hear, bus), hearing)
        canvas = Definition(CANVAS, 1, perform, RetryPolicy())
        self._add(CANVAS, (), (), canvas, HandlerOptions(threads=4, executor=ExecutorKind.THREADS))


def _register(
    bus: Bus,
    queue: str,
    topics: tuple[str, ...],
    function: Callable[..., Any],
    options: HandlerOptions,
    *,
    replies: bool = False,
) -> None:
    signature = Signature(None, Any, False, {"context": Context})
    bus.add(Handler(queue, queue, topics, function, options, signature, replies=replies))


def _hear(bus: Bus, context: Context) -> None:
    """A member of a group ended without a worker that could tell: it expired, or was cancelled."""
    message = context.message
    told.tell(bus.broker, message.name, message.body, message.mime_type, message.headers)


def _came(bus: Bus, context: Context) -> None:
    """A message came that a run waits for, or will."""
    message = context.message
    bus.workflows.mailboxes.arrived(message.name, message.key, context.place.offset, message)


def _close(bus: Bus, context: Context) -> None:
    """The time of a mailbox is up."""
    bus.workflows.mailboxes.close(context)
