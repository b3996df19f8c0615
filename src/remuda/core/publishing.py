"""Publishing: which queues messages go to, which of them are unchanged, and the receipt for their producer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from remuda.core import admission
from remuda.core.compacter import Compacter
from remuda.core.consuming import Consuming
from remuda.core.effects import Dispatch
from remuda.core.leases import Waiter
from remuda.core.recorder import BLOCK_BITS
from remuda.core.registry import Registry, whereabouts
from remuda.core.spool import Spool
from remuda.model.commands import NamedOptions, Publish, SkipSpooled, is_plain
from remuda.model.errors import Conflict, NotFound, Refused
from remuda.model.ids import STEP, Snowflakes
from remuda.model.message import CORRELATION
from remuda.model.messages import Column, Messages, cell, with_id
from remuda.model.options import CommitWhen, Status
from remuda.model.records import Appended, Events, SpoolTaken
from remuda.model.results import Differences, Receipt, differences
from remuda.model.routing import ROUTERS, Binding, ExchangeKind
from remuda.model.state import State

Served = Sequence[tuple[Dispatch, Events]]
UNCONFIRMED: Final = 128
"""How many of its newest batches a producer can send again without their being stored twice."""
_PRODUCERS: Final = 4096
_NOTHING: Final[dict[int, tuple[int, int]]] = {}
_QUEUED: Final = State.QUEUED


class Publishing:
    """Carries out the commands of producers."""

    def __init__(
        self, registry: Registry, consuming: Consuming, compacter: Compacter, snowflakes: Snowflakes, spool: Spool
    ) -> None:
        self._registry = registry
        self._recorder = registry.recorder
        self._routing = registry.routing
        self._consuming = consuming
        self._compacter = compacter
        self._snowflakes = snowflakes
        self._spool = spool
        self.producers: dict[str, dict[int, tuple[int, int]]] = {}
        """The newest batches of producers, which may send them again: by sequence, the first offset and the count."""

    def publish(self, command: Publish) -> Receipt:
        """Store a batch that has passed its checks. If it is from the spool, that is recorded together with it."""
        messages, recorder = command.messages, self._recorder
        count = len(messages.bodies)
        if not count:
            return Receipt(recorder.next_offset, [], {})
        if command.producer is not None:
            stored = self.producers.get(command.producer, _NOTHING).get(command.sequence)
            if stored is not None:
                return self._again(command, *stored)
        plain = self.publish_plainly(command, recorder.now)
        if plain is not None:
            record, durable, served = plain
            recorder.keep(record, durable)
            for dispatch, fetched in served:
                recorder.keep(fetched, False)
                recorder.send(dispatch)
            assert isinstance(record.messages.ids, range)
            return Receipt(record.first, record.messages.ids, {})
        if command.exchange is not None:
            exchange = self._routing.exchanges.get(command.exchange)
            if exchange is None:
                raise NotFound(f"there is no router {command.exchange!r}; nothing was stored")
            if exchange.kind in ROUTERS:
                receipt = self._through_router(command, exchange.kind)
                if command.producer is not None:
                    self._mark_last(command.producer, command.sequence)
                return receipt
        return self._publish(command, self._identified(messages))

    def _publish(self, command: Publish, messages: Messages) -> Receipt:
        recorder, registry, queue = self._recorder, self._registry, command.queue
        count = len(messages.bodies)
        routes: list[tuple[str, ...]] = [(queue,)] if queue is not None else self._routes(messages, command)
        differs = self._ready(routes, command.options)
        refusals = admission.screen(messages, routes, registry.queues)
        kept = messages
        if refusals:
            rows = [row for row in range(count) if row not in refusals]
            kept = messages.take(rows)
            routes = routes if len(routes) == 1 else [routes[row] for row in rows]
        # A message for one queue by name is no news of its object: it is neither compared nor remembered.
        digest = self._compacter.digests(kept) if queue is None else None
        unchanged = self._compacter.unchanged(kept, digest)
        first, watch = recorder.next_offset, None
        if command.spooled is not None:
            self._take_from_spool(command.spooled, first if kept.bodies else None, count, refusals)
        if kept.bodies:
            column = _column(routes, unchanged)
            record = recorder.append(kept, column, digest, command.producer, command.sequence)
            self._compacter.remember(kept, digest)
            self.note_producer(record)
            watch = self._enter(record)
        registry.settle_down()  # even if nothing was stored: a queue that was just initialized may hold messages
        assert messages.ids is not None
        repeats = tuple(row for row, same in enumerate(unchanged) if same) if unchanged else ()
        unroutable: tuple[int, ...] = ()
        if not all(routes):
            unroutable = tuple(row for row in range(len(kept)) if not (routes[0] if len(routes) == 1 else routes[row]))
        return Receipt(first, messages.ids, refusals, repeats, watch, differs, unroutable)

    def publish_plainly(self, command: Publish, now: int) -> tuple[Appended, bool, Served] | None:
        """As `publish`, for one message without special options, to queues without special options.

        Returns the record for the caller to keep, whether it must be durable, and the deliveries to pulls that waited;
        or None, and then nothing has changed.
        """
        recorder, messages, queue = self._recorder, command.messages, command.queue
        if now < recorder.now:
            now = recorder.now
        if recorder.wants_notices or not is_plain(command):
            return None
        producer = command.producer
        if producer is not None and command.sequence in self.producers.get(producer, _NOTHING):
            return None
        if queue is not None:
            names: tuple[str, ...] = (queue,)
        else:
            known = self._routing.known(messages.topics or (messages.name,), command.unbound)  # type: ignore[arg-type]
            if known is None:
                return None
            names = known
        queues = self._registry.queues
        for name in names:
            target = queues.get(name)
            if target is None or not target.plain_in or target.consumers or target.delayed.soonest <= now:
                return None
            if target.waiters and (
                not target.plain_out
                or target.ready.size
                or target.attempts.size
                or target.watched
                or _is_special(target.waiters)
            ):
                return None
        if recorder.rows:
            recorder.at(now)
        else:
            recorder.now = now
        first = recorder.next_offset
        recorder.next_offset = first + 1
        identified = with_id(messages, self._snowflakes.take_one(now), STEP, now)
        record = Appended(first, now, identified, names, None, producer, command.sequence)
        if producer is not None:
            self.note_producer(record)
        block = first >> BLOCK_BITS
        settled = recorder.last_settled
        if now > settled.get(block, 0):
            settled[block] = now
        durable = False
        served: Served = ()
        for name in names:
            target = queues[name]
            counts = target.counts
            counts[_QUEUED] = counts.get(_QUEUED, 0) + 1
            target.had_messages = True
            target.ready.add(messages.priority, False, first, 1)  # type: ignore[arg-type]
            if target.durable_in:
                durable = True
            if target.waiters:
                waiter = target.waiters.pop(next(iter(target.waiters)))
                run = target.ready.take_run(waiter.count, now)
                assert run is not None
                served = (*served, self._consuming.send_plainly(target, waiter.consumer, now, waiter.tag, run))
        return record, durable, served

    def skip_spooled(self, command: SkipSpooled) -> None:
        self._recorder.change(command.spooled)
        self._spool.note(command.spooled)

    def note_producer(self, record: Appended) -> None:
        """Remember a batch that its producer may send again because the answer to it was lost."""
        producer = record.producer
        if producer is None:
            return
        batches = self.producers.pop(producer, None)
        if batches is None:
            batches = {}
            if len(self.producers) >= _PRODUCERS:
                del self.producers[next(iter(self.producers))]
        self.producers[producer] = batches
        batches[record.sequence] = (record.first, len(record.messages.bodies))
        if len(batches) > UNCONFIRMED:
            del batches[next(iter(batches))]

    def _mark_last(self, producer: str, sequence: int) -> None:
        """A batch that became several records is noted on the last of them: if that one is stored, all are."""
        records = self._recorder.unkept
        for at in range(len(records) - 1, -1, -1):
            record = records[at]
            if isinstance(record, Appended):
                records[at] = marked = replace(record, producer=producer, sequence=sequence)
                self.note_producer(marked)
                return

    def _again(self, command: Publish, first: int, count: int) -> Receipt:
        """The receipt of a batch that was stored before. Its ids and refusals are in the log only."""
        unknown = [""] * len(command.messages.bodies)
        return Receipt(first, unknown, {}, watch=self.watch_again(first, count), repeated=count)

    def watch_again(self, first: int, count: int) -> int | None:
        """Watch messages that were stored before, in queues that commit later than on receipt."""
        recorder, watch, failed = self._recorder, None, None
        for queue in self._registry.queues.values():
            commits = queue.options.commit_when
            if commits not in (CommitWhen.SENT, CommitWhen.ACKNOWLEDGED):
                continue
            for state, start, size, _ in whereabouts(queue, first, count):
                if state is State.QUEUED or commits is CommitWhen.ACKNOWLEDGED:
                    watch = watch or recorder.watch()
                    recorder.watch_messages(watch, queue, start, size)
            for parked in queue.parked.find(first, count):
                watch = watch or recorder.watch()
                failed = failed or parked.reason or parked.state.name.lower()
        if watch is not None and failed is not None:
            recorder.fail_watch(watch, failed)
        return watch

    # Ids, routes and queues of a batch

    def _identified(self, messages: Messages) -> Messages:
        if messages.ids is None:
            ids: range | list[str] = self._snowflakes.take(len(messages.bodies), self._recorder.now)
        elif isinstance(messages.ids, list) and not all(messages.ids):
            fresh = iter(self._snowflakes.take(messages.ids.count(""), self._recorder.now))
            ids = [own or str(next(fresh)) for own in messages.ids]
        else:
            ids = messages.ids
        return replace(messages, ids=ids, created=self._recorder.now)

    def _routes(self, messages: Messages, command: Publish) -> list[tuple[str, ...]]:
        """The queues of each row, or one entry for all rows if they share name and topics."""
        if command.exchange is not None:
            return self._exchange_routes(messages, command.exchange)
        route, unbound, queues = self._routing.route, command.unbound, self._registry.queues
        if not isinstance(messages.topics, list) and not isinstance(messages.name, list):
            return [route(messages.topics_of(0), unbound, queues)]
        routes: dict[tuple[str, ...], tuple[str, ...]] = {}
        found = []
        for row in range(len(messages)):
            topics = messages.topics_of(row)
            if topics not in routes:
                routes[topics] = route(topics, unbound, queues)
            found.append(routes[topics])
        return found

    def _exchange_routes(self, messages: Messages, exchange: str) -> list[tuple[str, ...]]:
        through = self._routing.through
        headers = messages.headers
        if isinstance(headers, list):
            return [through(exchange, messages.topics_of(row), headers[row]) for row in range(len(messages.bodies))]
        if not isinstance(messages.name, list) and not isinstance(messages.topics, list):
            return [through(exchange, messages.topics_of(0), headers)]
        known: dict[tuple[str, ...], tuple[str, ...]] = {}
        found = []
        for row in range(len(messages.bodies)):
            keys = messages.topics_of(row)
            if keys not in known:
                known[keys] = through(exchange, keys, headers)
            found.append(known[keys])
        return found

    def _ready(self, routes: Sequence[tuple[str, ...]], named: NamedOptions) -> dict[str, Differences]:
        """Make sure that every queue on these routes exists and is initialized; all are checked before any is made.

        Returns the queues that have other options than those requested, with the differences.
        """
        registry = self._registry
        names = {name for route in routes for name in route}
        missing = sorted(name for name in names if name not in registry.queues)
        if missing:
            registry.check_creation(missing[0])
            options = registry.options(named)
            for name in missing:
                registry.create(name, options, Status.RUNNING)
        for name in sorted(names):
            if registry.queues[name].status is Status.NOT_INITIALIZED:
                registry.initialize(registry.queues[name], named)
        if named is None:
            return {}
        found = {name: differences(named, registry.queues[name].options) for name in sorted(names)}
        return {name: differs for name, differs in found.items() if differs}

    def _enter(self, record: Appended) -> int | None:
        registry, recorder = self._registry, self._recorder
        stretches = admission.stretches(record)
        admission.enter(record, stretches, registry.queues)
        watch: int | None = None
        touched: dict[str, None] = {}
        for start, stop, names in stretches:
            for name in names:
                queue = registry.queues[name]
                touched[name] = None
                admission.announce(recorder, queue, record.first + start, stop - start)
                if queue.options.commit_when in (CommitWhen.SENT, CommitWhen.ACKNOWLEDGED):
                    watch = watch or recorder.watch()
                    recorder.watch_messages(watch, queue, record.first + start, stop - start)
        for name in touched:
            if name in registry.queues:
                registry.evict(registry.queues[name], record.first)
                registry.touch(name)
        return watch

    def _take_from_spool(
        self, spooled: SpoolTaken, first: int | None, count: int, refusals: admission.Refusals
    ) -> None:
        before = spooled.rows - count
        refused = {before + row: str(error) for row, error in refusals.items()}
        record = replace(spooled, time=self._recorder.now, first=first, refused=refused)
        self._recorder.change(record)
        self._spool.note(record)

    # Routers, which ask each binding in turn (Q18)

    def _through_router(self, command: Publish, kind: ExchangeKind) -> Receipt:
        """Publish copies to a router's bindings, with the original's id as correlation."""
        exchange = self._routing.exchanges[command.exchange or ""]
        bindings = exchange.bindings
        if not bindings:
            raise Conflict(f"router {command.exchange!r} has no binding; nothing was stored")
        originals = _correlated(self._identified(command.messages))
        assert originals.ids is not None
        first, refusals = self._recorder.next_offset, dict[int, Refused]()
        if kind is ExchangeKind.DISTRIBUTE:
            refusals, partly = self._distribute(originals, bindings)
            return Receipt(first, originals.ids, refusals, partly_refused=partly)
        for row in range(len(originals)):
            turn = exchange.turn if kind is ExchangeKind.ROUND_ROBIN else 0
            refused: Refused | None = None
            for step in range(len(bindings)):
                binding = bindings[(turn + step) % len(bindings)]
                refused = self._copy_to(binding, originals.slice(row, row + 1)).get(0)
                if refused is None:
                    exchange.turn = turn + step + 1
                    break
            if refused is not None:
                refusals[row] = refused
        return Receipt(first, originals.ids, refusals)

    def _distribute(
        self, originals: Messages, bindings: Sequence[Binding]
    ) -> tuple[dict[int, Refused], dict[int, Refused]]:
        """Every binding gets a copy. One record, and one stored body, serves all queues that take a message.

        Returns the refusals of rows that no binding took, and of those that only some refused.
        """
        refusals: dict[int, Refused] = {}
        queues = [binding.queue for binding in bindings if binding.queue is not None]
        taken: list[list[str]] = [[] for _ in range(len(originals))]
        for name in dict.fromkeys(queues):
            try:
                self._ready([(name,)], None)
            except NotFound as error:
                refusals.update({row: refusals.get(row) or Refused(str(error)) for row in range(len(originals))})
                continue
            refused = admission.screen(originals, [(name,)], self._registry.queues)
            for row in range(len(originals)):
                if row in refused:
                    refusals.setdefault(row, refused[row])
                else:
                    taken[row].append(name)
        rows = [row for row in range(len(originals)) if taken[row]]
        if rows:
            kept = originals if len(rows) == len(originals) else originals.take(rows)
            routes = [tuple(taken[row]) for row in rows]
            column: Column[tuple[str, ...]] = routes[0] if routes.count(routes[0]) == len(routes) else routes
            self._enter(self._recorder.append(kept, column, None))
        accepted = set(rows)
        for binding in bindings:
            if binding.queue is None:
                refused = self._copy_to(binding, originals)
                accepted |= {row for row in range(len(originals)) if row not in refused}
                refusals = {**refused, **refusals}
        self._registry.settle_down()
        by_all = {row: error for row, error in refusals.items() if row not in accepted}
        return by_all, {row: error for row, error in refusals.items() if row in accepted}

    def _copy_to(self, binding: Binding, originals: Messages) -> dict[int, Refused]:
        """Publish copies to one binding. Returns the rows it refused."""
        copies = originals
        if binding.topic is not None:
            copies = replace(originals, name=binding.topic, topics=(), ids=None)
        elif binding.exchange is not None:
            copies = replace(originals, ids=None)
        command = Publish(copies, queue=binding.queue, exchange=binding.exchange)
        try:
            return self._publish(command, self._identified(copies)).refusals
        except NotFound as error:
            return {row: Refused(str(error)) for row in range(len(originals))}


def _is_special(waiters: Mapping[int, Waiter]) -> bool:
    """Whether the first pull that waits has special options."""
    waiter = next(iter(waiters.values()))
    return waiter.newest or waiter.clear_after != "none"


def _headers(messages: Messages, row: int) -> Mapping[str, str]:
    found: Mapping[str, str] = cell(messages.headers, row)
    return found


def _correlated(messages: Messages) -> Messages:
    headers: list[Mapping[str, str]] = [
        {**_headers(messages, row), CORRELATION: messages.id(row)} for row in range(len(messages))
    ]
    return replace(messages, headers=headers[0] if len(headers) == 1 else headers)


def _column(routes: list[tuple[str, ...]], unchanged: list[bool] | None) -> Column[tuple[str, ...]]:
    column: Column[tuple[str, ...]] = routes[0] if len(routes) == 1 else routes
    if unchanged is None or not any(unchanged):
        return column
    return [() if same else cell(column, row) for row, same in enumerate(unchanged)]
