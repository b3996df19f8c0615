"""What a log must offer to be read by Spark. The embedded directory is one; another may stand beside it."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Protocol
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from remuda.model.errors import InvalidOption, StorageError
from remuda.model.values.urls import AMQP, AMQPS, parse_url
from remuda.spark.source.losses import Gap
from remuda.spark.source.selection import Selection
from remuda.spark.source.snapshots import log_of

_FEW_FILES: Final = 1000
_FEW_BYTES: Final = 64 << 20


class SparkLog(Protocol):
    """A log whose messages and events are numbered. Reading changes nothing in it.

    Numbers are given once and for all: the rows from one number to another are the same whenever they are read,
    except for those that have been collected since.
    """

    @property
    def identity(self) -> str:
        """What distinguishes this log from all others; empty where nothing does."""
        ...

    def reaches(self, table: str, number: int) -> bool:
        """Whether the log ends at this number or later."""
        ...

    def end(self, table: str) -> int:
        """The number that comes next."""
        ...

    def cut(self) -> tuple[int, int]:
        """The offset and the position that come next, both of the same moment."""
        ...

    def mark(self, table: str, number: int) -> str | None:
        """What distinguishes the row before `number` from that of another log; None when it is not there any more."""
        ...

    def number_at(self, table: str, time: int) -> int:
        """The first number of a row at `time` (microseconds) or later; the next one when there is none."""
        ...

    def newest(self, table: str) -> int | None:
        """The time of the last row (microseconds); None where it is not there any more."""
        ...

    def rows(self, table: str, start: int, stop: int) -> int:
        """How many rows there are from one number to before another, about."""
        ...

    def after(self, table: str, start: int, rows: int) -> int:
        """The number behind so many rows from `start` on, or the end where there are fewer."""
        ...

    def row_bytes(self, table: str, start: int) -> float:
        """About how many bytes a row has, on average, from a number on."""
        ...

    def parts(self, table: str, start: int, stop: int, rows: int) -> list[range]:
        """The numbers from `start` to before `stop` in parts of about `rows`, to be read side by side."""
        ...

    def gaps(self, table: str, start: int, stop: int) -> list[Gap]:
        """The numbers from `start` to before `stop` that are known to be missing without reading the rows."""
        ...

    def telling(self, before: int) -> list[tuple[range, range]]:
        """Positions of events up to `before`, in order, each with the offsets of the messages they may concern."""
        ...

    def batches(
        self,
        table: str,
        start: int,
        stop: int,
        selection: Selection,
        columns: Sequence[str],
        missing: list[Gap] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """The selected rows from number `start` to before `stop`, in order, with these columns.

        What turns out to be missing meanwhile, and might have been selected, is added to `missing`.
        """
        ...


def open_log(url: str) -> SparkLog:
    """The log at a URL: a path or `file://` is an embedded directory, `amqp://` RabbitMQ's stream."""
    if is_stream(url):
        from remuda.spark.source.rabbitmq_log import StreamedLog

        return StreamedLog(url)
    from remuda.spark.source.directory_log import EmbeddedLog

    return EmbeddedLog(directory(url))


_kept: Final[dict[str, SparkLog]] = {}


def kept_log(url: str) -> SparkLog:
    """As `open_log`, for who asks again and again: what is known of sealed files is kept, since they never change."""
    found, known = open_log(url), _kept.get(url)
    if known is None or known.identity != found.identity:
        _kept[url] = known = found
    return known


def task_log(url: str, identity: str, ends: Mapping[str, int]) -> SparkLog:
    """As `open_log`, for tasks: one process runs many, and may keep what it has read.

    It must be the log that was planned, and reach as far in each table. What a task cannot reach is not missing: no
    choice lets a query go on without it. Raises `StorageError`.
    """
    if is_stream(url):
        from remuda.spark.source.rabbitmq_log import kept_log

        log: SparkLog = kept_log(url)
    else:
        try:
            log = open_log(url)
        except StorageError as error:
            raise elsewhere(url, str(error)) from error
    if log.identity != identity:
        raise elsewhere(url, "there is another log in its place")
    for table, number in ends.items():
        if not log.reaches(table, number):
            end = log.end(table)
            raise elsewhere(url, f"its {table} end at {end} there, and the rows to be read go to {number}")
    return log


def elsewhere(url: str, found: str) -> StorageError:
    return StorageError(
        f"host {socket.gethostname()!r}, which runs a task of this query, does not see the log at {shown(url)!r} as "
        f"the driver does: {found}. Nothing of this batch was taken. Is the log's volume mounted on every host that "
        "runs tasks, under the same path? Mount it there, then start the query again"
    )


def is_stream(url: str) -> bool:
    return url.startswith((f"{AMQP}://", f"{AMQPS}://"))


def is_small(*places: str) -> bool:
    """Whether the files in some directories are few and small enough for any work on them to be short."""
    files = size = 0
    for place in filter(None, places):
        if "://" in place and not place.startswith("file:"):
            return False
        for folder, _, names in os.walk(directory(place)):
            for name in names:
                with contextlib.suppress(FileNotFoundError):  # a broker may be at work
                    size += os.lstat(os.path.join(folder, name)).st_size
                files += 1
                if files > _FEW_FILES or size > _FEW_BYTES:
                    return False
    return True


def shown(url: str) -> str:
    """A URL for people: without its password, and of a snapshot that of its log."""
    return str(parse_url(url)) if is_stream(url) else log_of(url)


def directory(url: str) -> str:
    """The path of an embedded directory, the same for every process."""
    url = place_text(url)
    scheme = urlsplit(url).scheme if ":/" in url else ""
    if scheme == "file":
        return unquote("/" + url.removeprefix("file:").lstrip("/"))
    if scheme in (AMQP, AMQPS):
        raise InvalidOption(f"{shown(url)} is not a directory, and this needs one; give a path or file:///path")
    if scheme:
        raise InvalidOption(
            f"there is no log or lake at {scheme}://; give a directory as a path or file:///path. Spark also reads a "
            "log at amqp://user:password@host/vhost"
        )
    return os.path.abspath(url)


def place_text(url: object) -> str:
    """The path or URL of a log or a lake, as a string."""
    try:
        text = os.fsdecode(os.fspath(url))  # type: ignore[call-overload]
    except TypeError:
        text = ""
    if not text or "\0" in text:
        raise InvalidOption(f"give a directory as a path or a URL, not {url!r}")
    return str(text)


def anchored(url: str) -> str:
    """The same place for every process: Spark's tasks have other working directories than the process that named it."""
    return url if ":/" in url else os.path.abspath(place_text(url))
