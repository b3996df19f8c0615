"""Which queues a message goes to (T1, T2, B10, Q18): by its topics' roots, by channels' prefixes and patterns, and
through exchanges. The cost grows with the topic's words and the matches, not with the number of channels."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
from operator import itemgetter
from typing import Any, Final

from remuda.model.queues.routing import ALTERNATE, DECLARED, HASHED, ROUTERS, Binding, ExchangeKind
from remuda.model.topics import check_topic, root, split_topic, stem_of

_MOST_ROUTES: Final = 10_000
_HEAVIEST: Final = 100
"""The most that a binding can weigh in a consistent hash."""


class _Node:
    __slots__ = ("below", "here")

    def __init__(self) -> None:
        self.below: dict[str, _Node] = {}
        self.here: dict[Any, None] = {}


class PatternTrie:
    """Values by pattern: `*` is one word, `#` zero or more."""

    def __init__(self) -> None:
        self._top = _Node()

    def add(self, pattern: str, value: Any) -> None:
        node = self._top
        for word in split_topic(pattern):
            node = node.below.setdefault(word, _Node())
        node.here[value] = None

    def discard(self, pattern: str, value: Any) -> None:
        path = [self._top]
        words = split_topic(pattern)
        for word in words:
            node = path[-1].below.get(word)
            if node is None:
                return
            path.append(node)
        path[-1].here.pop(value, None)
        for parent, word in zip(reversed(path[:-1]), reversed(words), strict=True):
            child = parent.below[word]
            if child.below or child.here:
                return
            del parent.below[word]

    def find(self, topic: str) -> dict[Any, None]:
        """The values whose pattern fits, each once."""
        found: dict[Any, None] = {}
        words = split_topic(topic)
        states: dict[int, tuple[_Node, bool]] = {}
        _enter(states, self._top, False)
        for word in words:
            after: dict[int, tuple[_Node, bool]] = {}
            for node, repeats in states.values():
                if repeats:
                    _enter(after, node, True)
                for step in (word, "*"):
                    child = node.below.get(step)
                    if child is not None:
                        _enter(after, child, False)
            states = after
        for node, _ in states.values():
            found.update(node.here)
        return found


def _enter(states: dict[int, tuple[_Node, bool]], node: _Node, repeats: bool) -> None:
    """Reach a node of the trie; behind a `#` it stays reached for any number of words."""
    known = states.get(id(node))
    if known is not None and (known[1] or not repeats):
        return
    states[id(node)] = (node, repeats)
    child = node.below.get("#")
    if child is not None:
        _enter(states, child, True)


class Exchange:
    """A name in front of queues, topics and other exchanges."""

    def __init__(self, kind: ExchangeKind, bindings: Iterable[Binding] = ()) -> None:
        self.kind = kind
        self.turn = 0
        self.alternate: str | None = None
        """The exchange that gets what no binding takes."""
        self.hashed: str | None = None
        """The header whose value a consistent hash goes by."""
        self._bindings: dict[tuple[Any, ...], Binding] = {}
        self._by_key: dict[str, dict[tuple[Any, ...], Binding]] = {}
        self._by_queue: dict[str, dict[tuple[Any, ...], Binding]] = {}
        self._patterns = PatternTrie()
        self._ring: list[tuple[int, Binding]] | None = None
        """For kinds that choose one: where on the ring bindings are, made when it is first asked for."""
        for binding in bindings:
            self.bind(binding)

    @property
    def bindings(self) -> tuple[Binding, ...]:
        """A router's by priority, highest first; those of equal priority in the order they were bound."""
        found = tuple(self._bindings.values())
        return tuple(sorted(found, key=lambda one: -one.priority)) if self.kind in ROUTERS else found

    def bind(self, binding: Binding) -> None:
        identity = _identity(binding)
        if self._bindings.get(identity) == binding:
            return
        self._bindings[identity] = binding
        self._ring = None
        self._by_key.setdefault(binding.key, {})[identity] = binding
        if binding.queue is not None:
            self._by_queue.setdefault(binding.queue, {})[identity] = binding
        if ALTERNATE in binding.arguments:
            self.alternate = str(binding.arguments[ALTERNATE])
        if HASHED in binding.arguments:
            self.hashed = str(binding.arguments[HASHED])
        if self.kind is ExchangeKind.TOPIC:
            self._patterns.add(binding.key, identity)

    def unbind(self, binding: Binding) -> None:
        identity = _identity(binding)
        if self._bindings.pop(identity, None) is None:
            return
        self._ring = None
        _discard(self._by_key, binding.key, identity)
        if binding.queue is not None:
            _discard(self._by_queue, binding.queue, identity)
        if ALTERNATE in binding.arguments:
            self.alternate = None
        if self.kind is ExchangeKind.TOPIC:
            self._patterns.discard(binding.key, identity)

    def forget_queue(self, queue: str) -> None:
        """Drop the bindings of a removed queue. Routers keep theirs: they create the queue again."""
        if self.kind not in ROUTERS:
            for binding in list(self._by_queue.get(queue, {}).values()):
                self.unbind(binding)

    def _chosen(self, key: str) -> Iterator[Binding]:
        """One binding: any or, in a consistent hash, the one that a name belongs to. When others come or go, most names
        stay with theirs."""
        ring = self._ring
        if ring is None:
            ring = self._ring = sorted(
                (
                    (_spread_out(f"{number} {identity!r}"), binding)
                    for identity, binding in self._bindings.items()
                    if DECLARED not in binding.arguments
                    for number in range(_weight(binding.key) if self.kind is ExchangeKind.CONSISTENT_HASH else 1)
                ),
                key=itemgetter(0),
            )
        if not ring:
            return
        if self.kind is ExchangeKind.RANDOM:
            self.turn += 1
            yield ring[_spread_out(str(self.turn)) % len(ring)][1]
        else:
            yield ring[bisect_left(ring, _spread_out(key), key=itemgetter(0)) % len(ring)][1]

    def matching(self, key: str, headers: Mapping[str, Any]) -> Iterator[Binding]:
        """The bindings that a message with this key and these headers goes to."""
        match self.kind:
            case ExchangeKind.DIRECT:
                yield from self._by_key.get(key, {}).values()
            case ExchangeKind.TOPIC:
                for identity in self._patterns.find(key):
                    yield self._bindings[identity]
            case ExchangeKind.CONSISTENT_HASH | ExchangeKind.RANDOM:
                yield from self._chosen(key if self.hashed is None else str(headers.get(self.hashed, "")))
            case ExchangeKind.HEADERS:
                for binding in self._bindings.values():
                    if _fits(binding.arguments, headers):
                        yield binding
            case _:
                yield from self.bindings


def _discard(index: dict[str, dict[tuple[Any, ...], Binding]], name: str, identity: tuple[Any, ...]) -> None:
    same = index[name]
    del same[identity]
    if not same:
        del index[name]


def _spread_out(text: str) -> int:
    """A number that is as good as random, and the same in every process."""
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")


def _weight(key: str) -> int:
    """How many places on the ring a binding has: a hundred for each unit of the weight that its key is."""
    units = int(key) if key.isascii() and key.isdecimal() and len(key) < 9 else 1
    return 100 * max(1, min(units, _HEAVIEST))


def _identity(binding: Binding) -> tuple[Any, ...]:
    arguments = tuple(sorted((name, repr(value)) for name, value in binding.arguments.items()))
    return binding.queue, binding.topic, binding.exchange, binding.key, arguments


def _fits(arguments: Mapping[str, Any], headers: Mapping[str, Any]) -> bool:
    """Whether headers fit a binding's arguments, by its `x-match`: all (default) or any of them."""
    how = str(arguments.get("x-match", "all"))
    wanted = {
        name: value
        for name, value in arguments.items()
        if name != "x-match" and (how.endswith("-with-x") or not name.startswith("x-"))
    }
    fitting = (name in headers and (value is None or headers[name] == value) for name, value in wanted.items())
    return any(fitting) if how.startswith("any") else all(fitting)


class Routing:
    """Finds the queues of a message."""

    def __init__(self, default_queue: str | None = None) -> None:
        self.default_queue = default_queue
        self.exchanges: dict[str, Exchange] = {}
        self._channels: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {}
        self._order: dict[str, int] = {}
        """When each channel was opened: copies are made in this order."""
        self._opened = 0
        self._patterns = PatternTrie()
        self._prefixes: dict[str, dict[str, None]] = {}
        """Channels by prefix, in which `*` and `#` have no meaning."""
        self.known: dict[tuple[tuple[str, ...], str | None], tuple[str, ...]] = {}
        """A cache of routes by topics, valid until a queue is created, changed or removed."""

    @property
    def scatters(self) -> bool:
        """Whether messages that are alike may go different ways."""
        return any(exchange.kind is ExchangeKind.RANDOM for exchange in self.exchanges.values())

    def forget_queue(self, name: str) -> None:
        for exchange in self.exchanges.values():
            exchange.forget_queue(name)

    def changed(self) -> None:
        """A queue was created, changed or removed."""
        if self.known:
            self.known.clear()

    def open_channel(self, name: str, prefixes: Iterable[str], patterns: Iterable[str] = ()) -> None:
        self._channels[name] = tuple(prefixes), tuple(patterns)
        self._order[name] = self._opened = self._opened + 1
        for stem in _stems(self._channels[name][0]):
            self._prefixes.setdefault(stem, {})[name] = None
        for pattern in self._channels[name][1]:
            self._patterns.add(pattern, name)
        self.changed()

    def close_channel(self, name: str) -> None:
        known = self._channels.pop(name, None)
        if known is not None:
            del self._order[name]
            for stem in _stems(known[0]):
                self._prefixes.get(stem, {}).pop(name, None)
                if not self._prefixes.get(stem, True):
                    del self._prefixes[stem]
            for pattern in known[1]:
                self._patterns.discard(pattern, name)
            self.changed()

    def route(self, topics: tuple[str, ...], unbound: str | None, queues: Mapping[str, object]) -> tuple[str, ...]:
        """The queues of a message with these topics; some may have to be created."""
        known = self.known.get((topics, unbound))
        if known is None:
            known = self._find(topics, unbound, queues)
            if len(self.known) >= _MOST_ROUTES:
                self.known.clear()
            self.known[topics, unbound] = known
        return known

    def channels(self, topics: tuple[str, ...]) -> tuple[str, ...]:
        """The channels that want a message with these topics."""
        found: dict[str, None] = {}
        for topic in topics:
            found |= self._patterns.find(topic)
            if self._prefixes:
                found.update(self._prefixes.get("", ()))
                end = -1
                while (end := topic.find(".", end + 1)) >= 0:
                    found.update(self._prefixes.get(topic[:end], ()))
                found.update(self._prefixes.get(topic, ()))
        return tuple(sorted(found, key=self._order.__getitem__)) if len(found) > 1 else tuple(found)

    def _find(self, topics: tuple[str, ...], unbound: str | None, queues: Mapping[str, object]) -> tuple[str, ...]:
        for topic in topics:
            if self.default_queue is None or topic:
                check_topic(topic)
        channels = self.channels(topics)
        if unbound is not None:
            return channels or (unbound,)
        names: dict[str, None] = {}
        for topic in topics:
            name = root(topic)
            names[name if name in queues or self.default_queue is None else self.default_queue] = None
        return tuple(dict.fromkeys((*names, *channels)))

    def through(self, name: str, keys: Iterable[str], headers: Mapping[str, Any]) -> tuple[str, ...]:
        """The queues behind an exchange that routes by keys or headers, each once."""
        found: dict[str, None] = {}
        seen = {name}
        pending = [name]
        while pending:
            here = pending.pop()
            exchange = self.exchanges.get(here)
            if exchange is None:
                continue
            taken = False
            for key in keys:
                for binding in exchange.matching(key, headers):
                    if binding.queue is not None:
                        taken = True
                        found[binding.queue] = None
                    elif binding.exchange is not None and binding.exchange != here:
                        taken = True
                        if binding.exchange not in seen:
                            seen.add(binding.exchange)
                            pending.append(binding.exchange)
            if not taken and exchange.alternate is not None and exchange.alternate not in seen:
                seen.add(exchange.alternate)
                pending.append(exchange.alternate)
        return tuple(found)


def _stems(prefixes: tuple[str, ...]) -> Iterator[str]:
    """`fruit`, or `fruit.*`, covers `fruit` and all below it."""
    for prefix in prefixes:
        yield stem_of(prefix)
