"""A workflow as it is declared: a function and its versions."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from remuda.bus.publishing import bodies
from remuda.bus.settings.retry import RetryPolicy
from remuda.bus.workflows.errors import Diverged
from remuda.model.errors import InvalidOption

if TYPE_CHECKING:
    from remuda.bus.bus import Bus


class Definition:
    """One version of a workflow. It can be sent to another process."""

    def __init__(
        self, name: str, version: int, function: Callable[..., Any], retry: RetryPolicy, timeout: int | None = None
    ) -> None:
        self.name = name
        self.version = version
        self.function = function
        self.retry = retry
        """The policy of its steps that have none of their own."""
        self.timeout = timeout
        """How long a step may take that does not say so itself. A run may take as long as it likes."""
        self.body, self.body_type = _parameters(function, name)

    @property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.function)

    def given(self, body: bytes, mime_type: str) -> dict[str, Any]:
        """What its function takes besides the run."""
        return {} if self.body is None else {self.body: bodies.decode(body, mime_type, self.body_type)}


class Family:
    """All versions of a workflow that are known here. A run goes on with the version that it began with."""

    def __init__(self, name: str, topic: str, queue: str, topics_awaited: tuple[str, ...], bus: Bus) -> None:
        self.name = name
        self.topic = topic
        self.topics: tuple[str, ...] = (topic,)
        self.queue = queue
        self.topics_awaited = topics_awaited
        self.encoding = bus.encoding
        self.prefix = bus.prefix
        self.bus: Bus | None = bus
        self.versions: dict[int, Definition] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "bus": None}

    def add(self, definition: Definition) -> None:
        if definition.version in self.versions:
            raise InvalidOption(
                f"workflow {self.name} has a version {definition.version} already; give this one another version"
            )
        other = next(iter(self.versions.values()), None)
        if other is not None and other.is_async != definition.is_async:
            raise InvalidOption(
                f"the versions of workflow {self.name} must all be functions, or all be coroutines, since they share a "
                "queue; give this one another name"
            )
        self.versions[definition.version] = definition

    def choose(self, recorded: int | None) -> Definition:
        """The version that a run began with; the newest for a new one."""
        if recorded is None:
            return self.versions[max(self.versions)]
        if recorded not in self.versions:
            known = ", ".join(map(str, sorted(self.versions)))
            raise Diverged(
                f"this run of workflow {self.name} began with version {recorded}, and here is only {known}. Nothing "
                f"was done, and nothing is lost: deploy version {recorded} beside it, as "
                f"@bus.workflow(name={self.name!r}, version={recorded}), and reprocess the message"
            )
        return self.versions[recorded]


def _parameters(function: Callable[..., Any], name: str) -> tuple[str | None, Any]:
    """The parameter that takes the body, with its type; the first is the run."""
    if not inspect.isfunction(function) and not inspect.ismethod(function):
        raise InvalidOption(f"workflow {name} must be a function, not {function!r}")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidOption(f"workflow {name} is a generator: calling it would run nothing of its body")
    parameters = list(inspect.signature(function).parameters.values())
    if not parameters:
        raise InvalidOption(f"workflow {name} takes no parameter; the first is the run: def {name}(run, body)")
    others = parameters[1:]
    required = [one.name for one in others if one.default is one.empty and one.kind is not one.VAR_KEYWORD]
    if len(required) > 1 or any(one.kind in (one.VAR_POSITIONAL, one.POSITIONAL_ONLY) for one in others):
        raise InvalidOption(f"workflow {name} takes the run and one body, not {', '.join(one.name for one in others)}")
    if not others:
        return None, Any
    wanted = bodies.return_type(function, others[0].name)
    return others[0].name, wanted
