"""Publishing: which queues messages go to, which of them are unchanged, and the receipt for their producer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from remuda.core import admission
from remuda.core.compacter import Compacter
from remuda.core.extensions import MessageOf, unreadable
from remuda.core.flow.bodykeys import with_keys
from remuda.core.flow.merging import REPLACED, SKIPPED, merge
from remuda.core.queues.plans import Plan
from remuda.core.queues.queue import Queue
from remuda.core.recovery.spool import Spool
from remuda.core.registry import Registry, whereabouts
from remuda.core.routing import Exchange
from remuda.model.errors import (
    Conflict,
    Duplicate,
    InvalidMessage,
    LookAgain,
    NotFound,
    NotHeld,
    Refused,
    RemudaError,
)
from remuda.model.ids import STEP, Snowflakes
from remuda.model.message import CORRELATION
from remuda.model.messages import Column, Messages, cell, pick, with_id
from remuda.model.notes import NOTE, Note
from remuda.model.operations.commands import NamedOptions, Once, Publish, SkipSpooled
from remuda.model.operations.results import Differences, Receipt, differences
from remuda.model.queues.end_reports import asks, report_headers, report_topic
from remuda.model.queues.notices import NoticeKind
from remuda.model.queues.options import CommitWhen, Status
from remuda.model.queues.routing import ROUTERS, Binding, ExchangeKind
from remuda.model.queues.system_queues import CALLBACKS, UNROUTED
from remuda.model.records import EXPIRED, FORGOTTEN, TURNED, Appended, Event, ExchangeChange, QueueChange, SpoolTaken
from remuda.model.state import State
from remuda.model.topic_types import TopicTypes

Verdict = tuple[Column[bytes | None], list[bool] | None]
"""The hashes of bodies, and which of them repeat the last one of their object."""
UNCONFIRMED: Final = 128
"""How many of its newest batches a producer can send again without their being stored twice."""
_PRODUCERS: Final = 4096
_COMPARED: Final = 1000
_NOTHING: Final[dict[int, tuple[int, int]]] = {}
_NO_DIFFERENCES: Final[dict[str, Differences]] = {}
_NO_WORDS: Final[dict[int, str]] = {}
_NO_REFUSALS: Final[admission.Refusals] = {}


class _SharedWatch:
    """Who publishes through a router waits for the outcome of all copies, by one watch."""

    def __init__(self) -> None:
        self.number: int | None = None


class Publishing:
    """Carries out the commands of producers."""

    def __init__(self, registry: Registry, compacter: Compacter, snowflakes: Snowflakes, spool: Spool) -> None:
        self._registry = registry
        self._recorder = registry.recorder
        self._routing = registry.routing
        self._compacter = compacter
        self._snowflakes = snowflakes
        self._spool = spool
        self.message_of: MessageOf = unreadable
        self.types: TopicTypes | None = None
        self._shared: _SharedWatch | None = None
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
        if command.note is not None:
            return self._publish_noted(command, command.note)
        if messages.name == NOTE or (isinstance(messages.name, list) and NOTE in messages.name):
            raise InvalidMessage(
                f"{NOTE!r} is the name of notes on messages, which are published with note=; nothing was stored"
            )
        if self.types is not None:
            messages = self.types.inferred(messages)
            command = replace(command, messages=messages)
        if command.once is not None and not self._is_new(messages.id(0), command.once):
            error = Duplicate(
                f"a message with id {messages.id(0)!r} "
                f"{'is known' if command.once.ever else 'waits or is being handled'}; this one was not stored"
            )
            return Receipt(recorder.next_offset, [messages.id(0)], {0: error})
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

    def _publish_noted(self, command: Publish, note: Note) -> Receipt:
        """Store a batch whose last row is a note on a message that lives; all of it, or nothing."""
        messages, recorder, queue = command.messages, self._recorder, self._registry.queues.get(note.queue)
        if queue is None:
            raise NotFound(f"there is no queue {note.queue!r}; nothing was stored")
        if note.lease is not None:
            held = queue.flights.find(note.offset, 1)
            if not any(piece.lease == note.lease for piece in held) or note.lease not in queue.leases:
                raise NotHeld(
                    f"message {note.offset} of {note.queue} is no longer with this consumer; nothing was stored"
                )
        elif not whereabouts(queue, note.offset, 1) and queue.parked.holding(note.offset) is None:
            raise NotHeld(f"message {note.offset} is no longer in {note.queue}; nothing was stored")
        if queue.notes.has(note.offset, note.number):
            raise Duplicate(
                f"message {note.offset} of {note.queue} has a note {note.number} already; nothing was stored"
            )
        receipt = self._publish(command, self._identified(messages))
        at = receipt.first + len(messages.bodies) - 1
        queue.notes.add(note.offset, note.number, at)
        recorder.touch(queue)
        if note.lease is None:
            self.wake(queue, note.offset)
        return receipt

    def wake_unheard(self) -> None:
        """After a restart: what the log says of a note, but no longer of the wait that it ended."""
        for queue in list(self._registry.queues.values()):
            unheard, queue.notes.unheard = queue.notes.unheard, set()
            for offset in sorted(unheard):
                self.wake(queue, offset)

    def wake(self, queue: Queue, offset: int) -> None:
        """End the wait of a message whose consumer let go of it until others have noted something on it."""
        notes = queue.notes
        if notes.count(offset) < notes.awaited.get(offset, 0):
            return
        for piece in queue.delayed.find(offset, 1):
            was_handled = piece.redelivered or offset in queue.arrivals  # one that was moved may be no first delivery
            if piece.state is State.QUEUED and was_handled and piece.due > self._recorder.now:
                notes.awaited.pop(offset, None)
                self._recorder.stay(queue, Event(queue.name, State.QUEUED, offset, 1, attempt=piece.attempt))
                self._registry.after(queue)

    def _publish(self, command: Publish, messages: Messages, verdict: Verdict | None = None) -> Receipt:
        """Store a batch in the queues that each message goes to."""
        recorder, registry, queue = self._recorder, self._registry, command.queue
        routes: list[tuple[str, ...]]
        if command.note is not None:
            routes = self._routes_beside(messages, command)
        else:
            routes = [(queue,)] if queue is not None else self._routes(messages, command)
        differs, refusals, kept = _NO_DIFFERENCES, _NO_REFUSALS, messages
        rows: Sequence[int] = range(len(messages.bodies))
        plan = registry.plan_for(routes) if command.options is None else None
        if plan is None:
            differs = self._ready(routes, command.options)
            plan = registry.plan_for(routes)
        if plan is not None and plan.body_keys:
            messages = kept = with_keys(messages, plan.body_keys)
        wanted: Column[tuple[str, ...]] = routes[0] if len(routes) == 1 else routes
        digest: Column[bytes | None] = None
        unchanged: list[bool] | None = None
        if queue is None and messages.object is not None and messages.key is not None:
            # A message for one queue by name is no news of its object: it is neither compared nor remembered.
            digest, unchanged = (self._compacter.digests(messages), None) if verdict is None else verdict
        look = None if digest is None or verdict is not None else self._compacter.look(messages, digest)
        if plan is None or plan.screens:
            # What repeats its object's last body comes into no queue, so that none refuses it.
            screened = routes if unchanged is None or not any(unchanged) else _spread(wanted, unchanged)
            refusals = admission.screen(messages, screened, registry.queues, recorder.now, look)
            unchanged = unchanged if look is None else look.verdicts
            if refusals:
                if command.note is not None:
                    raise next(iter(refusals.values()))
                rows = [row for row in range(len(messages.bodies)) if row not in refusals]
                kept = messages.take(rows)
                if len(routes) > 1:
                    wanted = routes = [routes[row] for row in rows]
                digest = pick(digest, rows)
                unchanged = None if unchanged is None else [unchanged[row] for row in rows]
        elif look is not None:
            unchanged = [look.repeats(row, taken=True) for row in range(len(messages.bodies))]
        first = recorder.next_offset
        watch, by_key = None, _NO_WORDS
        if command.spooled is not None:
            self._take_from_spool(command.spooled, first if kept.bodies else None, len(messages.bodies), refusals)
        if kept.bodies:
            watch, by_key = self._append(kept, wanted, plan, unchanged, digest, command)
        # Even if nothing was stored: a queue that was just initialized may hold messages.
        if registry.touched or registry.ended:
            registry.settle_down()
        assert messages.ids is not None
        repeats = tuple(row for row, same in zip(rows, unchanged, strict=True) if same) if unchanged else ()
        unroutable: tuple[int, ...] = ()
        if () in routes:
            unroutable = tuple(row for at, row in enumerate(rows) if not cell(wanted, at))
        if by_key and refusals:
            by_key = {rows[row]: word for row, word in by_key.items()}
        return Receipt(first, messages.ids, refusals, repeats, watch, differs, unroutable, by_key=by_key)

    def _append(
        self, kept: Messages, wanted: Column[tuple[str, ...]], plan: Plan | None, unchanged: list[bool] | None = None,
        digest: Column[bytes | None] = None, command: Publish | None = None,
    ) -> tuple[int | None, dict[int, str]]:  # fmt: skip
        """Store messages in the queues that want them: none if they say nothing new, nor one that needs no further one
        of their key. Returns the watch, and what became of rows by such a rule."""
        column = wanted if unchanged is None or not any(unchanged) else _spread(wanted, unchanged)
        merged = None
        if plan is not None and plan.merges:
            merged = merge(kept, column, self._registry.queues, self._recorder.now)
            column = merged.queues
        producer, sequence = (None, 0) if command is None else (command.producer, command.sequence)
        record = self._recorder.append(kept, column, digest, producer, sequence)
        if digest is not None:
            self._compacter.remember(kept, digest)
        if producer is not None:
            self.note_producer(record)
        words, replaced = (_NO_WORDS, ()) if merged is None else (merged.words, merged.replaced)
        registry, recorder, count = self._registry, self._recorder, len(kept.bodies)
        stretches = [(0, count, column)] if type(column) is tuple else admission.stretches(record)
        admission.enter(record, stretches, registry.queues)
        if plan is None or column is not wanted or type(column) is not tuple:
            plan = registry.plan_for([column] if type(column) is tuple else column)  # type: ignore[arg-type]
        assert plan is not None, "queues that were made ready"
        shared = self._shared
        watch = None if shared is None else shared.number
        if plan.durable:
            recorder.durable = True
        if plan.watches or recorder.wants_notices:
            watch = self._announce(record, stretches, watch)
        if shared is not None:
            shared.number = watch
        if replaced:
            self._end_replaced(replaced)  # before others are evicted for lack of room
        for queue in plan.queues:
            if plan.evicts and queue.name in registry.queues:
                registry.evict(queue, record.first)
            registry.follow(queue)
        if column is not wanted and kept.headers:
            for row in range(len(kept.bodies)):
                queues = cell(wanted, row)
                if queues and not cell(column, row) and asks(_headers(kept, row)):
                    why = SKIPPED if words.get(row) == SKIPPED else "unchanged"
                    registry.ended.append((queues[0], record.first + row, 1, why))
        return watch, words

    def _end_replaced(self, replaced: Sequence[tuple[str, int]]) -> None:
        """Messages whose place newer ones of their key took end, and are not kept as failed ones."""
        registry, recorder = self._registry, self._recorder
        for name, offset in replaced:
            queue = registry.queues[name]
            for state, first, count, priority in whereabouts(queue, offset, 1):
                registry.end(queue, state, first, count, REPLACED, priority=priority)
                recorder.change(QueueChange(FORGOTTEN, name, recorder.now, first=first, count=count))
                queue.forget(first, count)

    def _is_new(self, own: str, once: Once) -> bool:
        """Whether no message has this id: none at all, or none that is live. What was published since the log was
        looked through is still in memory."""
        newer = range(once.upto, self._recorder.next_offset)
        if len(newer) > _COMPARED:
            raise LookAgain(f"{len(newer)} messages were published meanwhile; look through the log again")
        facts = self._registry.facts
        same = [*once.found, *(offset for offset in newer if (known := facts(offset)) is not None and known.id == own)]
        if once.ever:
            return not same
        live = (
            state
            for offset in same
            for queue in self._registry.queues.values()
            for state, *_ in whereabouts(queue, offset, 1)
        )
        return all(state is State.SUCCESS for state in live)

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
        queues = list(self._registry.queues.values())
        late = any(queue.watches for queue in queues)
        for queue in queues:
            commits = queue.options.commit_when
            if not queue.watches and not (late and queue.arrivals.size):
                continue
            live = [(state, start, size) for state, start, size, _ in whereabouts(queue, first, count)]
            ended = [(piece.state, piece.first, piece.count) for piece in queue.parked.find(first, count)]
            if not queue.watches:
                live, ended = queue.moved_here(live), queue.moved_here(ended)
            for state, start, size in live:
                if state is State.QUEUED or commits is not CommitWhen.SENT:
                    watch = watch or recorder.watch()
                    recorder.watch_messages(watch, queue, start, size)
            for state, start, _ in ended:
                watch = watch or recorder.watch()
                (parked,) = queue.parked.find(start, 1)
                failed = failed or parked.reason or state.name.lower()
        if watch is not None and failed is not None:
            recorder.fail_watch(watch, failed)
        return watch

    # Ids, routes and queues of a batch

    def _identified(self, messages: Messages) -> Messages:
        if messages.ids is None and len(messages.bodies) == 1:
            now = self._recorder.now
            return with_id(messages, self._snowflakes.take_one(now), STEP, now)
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
            shared = messages.topics or (messages.name,)
            return [self._routing.known.get((shared, unbound)) or route(shared, unbound, queues)]
        routes: dict[tuple[str, ...], tuple[str, ...]] = {}
        found = []
        for row in range(len(messages)):
            topics = messages.topics_of(row)
            if topics not in routes:
                routes[topics] = route(topics, unbound, queues)
            found.append(routes[topics])
        return found

    def _routes_beside(self, messages: Messages, command: Publish) -> list[tuple[str, ...]]:
        """The queues of each row of a batch that ends with a note, which goes to none."""
        others = len(messages.bodies) - 1
        if not others:
            return [()]
        queue = command.queue
        routes = [(queue,)] if queue is not None else self._routes(messages.slice(0, others), command)
        return [*(routes if len(routes) == others else routes * others), ()]

    def _exchange_routes(self, messages: Messages, exchange: str) -> list[tuple[str, ...]]:
        through = self._routing.through
        headers = messages.headers
        if isinstance(headers, list) or (len(messages.bodies) > 1 and self._routing.scatters):
            rows = range(len(messages.bodies))
            return [through(exchange, messages.topics_of(row), cell(headers, row)) for row in rows]
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

    def _announce(self, record: Appended, stretches: Sequence[admission.Stretch], watch: int | None) -> int | None:
        """Messages entered their queues: tell who wants to know, and watch them for their producer."""
        recorder = self._recorder
        for start, stop, names in stretches:
            for name in names:
                queue = self._registry.queues[name]
                first, count = record.first + start, stop - start
                recorder.notice(NoticeKind.PRODUCED, queue, first=first, count=count)
                if queue.watches:
                    watch = watch or recorder.watch(held=self._shared is not None)
                    recorder.watch_messages(watch, queue, first, count)
        return watch

    def _take_from_spool(
        self, spooled: SpoolTaken, first: int | None, count: int, refusals: admission.Refusals
    ) -> None:
        before = spooled.rows - count
        refused = {before + row: str(error) for row, error in refusals.items()}
        record = replace(spooled, time=self._recorder.now, first=first, refused=refused)
        self._recorder.change(record)
        self._spool.note(record)

    # Reports of messages that ended without a handler's answer (B9)

    def report(self, queue: str, first: int, count: int, reason: str) -> None:
        """Tell those who asked for it that messages ended: expired, cancelled, cleared, evicted, or with a queue."""
        for offset in range(first, first + count):
            fresh = self._recorder.fresh(offset)
            message = self.message_of(offset) if fresh is None else fresh[0][fresh[1]]
            topic = None if message is None else report_topic(message.headers)
            if message is None or topic is None:
                continue
            kind = "Expired" if reason == EXPIRED else "Ended"
            headers = report_headers(message.headers, message.id, queue, reason, kind)
            told = Messages([b""], topic, mime_type="text/plain", headers=headers)
            try:
                routes = self._routing.route((topic,), UNROUTED, self._registry.queues)
                if any(name in self._registry.queues for name in routes):
                    told = self._identified(told)
                    refused = self._publish(Publish(told, unbound=UNROUTED), told).refusals
                    if refused and CALLBACKS in self._registry.queues:
                        self._publish(Publish(told, queue=CALLBACKS), told)  # from there it is tried again
            except RemudaError:
                continue  # a topic to which nothing can be published

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
        shared = self._shared = _SharedWatch()
        try:
            if kind is ExchangeKind.DISTRIBUTE:
                refusals, partly = self._distribute(originals, bindings)
                return Receipt(first, originals.ids, refusals, partly_refused=partly, watch=shared.number)
            turn = exchange.turn
            self._one_by_one(exchange, bindings, originals, kind, refusals)
            if exchange.turn != turn:
                self._recorder.change(
                    ExchangeChange(TURNED, command.exchange or "", self._recorder.now, turn=exchange.turn)
                )
            return Receipt(first, originals.ids, refusals, watch=shared.number)
        finally:
            self._shared = None
            if shared.number is not None:
                self._recorder.release_watch(shared.number)

    def _one_by_one(
        self, exchange: Exchange, bindings: Sequence[Binding], originals: Messages, kind: ExchangeKind,
        refusals: dict[int, Refused],
    ) -> None:  # fmt: skip
        """Each message goes to the first binding that takes it, from the one on whose turn it is."""
        for row in range(len(originals)):
            turn = exchange.turn if kind is ExchangeKind.ROUND_ROBIN else 0
            refused: Refused | None = None
            for step in range(len(bindings)):
                binding = bindings[(turn + step) % len(bindings)]
                refused = self._copy_to(binding, originals.slice(row, row + 1)).get(0)
                if refused is None:
                    exchange.turn = (turn + step + 1) % len(bindings) if kind is ExchangeKind.ROUND_ROBIN else 0
                    break
            if refused is not None:
                refusals[row] = refused

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
            refused = admission.screen(originals, [(name,)], self._registry.queues, self._recorder.now)
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
            plan = self._registry.plan_for(routes)
            if plan is not None and plan.body_keys:
                kept = with_keys(kept, plan.body_keys)
            self._append(kept, column, plan)
        accepted = set(rows)
        # The compacter looks at a message once, not at each of its copies.
        digest = self._compacter.digests(originals)
        verdict = digest, self._compacter.unchanged(originals, digest)
        for binding in bindings:
            if binding.queue is None:
                refused = self._copy_to(binding, originals, verdict)
                accepted |= {row for row in range(len(originals)) if row not in refused}
                refusals = {**refused, **refusals}
        self._registry.settle_down()
        by_all = {row: error for row, error in refusals.items() if row not in accepted}
        return by_all, {row: error for row, error in refusals.items() if row in accepted}

    def _copy_to(self, binding: Binding, originals: Messages, verdict: Verdict | None = None) -> dict[int, Refused]:
        """Publish copies to one binding. Returns the rows it refused."""
        copies = originals
        if binding.topic is not None:
            copies = replace(originals, name=binding.topic, topics=(), ids=None)
        elif binding.exchange is not None:
            copies = replace(originals, ids=None)
        command = Publish(copies, queue=binding.queue, exchange=binding.exchange)
        try:
            return self._publish(command, self._identified(copies), verdict).refusals
        except NotFound as error:
            return {row: Refused(str(error)) for row in range(len(originals))}


def _headers(messages: Messages, row: int) -> Mapping[str, str]:
    found: Mapping[str, str] = cell(messages.headers, row)
    return found


def _correlated(messages: Messages) -> Messages:
    headers: list[Mapping[str, str]] = [
        {**_headers(messages, row), CORRELATION: messages.id(row)} for row in range(len(messages))
    ]
    return replace(messages, headers=headers[0] if len(headers) == 1 else headers)


def _spread(queues: Column[tuple[str, ...]], unchanged: list[bool]) -> list[tuple[str, ...]]:
    """The queues of each row, none for those that are unchanged."""
    return [() if same else cell(queues, row) for row, same in enumerate(unchanged)]
