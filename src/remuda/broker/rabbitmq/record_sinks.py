"""Where a broker's records go: every message that was stored, and every change of its state."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Final, Protocol

from remuda.amqp.client.connection import Connection
from remuda.amqp.connection_options import ConnectionOptions
from remuda.log.streams.stream_writer import StreamWriter
from remuda.model.errors import BrokerClosed, RemudaError, StorageError
from remuda.model.records import Appended, Events

_LOG: Final = logging.getLogger("remuda.rabbitmq")
_MOST: Final = 64 << 20
"""Bytes of records that wait for a stream that cannot be written yet."""
_ROW: Final = 200
"""About how many bytes a row of a record takes beside its body."""
_PATIENCE: Final = 30.0
_FAREWELL: Final = 3.0
"""Seconds that closing waits for a stream that does not answer."""
_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 30.0


class RecordSink(Protocol):
    """Stores records in the order in which one process appends them.

    An event names its message by the number of its id (`remuda.log.streams.stream_numbers.reference`), which every
    process can compute; the field `first` of both kinds of records is ignored.
    """

    @property
    def trouble(self) -> str | None:
        """Why records are not stored at present; None if they are."""
        ...

    def append(self, records: Sequence[Appended | Events]) -> None:
        """Take records over, without waiting. They are stored after `flush`."""
        ...

    def flush(self) -> None:
        """Wait until everything appended so far is stored."""
        ...

    def close(self) -> None: ...


class NoRecords:
    """Stores nothing."""

    trouble: str | None = None

    def append(self, records: Sequence[Appended | Events]) -> None:
        pass

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


class StreamRecords:
    """Stores records in a stream, without making anyone wait.

    The stream is opened by a thread of its own, which tries until it succeeds. Meanwhile records gather; beyond 64 MiB
    they are left out of the log, and `trouble` says how many.
    """

    def __init__(self, options: ConnectionOptions, stream: str) -> None:
        self._options = options
        self._stream = stream
        self._connection: Connection | None = None
        self._writer: StreamWriter | None = None
        self._waiting: deque[Sequence[Appended | Events]] = deque()
        self._size = 0
        self._lost = 0
        self._failure: str | None = None
        self._closing = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=f"remuda opens {stream}", daemon=True)
        self._thread.start()

    @property
    def trouble(self) -> str | None:
        writer = self._writer
        found = self._failure if writer is None else writer.trouble
        if self._lost:
            lost = f"{self._lost} records are missing in it"
            return lost if found is None else f"{found}; {lost}"
        return found

    def append(self, records: Sequence[Appended | Events]) -> None:
        with self._changed:
            if self._closing:
                raise BrokerClosed("the event log was closed together with its broker")
            if self._writer is None:
                self._hold(records)
                return
            try:
                taken = self._writer.offer(records)
            except StorageError as error:
                _LOG.error("the event log is being reopened: %s", error)
                self._failure, self._writer = str(error), None
                self._hold(records)
                self._changed.notify_all()
                return
        if not taken:
            self._leave_out(records)

    def flush(self) -> None:
        deadline = time.monotonic() + _PATIENCE
        with self._changed:
            self._changed.wait_for(lambda: self._writer is not None or self._closing, _PATIENCE)
            writer = self._writer
        if writer is None:
            raise StorageError(
                f"the event log {self._stream!r} cannot be written at the moment ({self._failure}); queues and "
                "handlers go on, and what happens is logged once it can be"
            )
        writer.flush(max(deadline - time.monotonic(), 1.0))

    def close(self) -> None:
        with self._changed:
            if self._failure is None:  # it may be opening for the first time
                self._changed.wait_for(lambda: self._writer is not None or self._failure is not None, _FAREWELL)
            self._closing = True
            self._changed.notify_all()
            connection = self._connection if self._writer is None else None
        if connection is not None:
            connection.close(1.0)  # the thread waits in vain for it to open
        self._thread.join(_PATIENCE + _FAREWELL)
        if self._waiting:
            _LOG.warning("the event log is missing the last moments of this process: %s", self._failure)

    # The thread

    def _run(self) -> None:
        pause = _PAUSE
        while not self._closing:
            connection = self._connection = Connection(self._options)
            try:
                connection.open(_PATIENCE)
                writer = StreamWriter(connection, stream=self._stream, owned=True)
            except RemudaError as error:
                connection.close(1.0)
                with self._changed:
                    if self._closing:
                        return
                    self._failure = str(error)
                    _LOG.warning("the event log cannot be written; trying again: %s", error)
                    self._changed.notify_all()
                    self._changed.wait_for(lambda: self._closing, pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
                continue
            pause = _PAUSE
            self._keep(writer)

    def _keep(self, writer: StreamWriter) -> None:
        """Pass what has gathered to the writer, and wait until it is no longer used."""
        with self._changed:
            waiting, self._size = list(self._waiting), 0
            self._waiting.clear()
            for records in waiting:
                if not writer.offer(records):
                    self._leave_out(records)
            self._writer, self._failure = writer, None
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._closing or self._writer is not writer)
        try:
            writer.close(_PATIENCE if writer.trouble is None else _FAREWELL)
        except RemudaError as error:
            _LOG.warning("the event log is missing the last moments of this process: %s", error)

    def _hold(self, records: Sequence[Appended | Events]) -> None:
        weight = sum(_weight(record) for record in records)
        if self._size + weight > _MOST:
            self._leave_out(records)
            return
        self._waiting.append(records)
        self._size += weight

    def _leave_out(self, records: Sequence[Appended | Events]) -> None:
        if not self._lost:
            _LOG.error("the event log %s accepts nothing; what happens now will be missing from it", self._stream)
        self._lost += sum(map(len, records))


def _weight(record: Appended | Events) -> int:
    bodies = sum(map(len, record.messages.bodies)) if isinstance(record, Appended) else 0
    return bodies + _ROW * len(record)
