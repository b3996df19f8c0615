"""B22: a verb does the same by whichever face it is asked for: what becomes of each message, its due time and attempts,
its history, and who did it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from remuda import Bus, Message
from remuda.broker.port import Broker
from remuda.model.operations.filters import MessageFilter
from remuda.server.http.security.users import Role, User
from remuda.server.wire import serve_wire
from tests.cli.kit import runner
from tests.server.site import Site, serving

HOUR = 3_600_000_000
KINDS = ("waiting", "delayed", "put back", "retried", "dead", "invalid", "held")
FACES = ("coroutines", "guest", "remuda", "http", "page", "cli")


class Case(msgspec.Struct, frozen=True):
    verb: str
    values: dict[str, Any] = {}
    chosen: dict[str, Any] = {}


CASES = (
    Case("move", {"to": "second"}),
    Case("move", {"to": "second"}, {"reason": "no address"}),
    Case("move", {"to": "second"}, {"reason": "no stock"}),
    Case("clear"),
    Case("reprocess"),
    Case("reprocess", {}, {"reason": "no stock"}),
    Case("requeue_front"),
    Case("requeue_front", {}, {"reason": "no address"}),
    Case("forget"),
    Case("forget", {}, {"reason": "no address"}),
    Case("pause", {"refuse": True}),
    Case("resume"),
    Case("pause_key", {"key": "7"}),
    Case("resume_key", {"key": "7"}),
    Case("cancel"),
)
PRESSED = [
    case for case in CASES if case.verb not in ("cancel", "pause_key", "resume_key") and "no stock" not in str(case)
]
"""What a queue's page has buttons for: its list of dead letters shows none that wait for a retry."""
cases = pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join([case.verb, *case.chosen.values()]))


class Scene:
    """A directory with one message of each kind in one queue, and every way to ask for a verb."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = str(folder)
        self.bus = stack.enter_context(Bus(folder))
        self.stack = stack
        self.broker: Broker = self.bus.broker
        for name in ("orders", "second"):
            self.broker.create_queue(name, type="pull", acknowledge_timeout="1h", concurrency_per_key=5)
        for kind in KINDS:
            self._make(kind)

    def _make(self, kind: str) -> None:
        due = self.broker.message("waiting").created + HOUR if kind == "delayed" else None
        if kind == "waiting":  # last in its line, so that the others can be pulled
            self.broker.publish(_message(kind, None, priority=0))
            return
        self.broker.publish(_message(kind, due, priority=3))
        if kind == "delayed":
            return
        delivery = self.broker.pull("orders", consumer="anna")
        assert delivery is not None
        assert delivery[0].id == kind
        match kind:
            case "retried":
                delivery.retry(after="1h", reason="no stock")
            case "dead":
                delivery.dead(reason="no address")
            case "invalid":
                delivery.invalid(reason="no address either")
            case "put back":
                delivery.nack(reason="busy")
                self.put_back = self.broker.pull("orders", consumer="ben")
                assert self.put_back is not None
            case "held":
                assert self.put_back is not None
                self.put_back.nack(reason="busy")

    def do(self, face: str, case: Case) -> None:
        name, values, chosen = case.verb, case.values, case.chosen
        getattr(self, face)(name, {**values}, MessageFilter(**chosen) if chosen else None, chosen)

    def threads(self, name: str, values: dict[str, Any], chosen: MessageFilter | None, _: Any) -> None:
        self._by(self.bus, name, values, chosen)

    def coroutines(self, name: str, values: dict[str, Any], chosen: MessageFilter | None, _: Any) -> None:
        if name == "cancel":
            asyncio.run(asyncio.to_thread(self.bus.cancel, "waiting", who="eve"))
        else:
            more = {} if chosen is None else {"chosen": chosen}
            asyncio.run(getattr(self.broker.aio, name)("orders", **values, **more, who="eve"))

    def guest(self, name: str, values: dict[str, Any], chosen: MessageFilter | None, _: Any) -> None:
        with Bus(self.folder) as other:
            assert other.broker.runtime.remote  # type: ignore[attr-defined]
            self._by(other, name, values, chosen)

    def remuda(self, name: str, values: dict[str, Any], chosen: MessageFilter | None, _: Any) -> None:
        with serve_wire(self.broker, ("127.0.0.1", 0)) as server, Bus(server.url) as other:
            self._by(other, name, values, chosen)

    @staticmethod
    def _by(bus: Bus, name: str, values: dict[str, Any], chosen: MessageFilter | None) -> None:
        if name == "cancel":
            bus.cancel("waiting", who="eve")
        else:
            getattr(bus.broker, name)("orders", **values, **({} if chosen is None else {"chosen": chosen}), who="eve")

    def http(self, name: str, values: dict[str, Any], _: Any, chosen: dict[str, Any]) -> None:
        body = {**values, **chosen}
        path = "messages/waiting" if name == "cancel" else "queues/orders"
        answer = self._site().client.post(f"/api/v1/{path}/{name.replace('_', '-')}", json=body or None)
        assert answer.status_code == 200, answer.text

    def page(self, name: str, values: dict[str, Any], _: Any, chosen: dict[str, Any]) -> None:
        client = self._site().client
        token = re.search(r'name="csrf" value="([^"]+)"', client.get("/queues/orders").text)
        assert token is not None
        every = {"scope": "match", **chosen} if chosen else {"waiting": "yes"}
        form = {"csrf": token[1], "action": name, "confirm": "orders", **every, **values}
        answer = client.post("/queues/orders", data=form, follow_redirects=True)
        assert answer.status_code == 200, answer.text

    def cli(self, name: str, values: dict[str, Any], _: Any, chosen: dict[str, Any]) -> None:
        words = [] if name == "cancel" else [str(value) for value in values.values() if value is not True]
        flags = [f"--{option}" for option, value in values.items() if value is True]
        flags += [word for option, value in chosen.items() for word in (f"--{option}", value)]
        yes = ["--yes"] if name in ("clear", "forget") else []
        target = "waiting" if name == "cancel" else "orders"
        self.command(name.replace("_", "-"), self.folder, target, *words, *flags, *yes, "--who", "eve")

    command: Callable[..., Any]

    def _site(self) -> Site:
        return self.stack.enter_context(serving(self.bus, identify=lambda request: User("eve", Role.OPERATOR)))

    def told(self) -> dict[str, Any]:
        """All there is to know of the messages and the queues, without times and ids that no two runs share."""
        found: dict[str, Any] = {}
        for kind in KINDS:
            document = self.broker.message(kind)
            message = document.message
            found[kind] = [
                (message.headers, message.priority, message.key, message.due and message.due > HOUR),
                [
                    (view.queue, view.state.value, view.attempts, view.reason, view.moved_to, view.consumed is None,
                     view.processed is None, [one.consumer for one in view.consumed_by])
                    for view in document.queues
                ],
                [
                    (event.queue, event.state.value, event.attempt, event.reason, event.to, event.who,
                     event.due is None, event.consumer)
                    for event in self._events(document.offset)
                ],
            ]  # fmt: skip
        for info in self.broker.queues():
            if info.name in ("orders", "second"):
                numbers = (info.waiting, info.delayed, info.in_flight, info.dead, info.invalid)
                changes = [(one.action, one.who) for one in self.broker.spectate().log.changes(info.name)]
                found[info.name] = (info.status, *numbers, changes)
        return found

    def _events(self, offset: int) -> Iterator[Any]:
        for record in self.broker.spectate().events():
            for event in record.rows:
                if event.first <= offset < event.first + event.count:
                    yield event


def _message(kind: str, due: int | None, **fields: Any) -> Message:
    return Message("orders", kind.encode(), id=kind, key="7", headers={"tenant": "acme"}, due=due, **fields)


@pytest.fixture
def make(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[[str], Scene]]:
    with ExitStack() as stack:

        def made(name: str) -> Scene:
            scene = Scene(tmp_path / name, stack)
            scene.command = runner(capsys)
            return scene

        yield made


def prepare(scene: Scene, case: Case) -> None:
    """What can be resumed was paused."""
    if case.verb == "resume":
        scene.broker.pause("orders", who="ann")
    elif case.verb == "resume_key":
        scene.broker.pause_key("orders", "7", who="ann")


@cases
def test_b22_a_verb_does_the_same_by_every_face(
    case: Case, make: Callable[[str], Scene], request: pytest.FixtureRequest
) -> None:
    """Each verb by two faces, and each face with several verbs; with --all each by each."""
    at = CASES.index(case)
    faces = [face for face in FACES if face != "page" or case in PRESSED]
    if not request.config.getoption("all"):
        faces = [faces[at % len(faces)], faces[(at + 3) % len(faces)]]
    first = make("threads")
    prepare(first, case)
    before = first.told()
    first.do("threads", case)
    expected = first.told()
    assert expected != before, "it did something"
    assert "eve" in str(expected), "and says who did"
    for face in faces:
        scene = make(face)
        prepare(scene, case)
        assert scene.told() == before
        scene.do(face, case)
        assert scene.told() == expected, face
