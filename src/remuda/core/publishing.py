"""Messages come in: which queues they go to, which of them are news, and what their producer is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from remuda.core import admission
from remuda.core.receipts import Differences, Receipt
from remuda.core.registry import Registry, differences
from remuda.core.routers import copies_of
from remuda.model.errors import Conflict, NotFound, Refused
from remuda.model.messages import Column, Messages, cell
from remuda.model.options import CommitWhen, QueueOptions, Status
from remuda.model.records import Appended, Binding, RouterKind, SpoolTaken
from remuda.model.topics import check_topic

_MOST_ROUTES: Final = 10_000


class Publishing(Registry):
    """The way in."""

    def publish(
        self,
        messages: Messages,
        now: int,
        *,
        queue: str | None = None,
        unbound: str | None = None,
        options: QueueOptions | Mapping[str, Any] | None = None,
        spooled: SpoolTaken | None = None,
    ) -> Receipt:
        """Take in a batch that has passed its `check`: to the queues of its topics, or to `queue` alone.

        With `unbound`, only to the channels of its topics; what no channel wants goes to the queue of that name.
        Those that come from the spool are noted as taken in together with it.
        """
        self.ledger.at(now)
        count = len(messages.bodies)
        if not count:
            return Receipt(self.ledger.next_offset, [], {}, ())
        messages = self._identified(messages)
        routes: list[tuple[str, ...]] = [(queue,)] if queue is not None else self._routes(messages, unbound)
        differs = self._ready(routes, options)
        refusals = admission.screen(messages, routes, self.queues)
        kept = messages
        if refusals:
            rows = [row for row in range(count) if row not in refusals]
            kept = messages.take(rows)
            routes = routes if len(routes) == 1 else [routes[row] for row in rows]
        # A message that is put into one queue by name is no news of its object: it is neither compared nor remembered.
        digest = self.compacter.digests(kept) if queue is None else None
        unchanged = self.compacter.unchanged(kept, digest)
        first, watch = self.ledger.next_offset, None
        if spooled is not None:
            self._take_from_spool(spooled, first if kept.bodies else None, count, refusals)
        if kept.bodies:
            record = self.ledger.append(kept, _column(routes, unchanged), digest)
            self.compacter.remember(kept, digest)
            watch = self._enter(record)
        assert messages.ids is not None
        repeats = tuple(row for row, same in enumerate(unchanged) if same) if unchanged else ()
        return Receipt(first, messages.ids, refusals, repeats, watch, differs)

    def route(self, router: str, messages: Messages, now: int) -> list[Receipt]:
        """Publish through a router (Q18): copies go to its bindings, with the original's id as correlation."""
        self.ledger.at(now)
        if router not in self.routers:
            raise NotFound(f"there is no router {router!r}; nothing was stored")
        originals = self._identified(messages)
        receipts: list[Receipt] = []
        for choices, batch in self.routers[router].choose(originals):
            for binding in choices:
                receipt = self._publish_copy(binding, batch, now)
                receipts.append(receipt)
                if self.routers[router].kind is RouterKind.FIRST and not receipt.refusals:
                    break
        if not receipts:
            raise Conflict(f"router {router!r} has no binding; nothing was stored")
        return receipts

    def skip_spooled(self, spooled: SpoolTaken, now: int) -> None:
        """Rows of the spool that can be no messages are done with, too."""
        self.ledger.at(now)
        self.ledger.change(spooled)
        self.spool.note(spooled)

    # Inside

    def _identified(self, messages: Messages) -> Messages:
        if messages.ids is None:
            ids: range | list[str] = self.snowflakes.take(len(messages.bodies), self.ledger.now)
        elif isinstance(messages.ids, list) and not all(messages.ids):
            fresh = iter(self.snowflakes.take(messages.ids.count(""), self.ledger.now))
            ids = [own or str(next(fresh)) for own in messages.ids]
        else:
            ids = messages.ids
        return msgspec.structs.replace(messages, ids=ids, created=self.ledger.now)

    def _routes(self, messages: Messages, unbound: str | None) -> list[tuple[str, ...]]:
        """The queues of each row, or of all rows when they share their topics."""
        if not isinstance(messages.topics, list) and not isinstance(messages.name, list):
            return [self._route(messages.topics_of(0), unbound)]
        routes: dict[tuple[str, ...], tuple[str, ...]] = {}
        found = []
        for row in range(len(messages)):
            topics = messages.topics_of(row)
            if topics not in routes:
                routes[topics] = self._route(topics, unbound)
            found.append(routes[topics])
        return found

    def _route(self, topics: tuple[str, ...], unbound: str | None) -> tuple[str, ...]:
        """The queues of a message with these topics; known until a queue comes, changes or goes."""
        known = self.known_routes.get((topics, unbound))
        if known is None:
            known = self._find_route(topics, unbound)
            if len(self.known_routes) >= _MOST_ROUTES:
                self.known_routes.clear()
            self.known_routes[topics, unbound] = known
        return known

    def _find_route(self, topics: tuple[str, ...], unbound: str | None) -> tuple[str, ...]:
        names: list[str] = []
        default = self.distributor.default_queue
        for topic in topics:
            if default is None or topic:
                check_topic(topic)
        if unbound is not None:
            return self.distributor.channels(topics) or (unbound,)
        for name in self.distributor.roots(topics):
            if name not in self.queues and default is not None:
                name = default
            if name not in names:
                names.append(name)
        return (*names, *(name for name in self.distributor.channels(topics) if name not in names))

    def _ready(
        self, routes: Sequence[tuple[str, ...]], options: QueueOptions | Mapping[str, Any] | None
    ) -> dict[str, Differences]:
        """Make sure that every queue on these routes exists and is initialized; all are checked before any is made.

        Gives the queues that stand with other options than those asked for.
        """
        if len(routes) == 1 and options is None and self._all_ready(routes[0]):
            return {}
        names = {name for route in routes for name in route}
        missing = [name for name in names if name not in self.queues]
        if missing:
            self._check_creation(missing[0])
        asked = self._options(options)
        for name in sorted(missing):
            self._create(name, asked, Status.RUNNING)
        for name in sorted(names):
            if self.queues[name].status is Status.NOT_INITIALIZED:
                self._initialize(self.queues[name], asked if options is not None else self.queues[name].options)
        if options is None:
            return {}
        differing = {name: differences(asked, self.queues[name].options) for name in sorted(names)}
        return {name: differences for name, differences in differing.items() if differences}

    def _all_ready(self, names: tuple[str, ...]) -> bool:
        for name in names:
            queue = self.queues.get(name)
            if queue is None or queue.status is Status.NOT_INITIALIZED:
                return False
        return True

    def _enter(self, record: Appended) -> int | None:
        stretches = admission.stretches(record)
        admission.enter(record, stretches, self.queues)
        watch: int | None = None
        touched: dict[str, None] = {}
        for start, stop, names in stretches:
            for name in names:
                queue = self.queues[name]
                touched[name] = None
                admission.announce(self.ledger, queue, record.first + start, stop - start)
                if queue.options.commit_when in (CommitWhen.SENT, CommitWhen.ACKNOWLEDGED):
                    watch = watch or self.ledger.watch()
                    self.ledger.watch_messages(watch, queue, record.first + start, stop - start)
        for name in touched:
            if name in self.queues:
                admission.evict(self.ledger, self.queues[name], record.first)
                self._after(self.queues[name])
        return watch

    def _take_from_spool(
        self, spooled: SpoolTaken, first: int | None, count: int, refusals: admission.Refusals
    ) -> None:
        before = spooled.rows - count
        refused = {before + row: str(error) for row, error in refusals.items()}
        record = msgspec.structs.replace(spooled, time=self.ledger.now, first=first, refused=refused)
        self.ledger.change(record)
        self.spool.note(record)

    def _publish_copy(self, binding: Binding, batch: Messages, now: int) -> Receipt:
        copies = copies_of(batch, binding)
        try:
            return self.publish(copies, now, queue=binding.queue)
        except NotFound as error:
            refusals = {row: Refused(str(error)) for row in range(len(batch))}
            return Receipt(self.ledger.next_offset, [], refusals, ())


def _column(routes: list[tuple[str, ...]], unchanged: list[bool] | None) -> Column[tuple[str, ...]]:
    column: Column[tuple[str, ...]] = routes[0] if len(routes) == 1 else routes
    if unchanged is None or not any(unchanged):
        return column
    return [() if same else cell(column, row) for row, same in enumerate(unchanged)]
