"""Publishes the batches in the spool: each row once, even if a process is killed in between."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from remuda.log import spool
from remuda.log.sealed.arrow import pa
from remuda.log.spool import SpoolBatch
from remuda.model.errors import InvalidMessage, NotFound, StorageError
from remuda.model.message import NO_HEADERS, Message
from remuda.model.messages import Messages, fold
from remuda.model.operations.commands import Publish, SkipSpooled
from remuda.model.records import SpoolTaken

if TYPE_CHECKING:
    from remuda.broker.embedded.runtime import Runtime

_log = logging.getLogger("remuda.intake")
_ROWS: Final = 2048
_BYTES: Final = 4 << 20
_STALE_SECONDS: Final = 24 * 3600
_MIME_TYPE: Final = Message(name="", body=b"").mime_type


class SpoolReader:
    """Publishes the batches of one directory's spool."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        place = runtime.engine.log.disk.path(spool.SPOOL)
        self._spool = None if place is None else Path(place)
        self._swept = False
        self._turn = threading.Lock()

    def run(self, stopping: Callable[[], bool] = lambda: False) -> int:
        """Take in what is in the spool now, until told to stop. Returns the number of rows."""
        if self._spool is None or not self._spool.is_dir():
            return 0
        with self._turn:
            if not self._swept:
                spool.sweep(self._spool, self._runtime.clock() / 1_000_000 - _STALE_SECONDS)
                self._forget()
                self._swept = True
            return sum(self._take_or_report(batch, stopping) for batch in spool.waiting(self._spool))

    def _take_or_report(self, batch: SpoolBatch, stopping: Callable[[], bool]) -> int:
        try:
            return self._take(batch, stopping)
        except (spool.DamagedBatch, pa.ArrowException, KeyError, ValueError) as error:
            path = spool.reject(batch, str(error))
            _log.error("%s cannot be read (%s); what is left of it is kept in %s", batch.path.name, error, path)
            return 0
        except OSError as error:
            if not batch.path.exists():
                return 0  # it was taken in meanwhile
            raise StorageError(f"{batch.path.name} cannot be read or removed: {error}; check the disk") from error

    def _take(self, batch: SpoolBatch, stopping: Callable[[], bool]) -> int:
        with self._runtime.lock:
            progress = self._runtime.engine.core.spool.progress(batch.app, batch.number)
        taken = progress.rows
        if not progress.done:
            total = spool.count_rows(batch)  # this also checks the whole batch, before anything is published
            for rows in _pieces(batch, taken):
                if stopping():
                    return taken - progress.rows
                self._publish(batch, rows, taken, total)
                taken += rows.num_rows
            if not total:
                self._skip(SpoolTaken(batch.app, batch.number, 0, self._runtime.clock(), done=True))
        else:
            # An earlier run took it in, but may have failed before that was synced.
            self._runtime.sync()
        self._finish(batch)
        return taken - progress.rows

    def _publish(self, batch: SpoolBatch, rows: pa.RecordBatch, before: int, total: int) -> None:
        runtime = self._runtime
        queue = rows.column("queue")[0].as_py()
        upto = before + rows.num_rows
        mark = SpoolTaken(batch.app, batch.number, upto, runtime.clock(), done=upto == total)
        try:
            pending = runtime.submit(Publish(to_messages(rows).checked(), queue=queue, spooled=mark))
        except (InvalidMessage, NotFound) as error:
            # One row that is not a valid message must not hold up the others.
            if rows.num_rows > 1:
                half = rows.num_rows // 2
                self._publish(batch, rows.slice(0, half), before, total)
                self._publish(batch, rows.slice(half), before + half, total)
            else:
                refused = {before: str(error)}
                self._skip(SpoolTaken(batch.app, batch.number, upto, runtime.clock(), mark.done, None, refused))
            return
        runtime.wait(pending.ticket)

    def _skip(self, mark: SpoolTaken) -> None:
        self._runtime.wait(self._runtime.submit(SkipSpooled(mark)).ticket)

    def _finish(self, batch: SpoolBatch) -> None:
        """All rows are recorded: set aside those that were refused, then remove the batch."""
        with self._runtime.lock:
            refused = self._runtime.engine.core.spool.progress(batch.app, batch.number).refused
        if refused:
            path = spool.set_aside(batch, refused)
            _log.warning("%d rows of %s were refused; they are kept in %s", len(refused), batch.path.name, path)
        spool.remove(batch)
        if batch.app.startswith(spool.ONCE):
            with self._runtime.lock:
                self._runtime.engine.core.spool.forget(batch.app)

    def _forget(self) -> None:
        """Forget single batches that were removed just before a crash."""
        assert self._spool is not None
        here = {batch.app for batch in spool.waiting(self._spool)}
        with self._runtime.lock:
            known = self._runtime.engine.core.spool
            for app in [app for app in known.taken if app.startswith(spool.ONCE) and app not in here]:
                known.forget(app)


def to_messages(rows: pa.RecordBatch) -> Messages:
    """Rows of the spool as messages. Empty cells get the default."""
    columns: dict[str, list[Any]] = {
        name: rows.column(name).to_pylist() for name in ("name", "topics", "object", "key")
    }
    for name in ("timestamp", "expires", "due"):
        columns[name] = rows.column(name).cast(pa.int64()).to_pylist()
    ids = [own or "" for own in rows.column("id").to_pylist()]
    columns["topics"] = [tuple(topics or ()) for topics in columns["topics"]]
    columns["mime_type"] = [kind or _MIME_TYPE for kind in rows.column("mime_type").to_pylist()]
    columns["headers"] = [dict(row) if row else NO_HEADERS for row in rows.column("headers").to_pylist()]
    columns["priority"] = [value or 0 for value in rows.column("priority").to_pylist()]
    folded = {name: fold(values) for name, values in columns.items()}
    return Messages(bodies=rows.column("body").to_pylist(), ids=ids if any(ids) else None, **folded)


def _pieces(batch: SpoolBatch, skip: int) -> Iterator[pa.RecordBatch]:
    """The rows after the first `skip`, in parts that go to one queue and are quickly published."""
    for rows in spool.rows_of(batch, skip):
        queues = rows.column("queue").to_pylist()
        start = 0
        while start < rows.num_rows:
            stop = start + 1
            while stop < min(rows.num_rows, start + _ROWS) and queues[stop] == queues[start]:
                stop += 1
            count = stop - start
            while count > 1 and rows.slice(start, count).nbytes > _BYTES:
                count //= 2
            yield rows.slice(start, count)
            start += count
