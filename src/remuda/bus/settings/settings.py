"""Settings from code, `remuda.toml`, the environment and PaperTrail's property names (B3); the more specific wins.

Every setting is a PaperTrail property: `message.retry.max`, or `message.retry.max.<queueId>` for one queue. In the
environment it is `REMUDA_MESSAGE_RETRY_MAX` or `REMUDA_MESSAGE_RETRY_MAX__<queueId>`, where the queue's id may also be
written as a shell allows it, `ORDERS_SHIP` for `Orders.ship`. In TOML a name that is longer than another setting's is
quoted, since a table cannot also be a value:

    message.retry.max = 3
    "message.retry.max.Orders.ship" = 10

`message.retry.check.interval` is accepted for compatibility: there is nothing to check at intervals, since each retry
comes when it is due. 0 switches retries off, as in PaperTrail, which then never looks for them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from remuda.broker.toml import flattened, read_toml
from remuda.bus.handlers.handler import NO_TIMEOUT, ExecutorKind, HandlerOptions
from remuda.bus.handlers.queue_rules import Rules
from remuda.bus.settings.properties import PROPERTIES
from remuda.bus.settings.retry import RetryPolicy
from remuda.model.errors import InvalidOption
from remuda.model.queues.system_queues import SYSTEM_QUEUES
from remuda.model.values.option_reading import unknown
from remuda.model.values.texts import shown

_PREFIX: Final = "REMUDA_"
_FILE, _CODE, _ENVIRONMENT = 1, 2, 3


class Setting(msgspec.Struct, frozen=True):
    """A value and its source; of two spellings of one setting, the higher rank wins."""

    value: Any
    source: str
    rank: int = 0


class QueueSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The effective settings of one queue."""

    retry: RetryPolicy
    timeout: int | None
    failover: str | None
    threads: int
    executor: ExecutorKind | None
    queue_size: int
    batch: int | None = None
    batch_wait: int | None = None
    batch_by_key: bool = False
    unique: bool = False
    rules: Rules = ()
    """Further options of the queue."""


class Settings:
    """All sources in one place. Later sources win over earlier ones, a queue's own value over the general one."""

    def __init__(self) -> None:
        self._values: dict[str, Setting] = {}

    @classmethod
    def load(
        cls,
        properties: Mapping[str, Any] | None = None,
        file: str | os.PathLike[str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Settings:
        """Settings from a TOML file, then code, then the environment. The file may be absent unless it is named."""
        if properties is not None and not isinstance(properties, Mapping):
            raise InvalidOption(f"settings must map names of settings to values, not {shown(properties)}")
        if file is not None and not isinstance(file, str | os.PathLike):
            raise InvalidOption(f"config must be the path of a TOML file, not {shown(file)}")
        settings = cls()
        path = Path(file) if file is not None else Path("remuda.toml")
        if file is not None or path.exists():
            settings.read_file(path)
        for name, value in (properties or {}).items():
            settings.put(name, value, "code", _CODE)
        settings.read_environment(os.environ if environment is None else environment)
        return settings

    def read_file(self, path: Path) -> None:
        tables, where = read_toml(path)
        for name, value in flattened(tables):
            self.put(name, value, where(name), _FILE)

    def read_environment(self, environment: Mapping[str, str]) -> None:
        names = {_PREFIX + name.upper().replace(".", "_"): name for name in PROPERTIES}
        for variable, value in environment.items():
            if not variable.startswith(_PREFIX + "MESSAGE_"):
                continue
            known, _, queue = variable.partition("__")
            if known not in names:
                raise unknown("setting", known, list(names), "environment")
            self.put(names[known] + (f".{queue}" if queue else ""), value, variable, _ENVIRONMENT)

    def put(self, name: str, value: Any, source: str, rank: int = _ENVIRONMENT + 1) -> None:
        """Add one setting; raises `InvalidOption` with its source and name."""
        known = property_of(name) if isinstance(name, str) else None
        if known is None:
            raise unknown("setting", name, list(PROPERTIES), source)
        if name == known + ".":
            raise InvalidOption(f"{source}: {shown(name)} names no queue after its last dot")
        if name != known and not PROPERTIES[known].per_queue:
            raise InvalidOption(f"{source}: {known} holds for all queues; {shown(name)} cannot be set for one")
        if name == "message.failover":
            raise InvalidOption(f"{source}: message.failover needs a queue: message.failover.<queueId>")
        try:
            self._values[name] = Setting(PROPERTIES[known].read(value), source, rank)
        except InvalidOption as error:
            raise InvalidOption(f"{source}: {name} {error}") from None

    def get(self, name: str) -> Setting:
        """The value for queues that have none of their own."""
        return self._values.get(name, Setting(PROPERTIES[name].default, "default"))

    def own(self, name: str, queue: str) -> Setting | None:
        """A queue's own value."""
        found = [self._values.get(f"{name}.{written}") for written in (queue, _shell_name(queue))]
        return max((one for one in found if one is not None), key=lambda one: one.rank, default=None)

    def unknown_queues(self, queues: Iterable[str]) -> set[str]:
        """Queues that a setting names but that are not among these."""
        known = {name for queue in queues for name in (queue, _shell_name(queue))}
        named = {name[len(prefix) + 1 :] for name in self._values if (prefix := property_of(name)) and prefix != name}
        return named - known

    def for_queue(self, queue: str, options: HandlerOptions) -> QueueSettings:
        """The settings of a queue: its own come first, then its handler's options, then the general settings."""

        def pick(name: str, option: Any) -> Any:
            own = self.own(name, queue)
            return own.value if own is not None else option if option is not None else self.get(name).value

        return QueueSettings(
            retry=self._retry(queue, options),
            timeout=None if options.timeout == NO_TIMEOUT else pick("message.timeout", options.timeout),
            failover=pick("message.failover", options.failover),
            threads=pick("message.threads", options.threads),
            executor=pick("message.executor", options.executor),
            queue_size=pick("message.queue.size", None),
            batch=options.batch,
            batch_wait=options.batch_wait,
            batch_by_key=options.batch_by_key,
            unique=options.unique,
            rules=options.rules,
        )

    def effective(self, queues: Mapping[str, HandlerOptions]) -> list[tuple[str, Any, str]]:
        """Every setting in force, with its source, for people to read."""
        rows = [
            (name, self._in_force(name), self.get(name).source) for name in PROPERTIES if name != "message.failover"
        ]
        for queue, options in queues.items():
            for name, value, source in self._of_queue(queue, options):
                if source is not None:
                    rows.append((f"{name}.{queue}", value, source))
        return rows

    def of_queue(self, queue: str, options: HandlerOptions) -> list[tuple[str, Any, str]]:
        """A queue's settings in force, each with where it was set."""
        return [
            (name, value, self._source_for_all(name) if source is None else source)
            for name, value, source in self._of_queue(queue, options)
        ]

    def _of_queue(self, queue: str, options: HandlerOptions) -> Iterator[tuple[str, Any, str | None]]:
        """A queue's settings in force, each with where it was set for this queue, if it was."""
        chosen = self.for_queue(queue, options)
        for name, value, written in (
            ("message.retry", chosen.retry, options.retry),
            ("message.timeout", chosen.timeout, options.timeout),
            ("message.failover", chosen.failover, options.failover),
            ("message.threads", chosen.threads, options.threads),
            ("message.executor", chosen.executor, options.executor),
            ("message.queue.size", chosen.queue_size, None),
        ):
            own = self._source_of(name, queue)
            yield name, value, own.source if own is not None else "handler" if written is not None else None

    def _source_for_all(self, name: str) -> str:
        below = [known for known in PROPERTIES if known == name or known.startswith(name + ".")]
        return next((found for known in below if (found := self.get(known).source) != "default"), "default")

    def _in_force(self, name: str) -> Any:
        """A general value as it takes effect: no retry interval is shorter than the minimum."""
        value = self.get(name).value
        if name != "message.retry.intervals":
            return value
        least = self.get("message.retry.min.interval").value
        return tuple(max(interval, least) for interval in value)

    def _retry(self, queue: str, options: HandlerOptions) -> RetryPolicy:
        """The handler's policy, or the configured one; a queue's own settings win over both."""
        written = options.retry
        changes: dict[str, Any] = {}
        if isinstance(written, RetryPolicy):
            policy = written
            if self.get("message.retry.min.interval").source != "default":
                changes["min_interval"] = self.get("message.retry.min.interval").value
        else:
            policy = RetryPolicy(
                max_retries=self.get("message.retry.max").value if written is None else written,
                intervals=self.get("message.retry.intervals").value,
                min_interval=self.get("message.retry.min.interval").value,
            )
        for name, field in (("message.retry.max", "max_retries"), ("message.retry.intervals", "intervals")):
            own = self.own(name, queue)
            if own is not None:
                changes[field] = own.value
        if "max_retries" in changes and policy.threshold == policy.max_retries + 1:
            changes["threshold"] = changes["max_retries"] + 1
        if self.get("message.retry.check.interval").value == 0 and queue not in SYSTEM_QUEUES:
            changes |= {"max_retries": 0, "threshold": None if policy.threshold is None else 1}
        if options.retry_on is not None:
            changes["retry_on"] = options.retry_on
        if options.give_up_on is not None:
            changes["give_up_on"] = options.give_up_on
        return msgspec.structs.replace(policy, **changes)

    def _source_of(self, name: str, queue: str) -> Setting | None:
        """A queue's own value of a property, or of one below it."""
        below = [known for known in PROPERTIES if known == name or known.startswith(name + ".")]
        return next((own for known in below if (own := self.own(known, queue)) is not None), None)


def property_of(name: str) -> str | None:
    """The property that a setting's name begins with."""
    return max((known for known in PROPERTIES if name == known or name.startswith(known + ".")), key=len, default=None)


def _shell_name(queue: str) -> str:
    """A queue's id as the name of an environment variable can hold it."""
    return re.sub(r"\W", "_", queue, flags=re.ASCII).upper()
