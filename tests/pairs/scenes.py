"""Short scenes in which every two of (queue option, publish option, verb, answer, moment) meet at the broker.

A scene follows from its number alone. What must hold is asked through the public API: each message is in one place,
counts and documents agree, limits are exact, nothing comes early, late or after its deadline, what ends without an
answer is reported once, and a broker that is opened again is what it was.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from itertools import combinations, pairwise, product
from pathlib import Path
from typing import Any, Final, NamedTuple

from remuda import Message
from remuda.broker.delivery import Delivery
from remuda.broker.threads import EmbeddedBroker
from remuda.core.flow.merging import REPLACED
from remuda.model.document import Document
from remuda.model.errors import Refused
from remuda.model.life import LIVE
from remuda.model.operations.filters import MessageFilter
from remuda.model.state import State
from tests.broker.kit import SECOND, ManualClock, open_at

QUEUE: Final[dict[str, dict[str, Any]]] = {
    "plain": {},
    "unique": {"unique_ids": True},
    "limit": {"message_limit": 2},
    "evicts": {"message_limit": 2, "limit_exceeded": "delete-oldest"},
    "bytes": {"byte_limit": 9},
    "timeout": {"message_timeout": "10s"},
    "pause": {"delay_between_messages": "1s"},
    "no put-back": {"put_back": "no"},
    "put-back in front": {"put_back": "priority", "put_back_delay": "1s"},
    "delivery limit": {"delivery_limit": 1},
    "dead letters": {"dead_letter_queue": "other"},
    "expired": {"message_timeout": "6s", "expired_queue": "other"},
    "one priority": {"max_priority": 0},
    "robin": {"type": "round-robin"},
    "ordered": {"ordered": True},
    "ordered, passing": {"ordered": True, "on_retry": "pass"},
    "slots": {"concurrency": 1},
    "slots of keys": {"concurrency_per_key": 1, "on_retry": "hold"},
    "shared slots": {"limits": {"both": 1}},
    "rate": {"rate": "1/s burst 1"},
    "rate of keys": {"rate_per_key": "1/2s burst 1"},
    "turns": {"fair": True},
    "debounce": {"debounce": "2s"},
    "throttle": {"throttle": "2s"},
    "skips": {"singleton": "skip"},
    "refuses": {"singleton": "refuse"},
    "replaces": {"singleton": "replace"},
}
KEYS: Final = "aab"
"""Of the messages."""
PUBLISH: Final = ("plain", "own id", "due", "expires", "both", "priority", "once", "told")
VERB: Final = ("none", "move", "clear", "clear one", "configure", "close", "reprocess", "forget", "move back")
ANSWER: Final = ("ack", "nack", "retry", "release", "dead", "dead to", "invalid", "silence", "lost")
MOMENT: Final = (
    "at once",
    "opened before",
    "opened in flight",
    "opened after",
    "killed in flight",
    "time before",
    "time after",
)
AXES: Final = (tuple(QUEUE), PUBLISH, VERB, ANSWER, MOMENT)
PAIRS: Final = [
    (one, other, first, second)
    for one, other in combinations(range(len(AXES)), 2)
    for first, second in product(AXES[one], AXES[other])
]
_REPORTED: Final = ("expired", "cleared", "evicted", REPLACED)
_RETURNS: Final = ("nack", "retry", "release", "silence", "lost")
_BEGIN_AGAIN: Final = ("reprocess", "move", "move back")
"""Verbs that bring messages back in, whatever waits."""


def choice(number: int) -> tuple[str, ...]:
    """The values of a scene: one pair of values in turn, the others by chance."""
    chance = random.Random(number)
    values = [chance.choice(axis) for axis in AXES]
    one, other, first, second = PAIRS[number % len(PAIRS)]
    values[one], values[other] = first, second
    return tuple(values)


class Broken(AssertionError):
    """Something that must hold does not."""


class Start(NamedTuple):
    """A message went out of the queue."""

    time: int
    offset: int
    key: str


class Scene:
    """Plays one scene."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.queue, self.publish, self.verb, self.answer, self.moment = choice(number)
        self.options = QUEUE[self.queue]
        self.clock = ManualClock()
        self.place = Path(tempfile.mkdtemp(prefix="remuda-pairs-"))
        self.broker = self._open()
        self.ids: list[str] = []
        self.forgotten = 0
        self.due: dict[str, int] = {}
        self.expires: dict[str, int] = {}
        self.started: list[Start] = []

    def play(self) -> None:
        try:
            self._play()
        except AssertionError as error:
            told = ", ".join((self.queue, self.publish, self.verb, self.answer, self.moment))
            raise Broken(f"scene {self.number} ({told}): {error}") from error
        finally:
            self.broker.close()
            shutil.rmtree(self.place, ignore_errors=True)

    def _play(self) -> None:
        broker = self.broker
        broker.create_queue("q", {"type": "pull", "acknowledge_timeout": "5s", **self.options})
        shared = {"limits": self.options["limits"]} if "limits" in self.options else {}
        broker.create_queue("other", type="pull", acknowledge_timeout="5s", **shared)
        broker.create_queue("told", type="pull", patterns=["told"])
        for at in range(3):
            self._publish(at)
        self._check()
        if self.moment == "opened before":
            self._reopen()
        if self.moment == "time before":
            self._pass(7 * SECOND)
        self._operate(before=True)
        delivery = self._pull("q")
        self._check()
        if self.moment in ("opened in flight", "killed in flight"):
            self._reopen()
        elif delivery is not None:
            self._operate(before=False)
            self._answer(delivery)
        if self.moment == "opened after":
            self._reopen()
        if self.moment == "time after":
            self._pass(20 * SECOND)
        self._check()
        self._drain()

    # What is done

    def _open(self) -> EmbeddedBroker:
        kept = self.moment.startswith(("opened", "killed"))
        return open_at(self.place / "d" if kept else "memory://", self.clock)

    def _reopen(self) -> None:
        names = ("q", "other", "told")
        before = {name: self._numbers(name) for name in names}
        if self.moment == "killed in flight":
            copy = self.place / "copy"
            self.broker.runtime.sync()
            shutil.copytree(self.place / "d", copy, ignore=shutil.ignore_patterns("socket"))
            self.broker.close()
            shutil.rmtree(self.place / "d")
            copy.rename(self.place / "d")
        else:
            self.broker.close()
        self.broker = self._open()
        after = {name: self._numbers(name) for name in names}
        if (
            self.options.get("put_back") != "no"
            and self.queue != "delivery limit"
            and self.queue != "put-back in front"
        ):
            assert after == before, f"opened again it holds {after}, not {before}"
        self._check()

    def _numbers(self, name: str) -> tuple[int, ...]:
        info = self.broker.queue(name)
        return info.size, info.dead, info.invalid, info.not_interested

    def _publish(self, at: int) -> None:
        now, special = self.clock.now, at < 2
        due = now + 3 * SECOND if special and self.publish in ("due", "both") else None
        expires = now + 8 * SECOND if special and self.publish in ("expires", "both") else None
        own = f"own-{0 if self.publish == 'own id' else at}" if self.publish in ("own id", "once") and special else ""
        headers = {"remuda-failure-callback": "told"} if self.publish == "told" else {}
        message = Message(
            "q", b"12345" if at else b"1234", id=own, due=due, expires=expires, headers=headers, key=KEYS[at],
            priority=5 if self.publish == "priority" and special else 0,
        )  # fmt: skip
        once = "ever" if self.publish == "once" and special else None
        before = self.broker.queue("q").size
        try:
            known = self.broker.publish(message, queue="q", once=once).id
        except Refused:
            assert self.broker.queue("q").size == before, "a refusal changed the queue"
            assert self.options or self.publish == "once", "it was refused without a rule"
            return
        if once is not None:
            with_same = 0
            try:
                self.broker.publish(message, queue="q", once=once)
            except Refused:
                with_same = 1
            assert with_same, "a key was stored twice"
        if known not in self.ids:
            self.ids.append(known)
        if due is not None:
            self.due[known] = due
        if expires is not None:
            self.expires[known] = expires

    def _operate(self, *, before: bool) -> None:
        broker = self.broker
        if before != (self.number % 2 == 0):
            return
        match self.verb:
            case "move":
                broker.move("q", "other", who="me")
            case "move back":
                broker.move("q", "other")
                broker.move("other", "q")
            case "clear":
                broker.clear("q")
            case "clear one":
                broker.clear("q", offsets=[(0, 1)])
            case "configure":
                broker.configure_queue("q", unique_ids=True, byte_limit=100)
            case "close":
                broker.set_status("q", "paused")
                assert broker.pull("q") is None
                broker.set_status("q", "running")
            case "reprocess":
                broker.clear("q")
                broker.reprocess("q")
                self.due.clear()  # it begins again, now
                self.expires.clear()
            case "forget":
                broker.clear("q")
                self.forgotten += broker.forget("q", MessageFilter(reason="cleared"))
        self._check()

    def _pull(self, name: str) -> Delivery | None:
        flows = self.broker.queue(name).options.has_flow
        delivery = self.broker.pull(name, 3 if flows else 1)
        if delivery is not None:
            if name == "q":
                rows = zip(delivery.offsets, delivery, strict=True)
                self.started += [Start(self.clock.now, at, message.key or "") for at, message in rows]
            for message, arrival in zip(delivery, delivery.arrivals, strict=True):
                assert self.due.get(message.id, 0) <= self.clock.now, f"{message.id} came before its time"
                late = self.expires.get(message.id, 1 << 62) <= self.clock.now
                # What expired goes on without a deadline, to the queue for that.
                assert not late or (arrival or "").endswith(": expired"), f"{message.id} came after its deadline"
        return delivery

    def _answer(self, delivery: Delivery) -> None:
        match self.answer:
            case "ack":
                delivery.ack()
            case "nack":
                delivery.nack()
            case "retry":
                delivery.retry(after="2s", reason="again")
            case "release":
                delivery.release()
                views = [view for view in self.broker.message(delivery.offsets[0]).queues if view.queue == "q"]
                assert views[0].attempts == 0, "an attempt counts that does not"
            case "dead":
                delivery.dead(reason="given up")
            case "dead to":
                delivery.dead(reason="given up", to="other")
            case "invalid":
                delivery.invalid()
            case "silence":
                self._pass(6 * SECOND)
                assert delivery.ack() == 0, "an answer counts that came too late"
        self._check()

    def _pass(self, duration: int) -> None:
        """Time passes in small steps; whatever is due has happened when it has come."""
        for _ in range(duration // SECOND):
            self.clock.now += SECOND
            while self.broker.runtime.tick() <= self.clock.now:
                pass

    def _drain(self) -> None:
        for _ in range(40):
            for name in ("q", "other"):
                while (delivery := self._pull(name)) is not None:
                    self._check_flow()
                    delivery.ack()
            self._pass(SECOND)
        self._check_starts()
        for name in ("q", "other"):
            assert self.broker.queue(name).size == 0, f"{name} still holds something"
        self._check()
        self._check_reports()

    # What must hold

    def _documents(self) -> list[Document]:
        offsets = range(self.broker.runtime.engine.core.recorder.next_offset)
        return [self.broker.message(offset) for offset in offsets]

    def _check(self) -> None:
        documents = self._documents()
        for name in ("q", "other"):
            info = self.broker.queue(name)
            views = [view for one in documents for view in one.queues if view.queue == name and view.moved_to is None]
            live = [view for view in views if view.state in LIVE]
            parked = [view for view in views if view.state.value in "EIN" and view.reason != REPLACED]
            assert info.size == len(live), f"{name} holds {info.size}, by the documents {len(live)}"
            ended = info.dead + info.invalid + info.not_interested + (self.forgotten if name == "q" else 0)
            assert ended == len(parked), f"{name} keeps {ended} that failed, by the documents {len(parked)}"
            limit = info.options.message_limit
            assert not limit or info.size <= limit, f"{name} holds {info.size} of {limit}"
            if info.options.byte_limit:
                held = sum(
                    len(one.message.body)
                    for one in documents
                    for view in one.queues
                    if view.queue == name and view.state in LIVE
                )
                assert held <= info.options.byte_limit, f"{name} holds {held} bytes of {info.options.byte_limit}"
        for one in documents:
            places = [view.queue for view in one.queues if view.state in LIVE]
            assert len(places) <= 1, f"{one.message.id} is in {places}"
        self._check_flow(documents)

    def _check_flow(self, documents: list[Document] | None = None) -> None:
        """Limits are exact at any moment."""
        if not self.broker.queue("q").options.has_flow:
            return
        running: list[str] = []
        waiting: list[str] = []
        elsewhere = 0
        for one in self._documents() if documents is None else documents:
            for view in one.queues:
                if view.queue == "q" and view.state in LIVE:
                    (running if view.state is State.FETCHED else waiting).append(one.message.key or "")
                elsewhere += view.queue == "other" and view.state is State.FETCHED
        most = max(Counter(running).values(), default=0)
        match self.queue:
            case "ordered" | "ordered, passing" | "slots of keys":
                assert most <= 1, f"{running} run at once"
            case "slots" | "shared slots":
                assert len(running) + (elsewhere if self.queue == "shared slots" else 0) <= 1, f"{running} run at once"
            case "skips" | "refuses" if self.verb not in _BEGIN_AGAIN:
                assert len(set(running + waiting)) == len(running + waiting), f"{running} run and {waiting} wait"
            case "replaces" | "debounce" if self.verb not in _BEGIN_AGAIN and self.answer not in _RETURNS:
                assert self.moment.endswith("flight") or len(set(waiting)) == len(waiting), f"{waiting} wait"

    def _check_starts(self) -> None:
        """Nothing went out earlier, or in another order, than the rules say."""
        for earlier, later in pairwise(self.started):
            assert self.queue != "pause" or later.time - earlier.time >= SECOND, (
                "the pause between messages was cut short"
            )
            assert self.queue != "rate" or later.time - earlier.time >= SECOND, "the rate was exceeded"
        for key in set(KEYS):
            for earlier, later in pairwise([one for one in self.started if one.key == key]):
                paced = self.queue == "rate of keys"
                assert not paced or later.time - earlier.time >= 2 * SECOND, "the rate of a key was exceeded"
                holds = self.queue == "ordered" and self.verb not in _BEGIN_AGAIN
                assert not holds or self.publish in ("due", "both") or later.offset >= earlier.offset, "out of order"

    def _check_reports(self) -> None:
        """Each end that no consumer answered for is told once."""
        told: list[str] = []
        while (delivery := self.broker.pull("told", 10)) is not None:
            told += [message.headers["cap-corr-id"] for message in delivery]
            delivery.ack()
        if self.publish != "told" or self.verb in ("reprocess", "move back"):
            return
        ended = sorted(
            one.message.id
            for one in self._documents()
            for view in one.queues
            if view.queue in ("q", "other") and view.moved_to is None and (view.reason or "") in _REPORTED
            if view.state.value == "E"
        )
        skipped = [one.message.id for one in self._documents() if one.message.name == "q" and not one.queues]
        ended = sorted(ended + skipped)
        answered = self.answer in ("nack", "retry", "silence", "lost") or self.moment.endswith("in flight")
        assert sorted(told) == ended or (answered and set(ended) <= set(told)), f"told {told}, ended {ended}"


def play(numbers: range, note: Callable[[int], None] = lambda number: None) -> None:
    for number in numbers:
        Scene(number).play()
        note(number)
