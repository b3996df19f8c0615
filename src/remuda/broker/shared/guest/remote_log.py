"""The log for guests that cannot read the directory: the host reads it for them, page by page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from remuda.broker.shared.wire.wire_frames import Pages
from remuda.log.eventlog import Columns, Ends, EventLog, Wanted
from remuda.log.tail import record_codec
from remuda.model.records import Appended, Event, Events, QueueChange

if TYPE_CHECKING:
    import pyarrow as pa

    from remuda.broker.embedded.runtime import Runtime
    from remuda.broker.shared.guest.guest import Guest
    from remuda.model.message import Message

LOG_QUERIES: Final = frozenset(
    {
        "log_ends", "log_offset_at", "log_position_at", "log_offset_of", "log_events_of", "log_messages",
        "log_events", "log_changes",
    }
)  # fmt: skip
_PAGE: Final = 1 << 20


def answer_from_log(runtime: Runtime, query: str, values: Sequence[Any]) -> Any:
    """The log's answer to a remote query."""
    log = runtime.reader()
    if query == "log_messages":
        return _page(log.messages(*values), log, events=False)
    if query == "log_events":
        return _page(log.events(*values), log, events=True)
    return getattr(log, query.removeprefix("log_"))(*values)


def _page(records: Iterator[Appended] | Iterator[Events], log: Any, *, events: bool) -> Pages:
    page: list[bytes] = []
    size, following = 0, None
    for record in records:
        payload = record_codec.encode(record, 0, 0)[1]
        page.append(payload)
        size += len(payload)
        following = record.first + len(record)
        if size > _PAGE:
            break
    gaps = log.event_gaps if events else log.gaps
    return Pages(page, following, [(gap.start, gap.stop) for gap in gaps])


class RemoteLog(EventLog):
    """The log at the other end of a connection."""

    def __init__(self, guest: Guest) -> None:
        super().__init__()
        self._guest = guest

    def ends(self) -> Ends:
        return Ends(*self._guest.ask("log_ends"))

    def offset_at(self, time: int) -> int:
        found: int = self._guest.ask("log_offset_at", time)
        return found

    def position_at(self, time: int) -> int:
        found: int = self._guest.ask("log_position_at", time)
        return found

    def offset_of(self, id: str) -> int | None:
        found: int | None = self._guest.ask("log_offset_of", id)
        return found

    def message(self, offset: int) -> tuple[Message, tuple[str, ...]] | None:
        for record in self.messages(offset, offset + 1):
            queues = record.queues
            return record.messages[0], queues[0] if isinstance(queues, list) else queues
        return None

    def events_of(self, offset: int) -> list[tuple[int, Event]]:
        found: list[tuple[int, Event]] = self._guest.ask("log_events_of", offset)
        return found

    def changes(self, queue: str | None = None) -> list[QueueChange]:
        found: list[QueueChange] = self._guest.ask("log_changes", queue)
        return found

    def messages(self, start: int = 0, stop: int | None = None) -> Iterator[Appended]:
        for record in self._read("log_messages", record_codec.MESSAGES, start, stop, self._gaps):
            assert isinstance(record, Appended)
            yield record

    def events(self, start: int = 0, stop: int | None = None) -> Iterator[Events]:
        for record in self._read("log_events", record_codec.EVENTS, start, stop, self._event_gaps):
            assert isinstance(record, Events)
            yield record

    def message_batches(
        self, start: int = 0, stop: int | None = None, *, columns: Columns = None, wanted: Wanted | None = None
    ) -> Iterator[pa.RecordBatch]:
        from remuda.log.sealed.arrow_records import message_batch

        for record in self.messages(start, stop):
            yield message_batch(record, columns)

    def event_batches(
        self, start: int = 0, stop: int | None = None, *, columns: Columns = None, wanted: Wanted | None = None
    ) -> Iterator[pa.RecordBatch]:
        from remuda.log.sealed.arrow_records import event_batch

        for record in self.events(start, stop):
            yield event_batch([record], columns)

    def _read(self, query: str, kind: int, start: int, stop: int | None, gaps: dict[range, None]) -> Iterator[Any]:
        while True:
            page: Pages = self._guest.ask(query, start, stop)
            gaps.update(dict.fromkeys(range(*gap) for gap in page.gaps))
            for payload in page.records:
                yield record_codec.decode(kind, payload).record
            if page.following is None or (stop is not None and page.following >= stop):
                return
            start = page.following
