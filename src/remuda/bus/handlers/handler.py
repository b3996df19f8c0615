"""A handler: a plain function or coroutine, the topics it wants, and the rules it runs under (B2)."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import msgspec

from remuda.bus.handlers.queue_rules import Rules
from remuda.bus.handlers.signature import Signature
from remuda.bus.settings.retry import RetryPolicy
from remuda.model.errors import InvalidOption
from remuda.model.topics import matches
from remuda.model.values.texts import shown


class ExecutorKind(StrEnum):
    ASYNCIO = "asyncio"
    THREADS = "threads"
    PROCESSES = "processes"


NO_TIMEOUT: Final = 0
"""As a handler's timeout: none, whatever is configured, since the parts of its work have one each."""


class HandlerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options given where the handler is subscribed; None leaves the choice to the settings."""

    retry: RetryPolicy | int | None = None
    """A whole policy, or a number of retries under the configured one."""
    retry_on: tuple[type[BaseException], ...] | None = None
    give_up_on: tuple[type[BaseException], ...] | None = None
    timeout: int | None = None
    failover: str | None = None
    threads: int | None = None
    executor: ExecutorKind | None = None
    batch: int | None = None
    batch_wait: int | None = None
    """How long a batch that is not full waits for more."""
    batch_by_key: bool = False
    unique: bool = False
    keep_result: bool = False
    rules: Rules = ()
    """Options of the queue."""


class Handler(msgspec.Struct, frozen=True):
    """A function, with the queue and topics that it handles."""

    id: str
    queue: str
    topics: tuple[str, ...]
    function: Callable[..., Any]
    options: HandlerOptions
    signature: Signature
    replies: bool = True
    """Whether the return value goes to the callback; it does not for the bus's own handlers."""

    @property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.function)

    def takes(self, topic: str) -> bool:
        return any(matches(pattern, topic) for pattern in self.topics)


def handler_id(function: Callable[..., Any]) -> str:
    """`Class.method` for a method, by the class of its instance; else `module.function`."""
    if not hasattr(function, "__qualname__") or not hasattr(function, "__module__"):
        raise InvalidOption(f"a handler must be a function or a method, not {shown(function)}; put it into one")
    if isinstance(function, type):
        name = function.__name__
        raise InvalidOption(
            f"a handler must be a function or a method, not the class {name}; mark its methods with @handles, and "
            f"register an instance: bus.subscribe_class({name}())"
        )
    owner = getattr(function, "__self__", None)
    if inspect.ismethod(function) and owner is not None:
        kind = owner if isinstance(owner, type) else type(owner)
        return f"{kind.__name__}.{function.__name__}"
    parts = function.__qualname__.split(".")
    if len(parts) > 1 and parts[-2] != "<locals>":
        return ".".join(parts[-2:])
    return f"{module_name(function.__module__)}.{parts[-1]}"


def queue_of(function: Callable[..., Any]) -> str:
    """The queue of a handler for which none is named."""
    name = handler_id(function)
    if name.endswith("<lambda>"):
        raise InvalidOption(
            "a lambda has no name for its queue, and another one would share it; name it: queue='...', or write a "
            "function"
        )
    return name


def module_name(module: str) -> str:
    """A module's name; for the started program, the name under which others would import it.

    So `python app.py`, `python -m app` and `remuda run app:bus` work on the same queues.
    """
    if module not in ("__main__", "__mp_main__"):
        return module
    main = sys.modules.get(module)
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name and spec.name != "__main__":
        return str(spec.name).removesuffix(".__main__")
    file = getattr(main, "__file__", None)
    if not file:
        return "main"
    path = Path(file)
    # A started folder or archive: `python -m` would use its own name.
    return path.absolute().parent.stem if path.stem == "__main__" else path.stem


def is_typed_in(function: Callable[..., Any]) -> bool:
    """Whether this function was typed into a prompt or a notebook."""
    if getattr(function, "__module__", None) != "__main__":
        return False
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    code = getattr(inspect.unwrap(function), "__code__", None)
    # The console of an editor is a program with a file of its own, but what is typed there has none.
    return file is None or (code is not None and code.co_filename.startswith("<"))
