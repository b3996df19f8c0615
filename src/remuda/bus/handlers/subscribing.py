"""Registers handlers: by decorator, from the methods of an object, or by a schedule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from remuda.bus import argument_checks
from remuda.bus.handlers.handler import Handler, HandlerOptions, handler_id, queue_of
from remuda.bus.handlers.handler_registry import (
    RuleKwargs,
    SubscribeKwargs,
    check_known,
    check_queue,
    check_topics,
    class_name,
    marked_methods,
    read_options,
)
from remuda.bus.handlers.middleware import MiddlewareStack
from remuda.bus.handlers.providers import Provided, Providers, refuse_async_providers
from remuda.bus.handlers.queue_rules import with_prefix
from remuda.bus.handlers.signature import read_signature
from remuda.bus.publishing.typed import with_carried
from remuda.bus.scheduling.cron import Cron
from remuda.bus.scheduling.run_planner import Schedules
from remuda.bus.scheduling.schedule import CatchUp, Every, Schedule, topic_of
from remuda.model.errors import InvalidOption
from remuda.model.values.option_reading import read_enum
from remuda.model.values.texts import shown

F = TypeVar("F", bound=Callable[..., Any])


class Subscribing:
    """Checks what is subscribed, and passes handlers to `add`. Owns the providers."""

    def __init__(
        self, prefix: str, stack: MiddlewareStack, schedules: Schedules, add: Callable[[Handler], None]
    ) -> None:
        self.providers = Providers()
        self._prefix = prefix
        self._stack = stack
        self._schedules = schedules
        self._add = add

    def subscribe(self, topics: tuple[str | type, ...], options: SubscribeKwargs) -> Callable[[F], F]:
        check_known(options, SubscribeKwargs, "subscribe")
        plain, given = with_carried(topics, options)
        check_topics(plain)
        chosen = self._with_prefix(read_options(given))
        named = check_queue(given.get("queue"), given.get("group"))

        def register(function: F) -> F:
            name = handler_id(function)
            queue = named or queue_of(function)
            provided = Provided(self.providers, self._stack)
            signature = read_signature(function, batch=chosen.batch is not None, provided=provided)
            refuse_async_providers(function, name, signature.by_type.values(), self.providers)
            patterns = tuple(self._prefix + topic for topic in plain)
            self._add(Handler(name, self._prefix + queue, patterns, function, chosen, signature))
            return function

        return register

    def subscribe_class(self, instance: object) -> None:
        found = list(marked_methods(instance))
        if isinstance(instance, type) and any(argument_checks.needs_instance(method) for method, _, _ in found):
            raise InvalidOption(f"subscribe_class takes an instance: write {instance.__name__}(…), not the class")
        if not found:
            raise InvalidOption(f"no method of {type(instance).__name__} is marked with @handles")
        for method, topics, options in found:
            name = handler_id(method)
            if "." not in name or not hasattr(method, "__self__"):
                options = {"queue": f"{class_name(instance)}.{method.__name__}", **options}
            self.subscribe(topics, options)(method)

    def schedule(
        self, rule: Every | Cron, name: str | None, catch_up: CatchUp | str, rules: RuleKwargs
    ) -> Callable[[F], F]:
        missed = read_enum("catch_up", catch_up, CatchUp)
        check_known(rules, RuleKwargs, "a schedule")
        if name is not None and (not isinstance(name, str) or not name):
            raise InvalidOption(f"name must be a string, not {shown(name)}")

        def register(function: F) -> F:
            chosen = name or queue_of(function)
            topic = topic_of(chosen)
            options: SubscribeKwargs = {"queue": chosen, "unique": True}
            options.update(rules)  # type: ignore[typeddict-item]
            self.subscribe((topic,), options)(function)
            queue = self._prefix + chosen
            self._schedules.add(Schedule(queue, queue, rule, missed), self._prefix + topic)
            return function

        return register

    def provide(self, wanted: Any) -> Callable[[F], F]:
        argument_checks.check_type("provide", wanted)

        def register(function: F) -> F:
            self.providers.add(wanted, function)
            return function

        return register

    def _with_prefix(self, options: HandlerOptions) -> HandlerOptions:
        if not self._prefix:
            return options
        failover = None if options.failover is None else self._prefix + options.failover
        return msgspec.structs.replace(options, failover=failover, rules=with_prefix(options.rules, self._prefix))
