"""Short scenes in which every two of (handler option, publish option, answer, operator's verb, moment) meet at the bus.

A scene follows from its number alone, and is played at any of the bus's places: under test with a clock that is moved,
in memory, in a directory, in a directory whose host is killed, and on RabbitMQ, where what it cannot do is refused by
name. What must hold is asked through the public API: see `Account`.
"""

from __future__ import annotations

import random
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import Future
from itertools import combinations, product
from typing import Any, Final

from remuda import Bus, Context, Message, NotInterested, NotNow, Reject, Response, Retry
from remuda.model.errors import NotFound, Refused, Unsupported
from remuda.outbox import Outbox
from tests.pairs.account import Account, Broken, Call
from tests.pairs.places import Place

HANDLER: Final[dict[str, dict[str, Any]]] = {
    "plain": {},
    "coroutine": {},
    "list": {"batch": 10},
    "never retries": {"retry": "never"},
    "failover": {"retry": "never", "failover": "second"},
    "keeps results": {"keep_result": True},
    "unique": {"unique": True},
    "limit": {"message_limit": 2},
    "evicts": {"message_limit": 2, "limit_exceeded": "delete-oldest"},
    "bytes": {"byte_limit": 20},
    "timeout": {"message_timeout": 12},
    "expired": {"message_timeout": 6, "expired_queue": "second"},
    "pause": {"delay_between_messages": 1},
    "no put-back": {"put_back": "no"},
    "delivery limit": {"delivery_limit": 1},
    "dead letters": {"retry": "never", "dead_letter_queue": "second"},
    "memory": {"persistence": "memory"},
    "two threads": {"threads": 2},
    "ordered": {"ordered": True, "threads": 2},
    "slots": {"concurrency": 1, "threads": 2},
    "rate": {"rate": 1},
    "turns": {"fair": True},
    "debounce": {"debounce": 2},
    "throttle": {"throttle": 3},
    "skips": {"singleton": "skip"},
    "refuses": {"singleton": "refuse"},
}
KEYS: Final = "aabb"
"""Of the messages."""
"""Numbers of the options that take durations are moments of the place."""
PUBLISH: Final = (
    "plain", "own id", "delay", "expires", "both", "priority", "unique", "idempotency key", "callback",
    "failure callback", "keep result", "call", "many", "topics", "transaction",
)  # fmt: skip
ANSWER: Final = (
    "return", "raise once", "raise", "retry", "not now", "reject", "not interested", "rewrite", "remove", "publish",
)  # fmt: skip
VERB: Final = ("none", "cancel", "clear", "reprocess", "forget", "pause", "move", "configure")
MOMENT: Final = (
    "before", "during", "after", "killed during", "opened before", "opened between", "opened after",
)  # fmt: skip
AXES: Final = (tuple(HANDLER), PUBLISH, ANSWER, VERB, MOMENT)
PAIRS: Final = [
    (one, other, first, second)
    for one, other in combinations(range(len(AXES)), 2)
    for first, second in product(AXES[one], AXES[other])
]
_EXPIRES: Final = ("expires", "both", "own id")
_ENDED_BY_RABBITMQ: Final = ("evicts", "timeout", "expired")
_DURATIONS: Final = ("message_timeout", "delay_between_messages", "debounce", "throttle")


def choice(number: int) -> tuple[str, ...]:
    """The values of a scene: one pair of values in turn, the others by chance."""
    chance = random.Random(number)
    values = [chance.choice(axis) for axis in AXES]
    one, other, first, second = PAIRS[number % len(PAIRS)]
    values[one], values[other] = first, second
    return tuple(values)


class Scene:
    """Plays one scene at a place."""

    def __init__(self, number: int, place: Place) -> None:
        self.number = number
        self.place = place
        self.handler, self.publish, self.answer, self.verb, self.moment = choice(number)
        self.calls: list[Call] = []
        self.published: dict[int, str] = {}
        self.due: dict[int, int] = {}
        self.expires: dict[int, int] = {}
        self.waiting: dict[int, Future[Any]] = {}
        self.answers: list[tuple[str, int]] = []
        self.failures: list[str] = []
        self.children: list[int] = []
        self.operated = False
        self.offered = True
        self.forgotten = 0
        self.refused = False
        self.keys = KEYS
        self._tried: dict[int, int] = {}
        self._guard = threading.Lock()

    def play(self) -> bool:
        """Whether the place offers what the scene is about."""
        try:
            with self.place:
                self.place.open(self._bus)
                self._play()
            return True
        except Unsupported:
            return False
        except AssertionError as error:
            told = ", ".join((self.handler, self.publish, self.answer, self.verb, self.moment))
            raise Broken(f"scene {self.number} at {self.place.name} ({told}): {error}") from error

    def _play(self) -> None:
        if self.moment == "killed during" and not self.place.hosted:
            raise Unsupported(self.place.name, "kill")
        if self.handler == "memory" and self.place.hosted:
            raise Unsupported("a queue in memory is lost with its host")
        if not self.place.has_offsets and (self.publish in _EXPIRES or self.handler in _ENDED_BY_RABBITMQ):
            raise Unsupported("what RabbitMQ ends by itself is not in the log, and there an id names one message")
        for at in range(4):
            self._publish(at)
        if self.moment == "opened before":
            self.place.reopen()
        if self.moment in ("before", "opened before"):
            self._operate()
        self.place.run()
        if self.moment == "opened between":
            self.place.reopen()
        self.place.pass_time(3)
        if self.moment in ("after", "opened between"):
            self._operate()
        self.place.pass_time(30)
        if self.moment in ("during", "killed during", "opened after") and not self.operated:
            self._operate()  # no handler was called
            self.place.pass_time(30)
        if not self.offered:
            raise Unsupported(f"{self.place.name} does not offer {self.verb}")
        before = self.place.agrees(lambda: Account(self).check())
        if self.moment == "opened after":
            self.place.reopen()
            again = self.place.agrees(lambda: Account(self).check())
            if self.handler != "memory":
                assert again == before, f"opened again it says {again}, not {before}"

    # The application

    def _bus(self) -> Bus:
        bus = self.place.make()
        options = dict(HANDLER[self.handler])
        for name in _DURATIONS:
            if name in options:
                options[name] = self.place.duration(options[name])
        if "rate" in options:
            options["rate"] = f"1/{self.place.duration(options['rate'])} burst 1"
        options.setdefault("retry", [self.place.duration(2)] * 2)
        if self.handler == "list":
            bus.subscribe("x", queue="q", **options)(self._handle_list)
        elif self.handler == "coroutine":
            bus.subscribe("x", queue="q", **options)(self._handle_async)
        else:
            bus.subscribe("x", queue="q", **options)(self._handle)
        bus.subscribe("y", "x.other", queue="second", retry="never")(self._second)
        bus.subscribe("answer", "rewritten", queue="answers")(self._answered)
        bus.subscribe("failed", queue="failures")(self._failed)
        bus.subscribe("child", queue="children")(lambda body: self.children.append(body))
        if self.publish == "transaction":
            outbox = Outbox(bus, f"sqlite:///{self.place.folder / 'shop.db'}")
            outbox.create_tables()
        return bus

    def _handle(self, body: int, context: Context, response: Response) -> int:
        return self._begin(body, "q", context, response)

    async def _handle_async(self, body: int, context: Context, response: Response) -> int:
        return self._begin(body, "q", context, response)

    def _handle_list(self, bodies: list[int], context: Context, response: Response) -> list[int]:
        return [self._begin(body, "q", context, response, len(bodies)) for body in bodies]

    def _second(self, body: int, context: Context) -> int:
        with self._guard:
            self.calls.append(Call(body, "second", self.place.now(), "return", 1))
        return body

    def _answered(self, body: Any, message: Message) -> None:
        with self._guard:
            self.answers.append((message.headers["cap-corr-id"], body))

    def _failed(self, message: Message) -> None:
        with self._guard:
            self.failures.append(message.headers["cap-corr-id"])

    def _begin(self, body: int, queue: str, context: Context, response: Response, among: int = 1) -> int:
        with self._guard:
            times = self._tried[body] = self._tried.get(body, 0) + 1
            first = self.moment in ("during", "killed during") and not self.operated
            self.operated |= first
        if first:
            if self.moment == "killed during":
                self.place.kill()
            self._operate()
        answer = self.answer
        special = body < 3
        if not special or (times > 1 and answer in ("raise once", "retry", "not now")):
            answer = "return"
        with self._guard:
            self.calls.append(Call(body, queue, self.place.now(), answer, among))
        match answer:
            case "raise" | "raise once":
                raise ValueError("no")
            case "retry":
                raise Retry("later", after=self.place.duration(1))
            case "not now":
                raise NotNow("later", after=self.place.duration(1))
            case "reject":
                raise Reject("bad")
            case "not interested":
                raise NotInterested("no")
            case "rewrite":
                response.rewrite("rewritten")
            case "remove":
                response.remove()
            case "publish":
                self.place.bus.publish("child", body)
        return body

    # What is done

    def _publish(self, at: int) -> None:
        """The first three messages have the option; the fourth is plain."""
        bus, place = self.place.bus, self.place
        options: dict[str, Any] = {"key": KEYS[at]}
        now = place.now()
        special = at < 3
        kind = self.publish if special else "plain"
        if kind in ("delay", "both"):
            options["delay"] = place.duration(2)
        if kind in ("expires", "both"):
            options["expires"] = place.duration(5)
        match kind:
            case "own id":
                options["id"] = f"{place.tag}own-{at // 2}"
            case "priority":
                options["priority"] = 3 + at
            case "unique":
                options["unique"] = f"{place.tag}one-{at // 2}"
            case "idempotency key":
                options["idempotency_key"] = f"{place.tag}one-{at // 2}"
            case "callback":
                options["callback"] = "answer"
            case "failure callback":
                options["failure_callback"] = "failed"
            case "keep result":
                options["keep_result"] = True
            case "topics":
                options["topics"] = ["x", "y"]
        try:
            if kind == "call":
                place.call(at, self.waiting, KEYS[at])
                return
            if kind == "many":
                known = bus.publish_many("x", [at], **options)[0]
            elif kind == "transaction":
                db = sqlite3.connect(place.folder / "shop.db")
                with bus.transaction(db):
                    known = bus.publish("x", at, **options)
                db.close()
            else:
                known = bus.publish("x", at, **options)
        except Refused:
            self.refused = True
            return
        self.published[at] = known
        if "delay" in options:
            self.due[at] = now + place.units(2)
        if "expires" in options:
            self.expires[at] = place.now() + place.units(5)

    def _operate(self) -> None:
        self.operated = True
        try:
            self._carry_out()
        except Unsupported:
            self.offered = False

    def _carry_out(self) -> None:
        bus = self.place.bus
        match self.verb:
            case "cancel":
                for known in list(self.published.values()):
                    try:
                        bus.cancel(known)
                    except NotFound:  # its row is not sent yet
                        assert self.publish == "transaction", "a message that was stored is not found"
            case "clear":
                bus.clear("q")
            case "reprocess":
                bus.clear("q")
                bus.reprocess("q")
            case "forget":
                bus.clear("q")
                self.forgotten += bus.forget("q", reason="cleared")
            case "pause":
                bus.broker.set_status("q", "paused")
                self.place.unpause()
            case "move":
                bus.broker.move("q", "second")
            case "configure":
                bus.broker.configure_queue("q", message_limit=1)


def play(numbers: range, place: Callable[[], Place], note: Callable[[int], None] = lambda number: None) -> int:
    """Play scenes; returns how many the place offered."""
    offered = 0
    for number in numbers:
        offered += Scene(number, place()).play()
        note(number)
    return offered
