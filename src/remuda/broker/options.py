"""Options for opening a broker, checked at once."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final, TypedDict

import msgspec

from remuda.model.durations import DAY, HOUR, SECOND, Duration
from remuda.model.errors import InvalidOption
from remuda.model.ids import WORKERS
from remuda.model.options import QueueOptions, read_duration, read_enum
from remuda.model.texts import read_count, read_flag, read_name, shown


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


class BrokerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a broker. Durations are microseconds; `BrokerOptions.parse` accepts them as people write them."""

    sync: Sync = Sync.ALWAYS
    sync_interval: int = SECOND
    auto_queue_creation: bool = True
    default_queue: str | None = None
    queue_defaults: QueueOptions = QueueOptions()
    worker: int | None = None
    """The worker part of ids, 0 to 1023; None claims a free one on this machine."""
    compact: bool = True
    compact_objects: Mapping[str, bool] = {}
    success_retention: int = DAY
    dead_retention: int = 15 * DAY
    collect_interval: int = HOUR
    segment_bytes: int = 64 << 20
    checkpoint_bytes: int = 8 << 20
    shared: bool = True
    """Whether other processes may use the directory at the same time."""
    group: bool = False
    """Whether the directory's group may use it too, not only its owner."""
    force_network: bool = False
    """Whether to open a directory on a network file system, where locks may not hold."""
    lake: tuple[str, ...] = ()
    """Formats of the lakehouse tables over the sealed files: `delta`, `iceberg` or `both`."""
    collect_after_archive: str | None = None
    """A lake's folder: nothing is collected before the pipeline `archive` has stored it there."""

    @classmethod
    def parse(cls, **options: Any) -> BrokerOptions:
        values: dict[str, Any] = {}
        for name, value in options.items():
            if name not in cls.__struct_fields__:
                near = difflib.get_close_matches(name, cls.__struct_fields__, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise InvalidOption(f"unknown broker option {shown(name)}{hint}")
            values[name] = _read(name, value)
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


_DURATIONS: Final = frozenset({"sync_interval", "success_retention", "dead_retention", "collect_interval"})
_FLAGS: Final = frozenset({"auto_queue_creation", "compact", "shared", "group", "force_network"})
_LAKES: Final[Mapping[str | None, tuple[str, ...]]] = {
    None: (),
    "none": (),
    "delta": ("delta",),
    "iceberg": ("iceberg",),
    "both": ("delta", "iceberg"),
}
_NUMBERS: Final = frozenset({"segment_bytes", "checkpoint_bytes"})


def _read(name: str, value: Any) -> Any:
    if name == "sync":
        return read_enum(name, value, Sync)
    if name in _DURATIONS:
        return read_duration(name, value)
    if name in _FLAGS:
        return read_flag(name, value)
    if name in _NUMBERS:
        return read_count(name, value, 1)
    if name == "queue_defaults" and not isinstance(value, QueueOptions):
        if not isinstance(value, Mapping):
            raise InvalidOption(f"queue_defaults must be queue options, not {shown(value)}")
        return QueueOptions.parse(value)
    if name == "compact_objects" and not (
        isinstance(value, Mapping) and all(isinstance(key, str) and isinstance(on, bool) for key, on in value.items())
    ):
        raise InvalidOption(f"compact_objects must map names of objects to true or false, not {shown(value)}")
    if name == "lake":
        if value is not None and (not isinstance(value, str) or value not in _LAKES):
            raise InvalidOption(f"lake must be delta, iceberg, both or none, not {shown(value)}")
        return _LAKES[value]
    if name == "collect_after_archive" and value is not None:
        if not isinstance(value, str | os.PathLike) or not os.fspath(value) or isinstance(os.fspath(value), bytes):
            raise InvalidOption(f"collect_after_archive must be the folder of a lake, or None, not {shown(value)}")
        return os.path.abspath(os.fspath(value))
    if name == "worker" and value is not None and (type(value) is not int or not 0 <= value < WORKERS):
        raise InvalidOption(
            f"worker must be a number from 0 to {WORKERS - 1}, or None to claim one, not {shown(value)}"
        )
    if name == "default_queue" and value is not None:
        return read_name(name, value)
    return value
