"""Options for opening a broker, checked at once."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, Final, TypedDict

import msgspec

from remuda.model.errors import InvalidOption
from remuda.model.ids import WORKERS
from remuda.model.queues.options import QueueOptions
from remuda.model.topic_types import read_patterns
from remuda.model.values.durations import DAY, HOUR, SECOND, Duration
from remuda.model.values.option_reading import Read, Span, read_field
from remuda.model.values.texts import read_count, read_name, shown
from remuda.model.values.urls import bucket_url, directory_of


class Sync(StrEnum):
    """When the log is synced to disk."""

    ALWAYS = "always"
    """Before anything is confirmed: survives a power loss."""
    INTERVAL = "interval"
    """Every `sync_interval`: a power loss may cost what came since the last sync."""
    OS = "os"
    """When the operating system decides: survives the end of the process, not of the machine."""


class BrokerKwargs(TypedDict, total=False):
    """Options of `Bus` and `open_broker`, as people write them."""

    sync: Sync | str
    sync_interval: Duration
    auto_queue_creation: bool
    default_queue: str | None
    queue_defaults: QueueOptions | Mapping[str, Any]
    worker: int | None
    compact: bool
    compact_objects: Mapping[str, bool]
    infer_types: str | Sequence[str]
    success_retention: Duration
    dead_retention: Duration
    collect_interval: Duration
    segment_bytes: int
    checkpoint_bytes: int
    shared: bool
    group: bool
    force_network: bool
    lake: str | None
    collect_after_archive: str | os.PathLike[str] | None


_LAKES: Final[Mapping[str | None, tuple[str, ...]]] = {
    None: (),
    "none": (),
    "delta": ("delta",),
    "iceberg": ("iceberg",),
    "both": ("delta", "iceberg"),
}


def _default_queue(name: str, value: Any) -> str | None:
    return None if value is None else read_name(name, value)


def _queue_defaults(name: str, value: Any) -> QueueOptions:
    if isinstance(value, QueueOptions):
        return value
    if not isinstance(value, Mapping):
        raise InvalidOption(f"{name} must be queue options, not {shown(value)}")
    return QueueOptions.parse(value)


def _worker(name: str, value: Any) -> int | None:
    if value is not None and (type(value) is not int or not 0 <= value < WORKERS):
        raise InvalidOption(
            f"{name} must be a number from 0 to {WORKERS - 1}, or None to claim one, not {shown(value)}"
        )
    return value


def _compact_objects(name: str, value: Any) -> Mapping[str, bool]:
    if isinstance(value, Mapping) and all(isinstance(key, str) and isinstance(on, bool) for key, on in value.items()):
        return value
    raise InvalidOption(f"{name} must map names of objects to true or false, not {shown(value)}")


def _bytes(name: str, value: Any) -> int:
    return read_count(name, value, 1)


def _lake(name: str, value: Any) -> tuple[str, ...]:
    if value is not None and (not isinstance(value, str) or value not in _LAKES):
        raise InvalidOption(f"{name} must be delta, iceberg, both or none, not {shown(value)}")
    return _LAKES[value]


def _archive(name: str, value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str | os.PathLike) or not os.fspath(value) or isinstance(os.fspath(value), bytes):
        raise InvalidOption(f"{name} must be the folder of a lake, or None, not {shown(value)}")
    return bucket_url(os.fspath(value)) or os.path.abspath(directory_of(value))


class BrokerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a broker. Durations are microseconds; `BrokerOptions.parse` accepts them as people write them."""

    sync: Sync = Sync.ALWAYS
    sync_interval: Span = SECOND
    auto_queue_creation: bool = True
    default_queue: Annotated[str | None, Read(_default_queue)] = None
    queue_defaults: Annotated[QueueOptions, Read(_queue_defaults)] = QueueOptions()
    worker: Annotated[int | None, Read(_worker)] = None
    """The worker part of ids, 0 to 1023; None claims a free one on this machine."""
    compact: bool = True
    compact_objects: Annotated[Mapping[str, bool], Read(_compact_objects)] = {}
    infer_types: Annotated[tuple[str, ...], Read(read_patterns)] = ()
    """Patterns of topics that say what a message is about: `{object}.*.{key}`."""
    success_retention: Span = DAY
    dead_retention: Span = 15 * DAY
    collect_interval: Span = HOUR
    segment_bytes: Annotated[int, Read(_bytes)] = 64 << 20
    checkpoint_bytes: Annotated[int, Read(_bytes)] = 8 << 20
    shared: bool = True
    """Whether other processes may use the directory at the same time."""
    group: bool = False
    """Whether the directory's group may use it too, not only its owner."""
    force_network: bool = False
    """Whether to open a directory on a network file system, where locks may not hold."""
    lake: Annotated[tuple[str, ...], Read(_lake)] = ()
    """Formats of the lakehouse tables over the sealed files: `delta`, `iceberg` or `both`."""
    collect_after_archive: Annotated[str | None, Read(_archive)] = None
    """A lake's folder: nothing is collected before the pipeline `archive` has stored it there."""

    @classmethod
    def parse(cls, **options: Any) -> BrokerOptions:
        values: dict[str, Any] = {}
        for name, value in options.items():
            values[name] = read_field(cls, "broker option", name, value)
        result = cls(**values)
        result.check()
        return result

    def check(self) -> None:
        if not self.sync_interval:
            raise InvalidOption("sync_interval must be longer than zero; sync='always' syncs before every answer")
        if self.segment_bytes < 1 << 16:
            raise InvalidOption(f"segment_bytes must be at least {1 << 16}, not {self.segment_bytes}")
        if self.checkpoint_bytes < 1 << 12:
            raise InvalidOption(f"checkpoint_bytes must be at least {1 << 12}, not {self.checkpoint_bytes}")
