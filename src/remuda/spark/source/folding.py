"""Lives folded from messages and events, column by column: `remuda.model.document`, for many messages at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from remuda.log.sealed.table_schemas import TIME
from remuda.model.life import ANSWERS, CLEARING, CONSUMER_LOST, LIVE, PARKED, REFUSALS, SUCCEEDED, WAITING
from remuda.model.state import State
from remuda.spark.source.tables import CONSUMED_BY, LIFECYCLE_SCHEMA

MESSAGE_COLUMNS: Final = ("offset", "created", "id", "name", "topics", "object", "key", "queues")
EVENT_COLUMNS: Final = (
    "position", "time", "queue", "state", "first", "count", "consumer", "attempt", "reason", "detail", "to",
)  # fmt: skip

Numbers = NDArray[np.int64]
Mask = NDArray[np.bool_]
Spread = Callable[[Numbers], Numbers]
"""From values of the lives that have events to values of all lives; -1 for those without."""

_STATES: Final = tuple(State)


def fold(messages: pa.Table, events: pa.Table) -> pa.RecordBatch:
    """The rows of `lifecycle` for these messages with these events. Both are in the order of the log."""
    messages, events = messages.combine_chunks(), events.combine_chunks()
    offsets = _numbers(messages["offset"])
    queues = _Queues.of(messages, events)
    steps = _steps(offsets, events, queues)
    homes = queues.key(np.repeat(np.arange(len(offsets)), queues.routed), queues.of_messages)
    lives = _distinct(np.concatenate([steps.lives, homes]))
    nowhere = np.flatnonzero(np.bincount(lives // queues.count, minlength=len(offsets)) == 0)
    told = _told(steps, lives, events)
    message, queue = np.divmod(lives, queues.count)
    order = np.argsort(np.concatenate([message, nowhere]), kind="stable")
    rows = _rows(messages, message, queues.names.take(pa.array(queue)), told)
    if len(nowhere):
        rows = pa.concat_tables([rows, _unrouted(messages, nowhere)]).take(pa.array(order))
    return rows.combine_chunks().to_batches()[0] if rows.num_rows else pa.RecordBatch.from_pylist([], LIFECYCLE_SCHEMA)


class _Queues(msgspec.Struct, frozen=True):
    """The queues by number; a message's life in one is numbered by both."""

    names: pa.Array
    of_messages: Numbers
    """The queues that messages were routed to, one message after the other."""
    routed: Numbers
    """To how many each was."""
    of_events: Numbers

    @classmethod
    def of(cls, messages: pa.Table, events: pa.Table) -> _Queues:
        lists = _one(messages["queues"])
        routed, told = pc.list_flatten(lists), _one(events["queue"])
        names = pc.unique(pa.concat_arrays([routed, told]))
        lengths = pc.fill_null(pc.list_value_length(lists), 0)
        return cls(names, *(_numbers(one) for one in (pc.index_in(routed, names), lengths, pc.index_in(told, names))))

    @property
    def count(self) -> int:
        return max(len(self.names), 1)

    def key(self, message: Numbers, queue: Numbers) -> Numbers:
        return message * self.count + queue


class _Steps(msgspec.Struct, frozen=True):
    """What happened to messages, one life after the other, each in order."""

    event: Numbers
    """The event of each step."""
    state: Numbers
    starts: Numbers
    """Where each life begins."""
    lives: Numbers
    """The number of each life."""

    def are(self, *states: State) -> Mask:
        return np.isin(self.state, [_STATES.index(state) for state in states])

    def first(self, which: Mask) -> Numbers:
        """The event of each life's first step of some; -1 where there is none."""
        if not len(self.starts):
            return self.starts
        none = len(which)
        found = np.minimum.reduceat(np.where(which, np.arange(none), none), self.starts)
        return np.append(self.event, -1)[found]

    def last(self, which: Mask) -> Numbers:
        if not len(self.starts):
            return self.starts
        found = np.maximum.reduceat(np.where(which, np.arange(len(which)), -1), self.starts)
        return np.append(self.event, -1)[found]

    def cleared_after(self) -> Mask:
        """Whether what was noted at a step no longer counts."""
        if not len(self.starts):
            return np.zeros(0, bool)
        place = np.arange(len(self.event))
        cleared = np.maximum.reduceat(np.where(self.are(*CLEARING), place, -1), self.starts)
        later: Mask = place < cleared[self.life]
        return later

    def count(self, which: Mask) -> Numbers:
        return np.add.reduceat(which.astype(np.int64), self.starts) if len(self.starts) else self.starts

    @property
    def life(self) -> Numbers:
        """Which of the lives each step is of."""
        return np.repeat(np.arange(len(self.starts)), np.diff(np.append(self.starts, len(self.event))))


def _steps(offsets: Numbers, events: pa.Table, queues: _Queues) -> _Steps:
    first, count = _numbers(events["first"]), _numbers(events["count"])
    begin, end = np.searchsorted(offsets, first), np.searchsorted(offsets, first + count)
    event = np.repeat(np.arange(len(first)), end - begin)
    skipped = np.repeat(np.cumsum(end - begin) - end, end - begin)
    life = queues.key(np.arange(len(event)) - skipped, queues.of_events[event])
    order = np.argsort(life, kind="stable")
    life, event = life[order], event[order]
    starts = np.flatnonzero(np.diff(life, prepend=-1))
    state = _numbers(pc.index_in(_one(events["state"]), pa.array([state.value for state in _STATES])))
    return _Steps(event, state[event], starts, life[starts])


def _told(steps: _Steps, lives: Numbers, events: pa.Table) -> dict[str, pa.Array]:
    """What the events of each life amount to; null, zero or empty for a life without events."""
    time = _numbers(events["time"])
    at = np.full(len(lives), -1)
    at[np.searchsorted(lives, steps.lives)] = np.arange(len(steps.lives))

    def spread(values: Numbers) -> Numbers:
        of_lives: Numbers = np.append(values, -1)[at]
        return of_lives

    def when(events_of_lives: Numbers) -> pa.Array:
        found = spread(events_of_lives)
        return pa.array(np.append(time, 0)[found], mask=found < 0).cast(TIME)

    answers = _answered(steps, events)
    everything, fetched, confirmed = np.full(len(steps.event), True), steps.are(State.FETCHED), steps.are(State.SUCCESS)
    last = spread(steps.last(everything))
    counts = np.where(at < 0, 0, spread(steps.count(confirmed)))
    counted = spread(steps.last(steps.are(State.FETCHED, *WAITING)))
    attempts = pc.max_element_wise(pc.fill_null(_take(events["attempt"], counted), 0), 0)
    return {
        "state": _take(events["state"], last),
        "modified": when(steps.last(everything)),
        "failed": when(steps.first(steps.are(*PARKED) & ~steps.cleared_after())),
        "moved_to": _take(events["to"], last),
        "position": _take(events["position"], last),
        "consumed": when(steps.first(fetched)),
        "processed": when(steps.first(answers)),
        "duration": _duration(steps, spread, answers, fetched, time),
        "completed": when(steps.first(steps.are(State.COMPLETED))),
        "confirmed_count": pa.array(counts, pa.int32()),
        "attempts": attempts.cast(pa.int32()),
        "reason": _standing(steps, spread, events["reason"]),
        "detail": _standing(steps, spread, events["detail"]),
        "kicked": pa.array(np.where(at < 0, 0, spread(steps.count(steps.are(State.KICKED)))) > 0),
        "consumed_by": _consumed_by(steps, spread, fetched, confirmed, events),
    }


def _answered(steps: _Steps, events: pa.Table) -> Mask:
    """Which steps are answers of consumers, by the rule of `is_answer`."""
    named = pc.not_equal(pc.fill_null(_one(events["consumer"]), ""), "")
    lost = pc.equal(pc.fill_null(_one(events["reason"]), ""), CONSUMER_LOST)
    by_consumer: Mask = pc.and_not(named, lost).to_numpy(zero_copy_only=False)
    return steps.are(*ANSWERS) | (steps.are(*REFUSALS) & by_consumer[steps.event])


def _duration(steps: _Steps, spread: Spread, answers: Mask, fetched: Mask, time: Numbers) -> pa.Array:
    """From the last fetch before each life's first answer to that answer."""
    if not len(steps.starts):
        return pa.nulls(len(spread(steps.starts)), pa.int64())
    place = np.arange(len(steps.event))
    answer = np.minimum.reduceat(np.where(answers, place, len(place)), steps.starts)
    before = fetched & (place < answer[steps.life])
    fetch = np.maximum.reduceat(np.where(before, place, -1), steps.starts)
    known = (answer < len(place)) & (fetch >= 0)
    moments = time[steps.event]
    took = np.where(known, moments[np.minimum(answer, len(place) - 1)] - moments[fetch], 0)
    return pa.array(spread(took), mask=spread(known.astype(np.int64)) < 1)


def _standing(steps: _Steps, spread: Spread, said: pa.ChunkedArray) -> pa.Array:
    """The last text of a column; null for a message that was queued again, or succeeded, since."""
    texts = _one(said)
    speaks = pc.not_equal(pc.fill_null(texts, ""), "").to_numpy(zero_copy_only=False)
    word = _take(texts, spread(steps.last(speaks[steps.event] | steps.are(*CLEARING))))
    return pc.if_else(pc.equal(word, ""), pa.scalar(None, pa.string()), word)


def _consumed_by(steps: _Steps, spread: Spread, fetched: Mask, confirmed: Mask, events: pa.Table) -> pa.Array:
    """Who fetched each message, and which of them confirmed it: of one consumer's fetches the last unconfirmed."""
    time, life = _numbers(events["time"]), steps.life
    consumers = _Consumers.of(_one(events["consumer"]))
    fetches, answers = np.flatnonzero(fetched), np.flatnonzero(confirmed)
    several = consumers.counts[consumers.of_events[steps.event[fetches]]]
    step = np.repeat(fetches, several)
    name = consumers.spelt(consumers.of_events[steps.event[fetches]])
    answer = _answers(
        life[np.concatenate([step, answers])],
        np.concatenate([name, consumers.whole[consumers.of_events[steps.event[answers]]]]),
        np.concatenate([step, answers]),
        len(step),
    )
    begun, ended = time[steps.event[step]], time[np.append(steps.event, 0)[answer]]
    entries = pa.StructArray.from_arrays(
        [
            consumers.names.take(pa.array(name)),
            pa.array(begun).cast(TIME),
            pa.array(ended, mask=answer < 0).cast(TIME),
            pa.array(ended - begun, mask=answer < 0),
        ],
        fields=list(CONSUMED_BY.value_type),
    )
    lengths = np.maximum(spread(np.bincount(life[step], minlength=len(steps.starts))), 0)
    return pa.ListArray.from_arrays(pa.array(np.append(0, np.cumsum(lengths)), pa.int32()), entries, type=CONSUMED_BY)


class _Consumers(msgspec.Struct, frozen=True):
    """Names by number. An event names one consumer, or several that fetched at once."""

    names: pa.Array
    of_events: Numbers
    """The text of each event, by number."""
    counts: Numbers
    """How many consumers each text names."""
    listed: Numbers
    """Their names, text after text."""
    whole: Numbers
    """Each text as one name."""

    @classmethod
    def of(cls, column: pa.Array) -> _Consumers:
        encoded = pc.fill_null(column, "").dictionary_encode()
        texts = encoded.dictionary.to_pylist()
        lists = [text.split(", ") for text in texts]
        numbers: dict[str, int] = {}
        listed = [numbers.setdefault(name, len(numbers)) for names in lists for name in names]
        whole = [numbers.setdefault(text, len(numbers)) for text in texts]
        return cls(
            pa.array(list(numbers), pa.string()),
            _numbers(encoded.indices),
            *(np.array(one, np.int64) for one in ([len(names) for names in lists], listed, whole)),
        )

    def spelt(self, texts: Numbers) -> Numbers:
        """The names in these texts, text after text."""
        counts = self.counts[texts]
        ends = np.cumsum(self.counts)[texts]
        names: Numbers = self.listed[np.arange(counts.sum()) + np.repeat(ends - np.cumsum(counts), counts)]
        return names


def _answers(life: Numbers, name: Numbers, step: Numbers, fetches: int) -> Numbers:
    """For each of the fetches, which come first, the step of the answer that confirmed it, or -1."""
    answer = np.full(fetches, -1)
    order = np.lexsort((step, name, life))
    is_answer = order >= fetches
    goes_on = (np.diff(life[order], prepend=-1) == 0) & (np.diff(name[order], prepend=-1) == 0)
    after_fetch = np.flatnonzero(is_answer & goes_on & ~np.roll(is_answer, 1))
    answer[order[after_fetch - 1]] = step[order[after_fetch]]
    # An answer that follows an answer may be to a fetch before both: these few are matched one by one.
    for at in np.flatnonzero(is_answer & goes_on & np.roll(is_answer, 1)):
        before = at - 1
        while goes_on[before] and (is_answer[before] or answer[order[before]] >= 0):
            before -= 1
        if not is_answer[before] and answer[order[before]] < 0:
            answer[order[before]] = step[order[at]]
    return answer


def _rows(messages: pa.Table, message: Numbers, queue: pa.Array, told: dict[str, pa.Array]) -> pa.Table:
    of_message = _of_message(messages, message)
    state = pc.fill_null(told["state"], State.QUEUED.value)
    modified = pc.coalesce(told["modified"], of_message["created"])
    columns = {
        **of_message,
        **told,
        "queue": queue,
        "state": state,
        "queued": _are(state, WAITING),
        "delivered": pc.or_(pc.is_valid(told["processed"]), told["kicked"]),
        "success": pc.or_(pc.greater(told["confirmed_count"], 0), _are(state, SUCCEEDED)),
        "archived": pc.invert(_are(state, LIVE)),
        "modified": modified,
    }
    return pa.table([columns[name] for name in LIFECYCLE_SCHEMA.names], schema=LIFECYCLE_SCHEMA)


def _unrouted(messages: pa.Table, message: Numbers) -> pa.Table:
    """Messages that came to no queue: they said nothing new."""
    of_message, count = _of_message(messages, message), len(message)
    no, nought = pa.repeat(False, count), pa.repeat(pa.scalar(0, pa.int32()), count)
    columns = {
        **of_message,
        "state": pa.repeat(State.UNCHANGED.value, count),
        **dict.fromkeys(("queued", "delivered", "success"), no),
        "archived": pa.repeat(True, count),
        "modified": of_message["created"],
        **dict.fromkeys(("confirmed_count", "attempts"), nought),
        "consumed_by": pa.repeat(pa.scalar([], CONSUMED_BY), count),
    }
    whole = [columns.get(field.name, pa.nulls(count, field.type)) for field in LIFECYCLE_SCHEMA]
    return pa.table(whole, schema=LIFECYCLE_SCHEMA)


def _of_message(messages: pa.Table, message: Numbers) -> dict[str, pa.Array]:
    topics = pc.fill_null(pc.list_value_length(_one(messages["topics"])), 0)
    topic_count = pc.max_element_wise(topics, 1).cast(pa.int32())
    columns = {name: _take(messages[name], message) for name in ("offset", "id", "name", "object", "key", "created")}
    return {**columns, "topic_count": topic_count.take(pa.array(message))}


def _distinct(numbers: Numbers) -> Numbers:
    """The distinct numbers, in order. NumPy's `unique` is slower by far on runs that are in order already."""
    ordered = np.sort(numbers, kind="stable")
    return ordered[np.flatnonzero(np.diff(ordered, prepend=-1))]


def _are(states: pa.Array, wanted: Iterable[State]) -> pa.Array:
    return pc.is_in(states, pa.array([state.value for state in wanted]))


def _take(column: pa.ChunkedArray | pa.Array, places: Numbers) -> pa.Array:
    """The values at some places; null where the place is -1."""
    return _one(column).take(pa.array(places, mask=places < 0))


def _one(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    if isinstance(column, pa.Array):
        return column
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks or [pa.array([], column.type)])


def _numbers(column: pa.ChunkedArray | pa.Array) -> Numbers:
    values: Numbers = _one(column).cast(pa.int64()).to_numpy(zero_copy_only=False)
    return values


def within(ranges: Sequence[range], first: Numbers, count: Numbers) -> Mask:
    """Which of some pieces of neighbouring offsets lie in one of the ranges, which are in order, at least in part."""
    starts, stops = (np.array([getattr(one, name) for one in ranges]) for name in ("start", "stop"))
    found: Mask = np.searchsorted(stops, first, side="right") < np.searchsorted(starts, first + count)
    return found
