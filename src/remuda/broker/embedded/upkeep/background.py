"""Background work: checkpoints, sealing, retention. It reads and writes files beside the queues, and delays none."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import get_ident
from typing import TYPE_CHECKING, Final

from remuda.core.recovery.snapshot import FrozenCore
from remuda.log.disk import DirectoryDisk
from remuda.log.repair.scrub import Scrub
from remuda.log.retention.drop import Collected, closed_segments, drop_settled
from remuda.log.state.checkpoint import KEPT
from remuda.model.errors import BrokerClosed, RemudaError, StorageError
from remuda.model.life import PARKED
from remuda.model.operations.commands import Forget
from remuda.model.operations.filters import MessageFilter
from remuda.model.operations.results import Removed
from remuda.model.values.durations import DAY, HOUR, SECOND
from remuda.model.values.extras import has_arrow
from remuda.model.values.number_runs import merged

if TYPE_CHECKING:
    from remuda.broker.embedded.runtime import Runtime
    from remuda.broker.embedded.upkeep.spool_reader import SpoolReader
    from remuda.lake.publishing import TablePublisher
    from remuda.spark.lake.coverage import Archived

_log = logging.getLogger("remuda.upkeep")
_PAUSE: Final = 0.5
_SCRUB_FIRST: Final = 4 << 20
"""Bytes of sealed files whose checksums are verified before the broker is open."""
_SCRUB: Final = 16 << 20
"""The same for each turn after that."""
_PUBLISH_PATIENCE: Final = 2.0
"""Seconds that the broker waits for another process which publishes the same tables."""
_FIRST_DELAY: Final = 1.0
_LONGEST_DELAY: Final = 30.0
"""How long, in seconds, a duty that failed is postponed: twice as long each time."""
_SNAPSHOTS_PER_LOG: Final = 4
"""A checkpoint is due when the log grew by this many times the size of the last one."""
_BUSY_BYTES: Final = 1 << 20
"""The broker counts as busy if it wrote more than this since the last turn."""
_MOST_UNSEALED: Final = 8
"""How many full segments may wait for a quiet moment to be sealed."""
_RECORDS_TO_REPLAY: Final = 1000
_SNAPSHOT_BYTES_PER_RECORD: Final = 50
"""How much of a snapshot is loaded in the time in which a record is replayed."""


class Upkeep:
    """One thread that does each duty when it is due."""

    def __init__(self, runtime: Runtime, *, volatile: bool) -> None:
        self._runtime = runtime
        self._volatile = volatile
        self.troubles: dict[str, str] = {}
        """Duties that failed when they were last tried, with the reason."""
        self._postponed: dict[str, tuple[float, float]] = {}
        """Until when a duty that failed is postponed, and for how long that is."""
        self._stop = threading.Event()
        self.thread = threading.Thread(target=self._run, name="remuda-upkeep", daemon=True)
        self.turn = threading.Lock()
        """Held while files beside the tail are written or removed, also on behalf of a caller."""
        self._in_turn_here = 0
        """The thread whose turn it is."""
        self._snapshot_bytes = 0
        self._unsealed = False
        """Whether full segments may wait to be sealed."""
        self._inherited = not volatile
        """Whether an earlier process may have left some that no checkpoint would let go of before more is written."""
        self._written = 0
        """How much had been written to the log at the last turn."""
        self._next_collect = runtime.clock() + self._first_collection()
        self._intake: SpoolReader | None = None
        self._taking_in = threading.Lock()
        self._scrubbing = Scrub(runtime.engine.log)
        self._publisher: TablePublisher | None = None
        self._tables_due = bool(runtime.options.lake)
        """Whether files may have been added or removed since the tables were published; at the start they may."""

    def _first_collection(self) -> int:
        """How long to wait before the first collection: an hour at least where the clock may be wrong. A machine whose
        battery failed starts years ahead, and would remove everything before somebody sets its clock."""
        options, newest = (
            self._runtime.options,
            max(self._runtime.engine.core.recorder.last_settled.values(), default=0),
        )
        ahead = self._runtime.clock() - newest
        if self._volatile or not newest or ahead <= min(options.success_retention, options.dead_retention):
            return options.collect_interval
        _log.warning(
            "the clock is %.1f days ahead of the newest message: retention removes nothing for the first hour. If it "
            "is wrong, stop this process, set the clock, and start again", ahead / DAY,
        )  # fmt: skip
        return max(options.collect_interval, HOUR)

    def log_was_opened_again(self) -> None:
        """Look at the files as they are now."""
        if not self._scrubbing.done:
            self._scrubbing = Scrub(self._runtime.engine.log)
        self._unsealed = True

    def start(self) -> None:
        self._scrub(_SCRUB_FIRST)
        self.thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self.thread is not threading.current_thread():
            self.thread.join()
            with self.turn:
                pass  # a caller's work must be over before the directory is released
        self._try("lakehouse tables", self._publish_tables)

    @contextlib.contextmanager
    def _in_turn(self) -> Iterator[None]:
        with self.turn:
            if self._runtime.closed:
                raise BrokerClosed("the broker is closed; nothing was changed. Open it again to go on")
            self._in_turn_here = get_ident()
            try:
                yield
            finally:
                self._in_turn_here = 0

    @property
    def busy_here(self) -> bool:
        """Whether it is this thread's turn."""
        return self._in_turn_here == get_ident()

    def checkpoint(self) -> None:
        """Make the next start begin at this point of the log."""
        runtime = self._runtime
        with self._in_turn():
            with runtime.whole():
                mark, frozen = runtime.engine.freeze()
            try:
                runtime.sync()
                self._snapshot_bytes = runtime.engine.log.write_checkpoint(mark, frozen.encode())
            finally:
                frozen.thaw()

    def seal(self) -> None:
        """Turn full tail segments into Parquet, or drop their settled messages if nothing outlives the process. What
        fails is tried again later."""
        self._try("sealing", self._seal)

    def _seal(self, interrupted: Callable[[], bool] = lambda: False) -> None:
        with self._in_turn():
            if self._volatile:
                drop_settled(self._runtime.engine.log, _Kept(self._runtime, 0))
                return
            if not has_arrow() or not any(closed_segments(self._runtime.engine.log)):
                return  # segments stay as they are until a process with Arrow seals them, or retention removes them
            from remuda.log.sealed.seal import seal  # loads Arrow, and most processes never get here

            # After an error the queues are rebuilt, and everybody waits for that.
            torn = self._runtime.restoration
            done = seal(self._runtime.engine.log, lambda: torn.error is not None or interrupted())
            self._tables_due = self._tables_due or bool(done and self._runtime.options.lake)
            for sealed in done:
                if sealed.failure is not None:
                    raise StorageError(f"{sealed.segment} could not be sealed: {sealed.failure}")
                for damage in sealed.damages:
                    _log.error("while sealing: %s", damage.describe())
                if sealed.set_aside is not None:
                    _log.error(
                        "%s was sealed without its unreadable parts; it is kept as %s. Restore it from a copy, or "
                        "remove it", sealed.segment, sealed.set_aside,
                    )  # fmt: skip

    def collect(self) -> Removed:
        """Remove what is past its retention."""
        runtime, options = self._runtime, self._runtime.options
        expired = MessageFilter(states=PARKED, until=runtime.clock() - options.dead_retention)
        forgotten = sum(
            runtime.submit(Forget(info.name, expired, "retention")).result
            for info in runtime.queues()
            if info.dead or info.invalid or info.not_interested
        )
        with runtime.lock:
            rolled = runtime.engine.log.roll(runtime.clock() - options.success_retention)
        if rolled:
            # A segment can be sealed once none of the checkpoints that are kept needs it.
            self.checkpoint()
            self.checkpoint()
            self.seal()
        archived = self._archived()
        with self._in_turn():
            kept = _Kept(runtime, options.success_retention, archived)
            # The end of messages must be synced before they are removed, or a crash would bring them back without
            # their bodies.
            runtime.sync()
            gone = self._remove(kept, archived)
        if gone.messages or gone.events:
            self._tables_due = bool(options.lake)
        for failure in gone.failures:
            _log.error("retention could not read a file: %s", failure)
        if gone.failures:
            self.troubles["retention of files"] = "; ".join(gone.failures)
        else:
            self.troubles.pop("retention of files", None)
        removed = Removed(forgotten, gone.messages, gone.events, gone.bytes_freed)
        if forgotten or gone.messages or gone.events:
            _log.info(
                "retention removed %d messages and %d events, %d of them dead: %d bytes freed",
                removed.messages, removed.events, removed.forgotten, removed.bytes_freed,
            )  # fmt: skip
        return removed

    def _remove(self, kept: _Kept, archived: Archived | None) -> Collected:
        log = self._runtime.engine.log
        if not has_arrow():
            return drop_settled(log, kept, oldest_first=True)
        from remuda.log.retention.collect import collect

        kept.look_closely()
        return collect(log, kept, None if archived is None else archived.position)

    def _archived(self) -> Archived | None:
        """How far the archive is; retention must not go beyond it."""
        lake = self._runtime.options.collect_after_archive
        if lake is None:
            return None
        from remuda.spark.lake.coverage import archived
        from remuda.spark.source.directory_log import EmbeddedLog

        root = self._runtime.engine.log.disk.path("")
        assert root is not None
        reached = archived(lake, EmbeddedLog(root))
        _log.info("retention stops where the archive ends: offset %d, position %d", *reached)
        return reached

    def _run(self) -> None:
        # At once: a process that took over from a killed one may be killed next, and then replays less.
        self._try_if_due("checkpoint", self._checkpoint_when_due)
        while not self._stop.wait(_PAUSE):
            self._try_if_due("ownership", self._runtime.check_fence)
            self._try_if_due("the check of the directory", self._check_directory)
            self._try_if_due("intake", self.take_in)
            self._try_if_due("checkpoint", self._checkpoint_when_due)
            self._try_if_due("sealing", self._seal_when_quiet)
            self._try_if_due("retention", self.collect_when_due)
            self._try_if_due("lakehouse tables", self._publish_tables)
            self._try_if_due("checksums", self._verify_checksums)

    def _check_directory(self) -> None:
        """Stop if the directory was removed: its files stay open, so that writes to them still succeed."""
        log = self._runtime.engine.log
        if not isinstance(log.disk, DirectoryDisk) or self._runtime.failure is not None:
            return
        try:
            log.disk.check_there()
            log.check_there()
        except StorageError as error:
            if not error.passing:
                self._runtime.abandon(error)
        except OSError as error:
            _log.warning("the directory cannot be checked: %s", error)

    def _try_if_due(self, name: str, duty: Callable[[], None]) -> None:
        if name not in self._postponed or time.monotonic() >= self._postponed[name][0]:
            self._try(name, duty)

    def _try(self, name: str, duty: Callable[[], None]) -> None:
        """Do one duty. If it fails, that is reported, and the others go on."""
        try:
            duty()
            self.troubles.pop(name, None)
            self._postponed.pop(name, None)
        except Exception as error:
            if (self._stop.is_set() or isinstance(error, BrokerClosed)) and duty != self._publish_tables:
                return
            _, delay = self._postponed.get(name, (0.0, 0.0))
            delay = min(max(2 * delay, _FIRST_DELAY), _LONGEST_DELAY)
            self._postponed[name] = time.monotonic() + delay, delay
            if self.troubles.get(name) != str(error):
                known = isinstance(error, RemudaError)
                _log.error("%s failed and will be tried again: %s", name, error, exc_info=not known)
            self.troubles[name] = str(error)

    def _verify_checksums(self) -> None:
        self._scrub(_SCRUB)

    def _scrub(self, budget: int) -> None:
        """Verify the checksums of sealed files. Damage is added to the report of the recovery."""
        if self._scrubbing.done:
            return
        report = self._runtime.engine.report
        known = set(report.damages)
        found = [damage for damage in self._scrubbing.run(budget) if damage not in known]
        report.damages = (*report.damages, *found)
        for damage in found:
            _log.error("a file of the log is damaged: %s. Restore it from a copy", damage.describe())

    def _publish_tables(self) -> None:
        """Update the lakehouse tables to the files that are sealed now."""
        if not self._tables_due:
            return
        self._tables_due = False
        try:
            if self._publisher is None:
                from remuda.lake.publishing import TablePublisher  # loads Arrow, and most brokers have no tables

                root = self._runtime.engine.log.disk.path("")
                assert root is not None
                self._publisher = TablePublisher(Path(root).absolute(), self._runtime.options.lake)
            published = self._publisher.publish(patience=_PUBLISH_PATIENCE)
        except BaseException:
            self._tables_due = True
            raise
        for name in sorted({name for table in published for name in table.damaged}):
            _log.error("%s is damaged or missing, and not in the lakehouse tables; restore it from a copy", name)

    def take_in(self) -> None:
        """Publish what is in the spool. One at a time: two would publish the same batch."""
        with self._taking_in:
            if self._intake is None:
                place = self._runtime.engine.log.disk.path("spool")
                if place is None or not os.path.isdir(place):
                    return
                from remuda.broker.embedded.upkeep.spool_reader import SpoolReader

                self._intake = SpoolReader(self._runtime)
            self._intake.run(self._stop.is_set)

    def _checkpoint_when_due(self) -> None:
        if self._checkpoint_is_due():
            self.checkpoint()
            self._unsealed = True

    def _checkpoint_is_due(self) -> bool:
        due = max(self._runtime.options.checkpoint_bytes, _SNAPSHOTS_PER_LOG * self._snapshot_bytes)
        log = self._runtime.engine.log
        # A process that takes over from this one replays what came since: that must not take long.
        records = _RECORDS_TO_REPLAY + self._snapshot_bytes // _SNAPSHOT_BYTES_PER_RECORD
        visited = self._runtime.visited and log.records_since_checkpoint >= records
        return visited or log.bytes_since_checkpoint >= due

    def _seal_when_quiet(self) -> None:
        """Seal when little is written: sealing takes the interpreter from publishers and handlers."""
        log = self._runtime.engine.log
        before, self._written = self._written, log.total
        busy = self._written - before > _BUSY_BYTES
        if self._inherited and not busy:
            self._pass_inherited()
            self._inherited = False
        if not self._unsealed and "sealing" not in self.troubles:
            return
        if not busy or self._volatile or sum(1 for _ in closed_segments(log)) > _MOST_UNSEALED:
            self._unsealed = False
            # Sealing many segments takes seconds, and a restart would replay all that came meanwhile.
            self._seal(self._checkpoint_is_due)
            self._checkpoint_when_due()

    def _pass_inherited(self) -> None:
        """Have no checkpoint need what an earlier process wrote, if that is enough for a full segment."""
        log = self._runtime.engine.log
        ended = [segment for segment in log.catalog.files().tail if segment.end is not None]
        if not has_arrow() or sum(segment.written for segment in ended) < log.options.segment_bytes:
            return
        for _ in range(KEPT):
            if log.settled_before <= ended[-1].sequence:
                self.checkpoint()
        self._unsealed = True

    def collect_when_due(self) -> None:
        """Collect if it is time to."""
        runtime = self._runtime
        if runtime.clock() >= self._next_collect:
            self.collect()
            self._next_collect = runtime.clock() + max(runtime.options.collect_interval, SECOND)


class _Kept:
    """Which messages must stay: those that a queue may need, and those settled within the retention."""

    def __init__(self, runtime: Runtime, retention: int, archived: Archived | None = None) -> None:
        self._log, self._since = runtime.engine.log, runtime.clock() - retention
        with runtime.whole():
            core = runtime.engine.core
            frozen = FrozenCore(core)
            end = core.recorder.next_offset
            self._recent = core.recorder.settled_since(self._since)
        try:
            unarchived = [] if archived is None else [(archived.offset, max(end - archived.offset, 0))]
            self._keep([*frozen.live(), *unarchived])
        finally:
            frozen.thaw()

    def _keep(self, runs: list[tuple[int, int]]) -> None:
        self._runs = merged(runs)
        self._starts = [first for first, _ in self._runs]

    def look_closely(self) -> None:
        """A block in which something is young may also hold what is not: ask the log, once everything is in it."""
        from remuda.log.readers.reader import Reader
        from remuda.log.retention.young import young_runs

        reader = Reader(self._log.disk)
        old = reader.offset_at(self._since)
        held = [(file.first, file.last) for file in self._log.catalog.files().messages]
        mixed = [
            run for run in self._recent
            if run[0] < old and any(first < run[0] + run[1] and last >= run[0] for first, last in held)
        ]  # fmt: skip
        if mixed:
            self._recent = [run for run in self._recent if run not in mixed]
            self._keep([*self._runs, *young_runs(reader, mixed, self._since)])

    def __call__(self, first: int, last: int) -> list[tuple[int, int]]:
        kept = [run for run in self._recent if run[0] <= last and run[0] + run[1] > first]
        at = max(bisect_left(self._starts, first) - 1, 0)
        while at < len(self._runs) and self._runs[at][0] <= last:
            kept.append(self._runs[at])
            at += 1
        clipped = [(max(start, first), min(start + count, last + 1) - max(start, first)) for start, count in kept]
        return merged(run for run in clipped if run[1] > 0)
