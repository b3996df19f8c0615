"""A worker's settings: from a TOML file, from code and from the environment; the later source wins (W1)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import msgspec

from remuda.amqp.connection_options import parse_url
from remuda.broker.toml import read_toml
from remuda.model.errors import InvalidOption
from remuda.model.values.durations import SECOND, micros
from remuda.model.values.option_reading import unknown, whole

_PREFIX: Final = "REMUDA_WORKER_"
_FILE: Final = "worker.toml"
_MOST_PREFETCH: Final = 65535  # AMQP has sixteen bits for it


class QueueType(StrEnum):
    """The types of queue that a worker can use."""

    QUORUM = "quorum"
    CLASSIC = "classic"


class WorkerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a worker. Times are seconds, and may be written like `250ms` or `5m`."""

    input_queue: str
    url: str = "amqp://guest:guest@localhost/"
    retry_queue: str = ""
    output_queue: str = ""
    rejected_queue: str = ""
    paused_queue: str = ""
    retry_limit: int = 10
    prefetch_buffer: int = 0
    threads: int = 1
    queue_type: QueueType = QueueType.QUORUM
    max_priority: int = 0
    attempts: int = 10
    return_delay: float = 1.0
    grace: float = 30.0
    health_port: int | None = None
    health_address: str = "127.0.0.1"

    @classmethod
    def load(
        cls,
        file: str | os.PathLike[str] | None = None,
        environment: Mapping[str, str] | None = None,
        **values: Any,
    ) -> WorkerConfig:
        """Settings from `worker.toml` or the file named, then from code, then from `REMUDA_WORKER_…` variables."""
        found: dict[str, tuple[Any, str]] = {}
        path = Path(file) if file is not None else Path(_FILE)
        if file is not None or path.exists():
            tables, where = read_toml(path)
            found.update({name: (value, where(name)) for name, value in tables.items()})
        found.update({name: (value, "code") for name, value in values.items()})
        for variable, text in (os.environ if environment is None else environment).items():
            if variable.startswith(_PREFIX):
                found[variable.removeprefix(_PREFIX).lower()] = (text, variable)
        if "input_queue" not in found:
            raise InvalidOption("input_queue must be set: it names the queue to take tasks from")
        return cls(**{name: _checked(name, value, source) for name, (value, source) in found.items()})

    def __post_init__(self) -> None:
        """Check settings that are given directly like all others."""
        for name in self.__struct_fields__:
            value = getattr(self, name)
            checked = _checked(name, value, "the worker's config")
            if checked != value or type(checked) is not type(value):
                msgspec.structs.force_setattr(self, name, checked)
        if not self.retry_queue:
            msgspec.structs.force_setattr(self, "retry_queue", self.input_queue)
        if not self.output_queue and not self.rejected_queue:
            msgspec.structs.force_setattr(self, "rejected_queue", f"{self.input_queue}.rejected")
        if self.max_priority and self.queue_type is QueueType.QUORUM:
            raise InvalidOption("max_priority: quorum queues have no priorities; use classic queues or leave it out")
        if self.paused_queue and self.paused_queue in (self.input_queue, self.retry_queue):
            raise InvalidOption("paused_queue: tasks of a paused job would come in again; name another queue")
        if self.output_queue and self.output_queue in (self.input_queue, self.retry_queue):
            raise InvalidOption("output_queue: results would come in again as tasks; name another queue")

    @property
    def prefetch(self) -> int:
        """How many unacknowledged tasks the broker may deliver."""
        return min(max(1, self.threads + self.prefetch_buffer), _MOST_PREFETCH)

    @property
    def queues(self) -> tuple[str, ...]:
        """Every queue that the worker declares."""
        named = (self.input_queue, self.retry_queue, self.output_queue, self.rejected_queue, self.paused_queue)
        return tuple(dict.fromkeys(name for name in named if name))

    @property
    def queue_arguments(self) -> dict[str, Any]:
        priority = {"x-max-priority": self.max_priority} if self.max_priority else {}
        return {"x-queue-type": str(self.queue_type), **priority}


_RANGES: Final = {
    "prefetch_buffer": (0, 100_000),
    "retry_limit": (1, 2**31 - 1),
    "threads": (1, 10_000),
    "max_priority": (0, 255),
    "attempts": (1, 1_000_000),
    "health_port": (0, 65535),
}


def _checked(name: str, value: Any, source: str) -> Any:
    """The value, converted; raises `InvalidOption` with the source and name of the setting."""
    if name not in WorkerConfig.__struct_fields__:
        raise unknown("setting", name, WorkerConfig.__struct_fields__, source)
    try:
        return _read_value(name, value)
    except InvalidOption as error:
        raise InvalidOption(f"{source}: {name} {error}") from None


def _read_value(name: str, value: Any) -> Any:
    if name in _RANGES:
        return None if value is None and name == "health_port" else whole(value, *_RANGES[name])
    if name in ("return_delay", "grace"):
        return micros(value) / SECOND
    if name == "queue_type":
        try:
            return QueueType(value)
        except ValueError:
            raise InvalidOption(f"must be quorum or classic, not {value!r}") from None
    if not isinstance(value, str):
        raise InvalidOption(f"must be a string, not {value!r}")
    if name.endswith("_queue") and len(value.encode("utf-8", "replace")) > 255:
        raise InvalidOption("must have at most 255 bytes")
    if name == "input_queue" and not value:
        raise InvalidOption("must be set: it names the queue to take tasks from")
    if name == "url":
        parse_url(value)
    return value
