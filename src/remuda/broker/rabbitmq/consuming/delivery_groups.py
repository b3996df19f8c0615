"""Deliveries in groups: messages that differ only in body, id and time are decoded together, handed out as columns, and
answered together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, pairwise
from operator import eq
from struct import Struct
from typing import Any, Final, overload

import msgspec

from remuda.amqp.client.amqp_delivery import Delivery
from remuda.amqp.client.delivery_parser import count_alike
from remuda.broker.rabbitmq.publishing.codec import Incoming, decode
from remuda.log.streams.stream_numbers import references
from remuda.model.messages import Messages, fold

_LONG: Final = Struct(">I")
_FEWEST: Final = 8
_FIRST: Final = 64
"""How many are compared together at first; fewer once messages differ, and more while they do not."""
_SENT: Final = b"\x0ccap-senttimeS"
_SHARED: Final = tuple(
    name for name in Messages.__struct_fields__ if name not in {"bodies", "ids", "created"}
)  # the columns in which a group does not differ


class Group:
    """Deliveries that are like the first of them, which is decoded as `sample`."""

    __slots__ = ("_numbers", "created", "deliveries", "ids", "sample")

    def __init__(self, sample: Incoming, deliveries: list[Delivery], ids: list[str], created: list[int]) -> None:
        self.sample = sample
        self.deliveries = deliveries
        self.ids = ids
        self.created = created
        self._numbers: list[int] | None = None

    def __len__(self) -> int:
        return len(self.deliveries)

    @property
    def numbers(self) -> list[int]:
        """The numbers of the ids. Computed only if needed: without a log, plain acknowledgements do not need them."""
        if self._numbers is None:
            self._numbers = references(self.ids)
        return self._numbers

    def items(self) -> list[Incoming]:
        """Each delivery by itself."""
        if len(self.deliveries) == 1:
            return [self.sample]
        return [self.item(at) for at in range(len(self.deliveries))]

    def item(self, at: int) -> Incoming:
        sample, delivery, created = self.sample, self.deliveries[at], self.created[at]
        if delivery is sample.delivery:
            return sample
        message = msgspec.structs.replace(sample.message, body=delivery.body, id=self.ids[at], created=created)
        meta = msgspec.structs.replace(sample.meta, created=created)
        return Incoming(delivery, message, meta, self.numbers[at], sample.attempt, sample.redelivered)

    def choose(self, places: Sequence[int]) -> Group:
        """Some of the deliveries."""
        if len(places) == 1:
            item = self.item(places[0])
            return _alone(item)
        return Group(
            self.sample,
            [self.deliveries[at] for at in places],
            [self.ids[at] for at in places],
            [self.created[at] for at in places],
        )

    def of_epoch(self, epoch: int) -> Group | None:
        """The deliveries of one epoch of their channel."""
        places = [at for at, delivery in enumerate(self.deliveries) if delivery.epoch == epoch]
        if len(places) == len(self.deliveries):
            return self
        return self.choose(places) if places else None


class _SharedProperties:
    """The encoded properties that a group's messages share: all but the id, which occurs twice, and two times."""

    __slots__ = (
        "created", "head", "ids_only", "layout", "length", "middle", "redelivered", "tail", "to_created",
        "to_id", "to_sent",
    )  # fmt: skip

    def __init__(self, raw: bytes, redelivered: bool, cuts: tuple[slice, slice, slice, slice]) -> None:
        id, sent, created, again = cuts
        self.length = len(raw)
        self.redelivered = redelivered
        self.head = raw[: id.start]
        self.to_sent = raw[id.stop : sent.start]
        self.to_created = raw[sent.stop : created.start]
        self.to_id = raw[created.stop : again.start]
        self.tail = raw[again.stop :]
        self.middle = raw[id.stop : again.start]
        self.created = int(raw[created])
        self.ids_only = Struct(f"{id.start}x{id.stop - id.start}s{len(raw) - id.stop}x")
        ends = (0, id.start, id.stop, sent.start, sent.stop, created.start, created.stop, again.start, again.stop)
        self.layout = Struct("".join(f"{stop - start}s" for start, stop in pairwise((*ends, len(raw)))))

    @classmethod
    def of(cls, incoming: Incoming) -> _SharedProperties | None:
        """None if the place of one of these cannot be determined for sure."""
        raw, own = incoming.delivery.raw_properties, incoming.message.id.encode()
        made = b'{"c":%d' % incoming.meta.created
        if incoming.invalid is not None or incoming.meta.foreign or raw.count(own) != 2 or not own.isascii():
            return None
        if raw.count(_SENT) != 1 or raw.count(made) != 1:
            return None
        sent_at = raw.index(_SENT) + len(_SENT)
        created_at = raw.index(made) + len(made)
        id_at, again_at = raw.index(own), raw.rindex(own)
        sent = slice(sent_at + 4, sent_at + 4 + _LONG.unpack_from(raw, sent_at)[0])
        created = slice(created_at - len(str(incoming.meta.created)), created_at)
        if not id_at + len(own) <= sent.start <= sent.stop <= created.start < created.stop <= again_at:
            return None
        if raw[created.stop : created.stop + 1] not in (b",", b"}"):
            return None
        cuts = slice(id_at, id_at + len(own)), sent, created, slice(again_at, again_at + len(own))
        return cls(raw, incoming.delivery.redelivered, cuts)

    def read(self, deliveries: Sequence[Delivery]) -> tuple[list[str], list[int]]:
        """The ids and times of those deliveries, from the first on, that share these properties."""
        count = count_alike([one.redelivered for one in deliveries], self.redelivered)
        raw = [one.raw_properties for one in deliveries[:count]]
        count = count_alike(list(map(len, raw)), self.length)
        if not count:
            return [], []
        joined = b"".join(raw[:count])
        if (texts := self._ids_of_one_time(joined)) is not None:
            return texts, [self.created] * count
        rows = self.layout.iter_unpack(joined)
        heads, ids, to_sents, _, to_createds, created, to_ids, again, tails = zip(*rows, strict=True)
        count = min(
            count_alike(heads, self.head), count_alike(to_sents, self.to_sent), count_alike(tails, self.tail),
            count_alike(to_createds, self.to_created), count_alike(to_ids, self.to_id),
        )  # fmt: skip
        if ids != again:
            count = min(count, count_alike(list(map(eq, ids, again)), True))
        if not b"".join(created).isdigit():
            count = min(count, count_alike(list(map(bytes.isdigit, created)), True))
        if not b"".join(ids).isascii():
            count = min(count, count_alike(list(map(bytes.isascii, ids)), True))
        return list(map(bytes.decode, ids[:count])), list(map(int, created[:count]))

    def _ids_of_one_time(self, joined: bytes) -> list[str] | None:
        """The ids, if the messages differ in nothing else, as those published together do; else None."""
        ids = list(chain.from_iterable(self.ids_only.iter_unpack(joined)))
        between = (self.tail + self.head).join(map(self.middle.join, zip(ids, ids, strict=True)))
        if joined != b"".join((self.head, between, self.tail)):
            return None
        return list(map(bytes.decode, ids)) if b"".join(ids).isascii() else None


def read_groups(deliveries: Sequence[Delivery], now: int) -> list[Group]:
    """The messages of deliveries, in their order."""
    groups: list[Group] = []
    at, ahead = 0, _FIRST
    while at < len(deliveries):
        sample = decode(deliveries[at], now)
        group = _alone(sample)
        groups.append(group)
        at += 1
        like = _SharedProperties.of(sample) if at < len(deliveries) else None
        while like is not None and at < len(deliveries):
            ids, created = like.read(deliveries[at : at + ahead])
            group.deliveries += deliveries[at : at + len(ids)]
            group.ids += ids
            group.created += created
            at += len(ids)
            if len(ids) < ahead:
                ahead = max(len(ids), _FEWEST)
                break
            ahead *= 2  # so that few are compared in vain if messages differ
    return groups


def _alone(sample: Incoming) -> Group:
    return Group(sample, [sample.delivery], [sample.message.id], [sample.message.created])


def decode_all(deliveries: Sequence[Delivery], now: int) -> list[Incoming]:
    """The messages of deliveries, each by itself."""
    return [item for group in read_groups(deliveries, now) for item in group.items()]


def as_messages(groups: Sequence[Group]) -> Messages:
    """All messages of some groups as columns."""
    if len(groups) == 1 and len(groups[0]) == 1:
        return Messages.of_one(groups[0].sample.message)
    columns: dict[str, Any] = {}
    for name in _SHARED:
        value = fold([getattr(group.sample.message, name) for group in groups])
        if type(value) is list:
            value = [one for one, group in zip(value, groups, strict=True) for _ in range(len(group))]
        columns[name] = value
    return Messages(
        bodies=[delivery.body for group in groups for delivery in group.deliveries],
        ids=[own for group in groups for own in group.ids],
        created=fold([time for group in groups for time in group.created]),
        **columns,
    )


class Runs(Sequence[tuple[int, int]]):
    """The messages of groups as runs of one each, computed from their numbers on first use."""

    __slots__ = ("_groups", "_made")

    def __init__(self, groups: Sequence[Group]) -> None:
        self._groups = groups
        self._made: list[tuple[int, int]] | None = None

    def __len__(self) -> int:
        return count_of(self._groups)

    @overload
    def __getitem__(self, at: int) -> tuple[int, int]: ...
    @overload
    def __getitem__(self, at: slice) -> list[tuple[int, int]]: ...
    def __getitem__(self, at: int | slice) -> tuple[int, int] | list[tuple[int, int]]:
        return self._runs()[at]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self._runs())

    def _runs(self) -> list[tuple[int, int]]:
        if self._made is None:
            self._made = [(number, 1) for number in numbers_of(self._groups)]
        return self._made


def numbers_of(groups: Iterable[Group]) -> list[int]:
    return [number for group in groups for number in group.numbers]


def deliveries_of(groups: Iterable[Group]) -> list[Delivery]:
    return [delivery for group in groups for delivery in group.deliveries]


def items_of(groups: Iterable[Group]) -> list[Incoming]:
    return [item for group in groups for item in group.items()]


def count_of(groups: Iterable[Group]) -> int:
    return sum(map(len, groups))
