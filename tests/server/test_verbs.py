"""B22: a verb is declared once, and is then a method of both ports, a command, an operation and a frame."""

from __future__ import annotations

import asyncio
import inspect
import re
from typing import Any

import pytest

from remuda.broker.opening import open_broker
from remuda.broker.port import AsyncBroker, Broker
from remuda.broker.shared.wire import wire_frames
from remuda.broker.shared.wire.command_checks import checked
from remuda.broker.shared.wire.permissions import Grants, Permissions
from remuda.cli.app import app
from remuda.model.errors import InvalidOption, NotAllowed
from remuda.model.message import Message
from remuda.model.operations import verbs as declared
from remuda.model.operations.commands import ON_THE_WIRE, EndUnreadable, Reclaim, SetCredit, SkipSpooled, needs_of
from remuda.model.operations.filters import MessageFilter
from remuda.model.operations.verbs import VERBS, Verb
from remuda.model.records import SpoolTaken
from tests.server.site import Site

verbs = pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)


def _values(verb: Verb) -> dict[str, str]:
    """Values for what the verb cannot do without."""
    return {one.name: "other" for one in verb.parameters if one.required and one.type is str}


def _sample(verb: Verb) -> Any:
    """A command as the verb makes it."""
    return getattr(declared, verb.name)("q", **_values(verb), who="ann")


@verbs
def test_b22_it_is_a_method_for_threads_and_for_coroutines(verb: Verb) -> None:
    for port in (Broker, AsyncBroker):
        method = getattr(port, verb.name)
        assert inspect.iscoroutinefunction(method) is (port is AsyncBroker)
        assert inspect.cleandoc(method.__doc__) == verb.help
    threads, coroutines = (inspect.signature(getattr(port, verb.name)) for port in (Broker, AsyncBroker))
    assert threads == coroutines
    assert "who" in threads.parameters


@verbs
def test_b22_it_goes_over_the_wire_checked_and_allowed(verb: Verb) -> None:
    command = _sample(verb)
    there = wire_frames.decode(wire_frames.Commanded, wire_frames.command_frame(1, command)[wire_frames.HEAD.size :])
    assert checked(wire_frames.command_of(there)) == command
    with pytest.raises(NotAllowed, match="'nil'"):
        Permissions(Grants("nil")).check_command(command)
    assert needs_of(type(command))


@verbs
def test_b22_it_is_a_command_and_an_operation_with_the_same_parameters(verb: Verb, site: Site) -> None:
    name = verb.name.replace("_", "-")
    commands = {one.name or getattr(one.callback, "__name__", ""): one.callback for one in app.registered_commands}
    callback = commands[name]
    assert callback is not None
    options = set(inspect.signature(callback).parameters)
    document = site.client.get("/api/v1/openapi.json").json()
    operation = document["paths"][f"/api/v1/queues/{{name}}/{name}"]["post"]
    assert operation["operationId"] == verb.name
    assert operation["summary"] == " ".join(verb.help.split())
    assert (callback.__doc__, {"directory", "queue", "who", "as_json"} - options) == (verb.help, set())
    fields: set[str] = set()
    if "requestBody" in operation:
        reference = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
        fields = set(document["components"]["schemas"][reference]["properties"])
    for one in verb.parameters:
        if one.type is MessageFilter:
            assert {"states", "reason", "since", "until", "offsets", "group"} <= fields
            assert {"state", "reason", "since", "until"} <= options
        else:
            assert one.name in options
            assert one.name in fields or "".join(part.title() for part in one.name.split("_")) in {
                field[:1].upper() + field[1:] for field in fields
            }


@verbs
def test_b22_who_did_it_is_recorded_whatever_the_face(verb: Verb) -> None:
    """Everything that a verb records of a queue carries who asked."""
    with open_broker("memory://") as broker:
        broker.create_queue("q", type="pull", fair=True)
        broker.create_queue("other", type="pull")
        broker.set_status("q", "only-publish" if verb.name == "resume" else "running")
        broker.publish([Message("q", b"1"), Message("q", b"2")])
        if verb.name != "resume":
            broker.publish([Message("q", b"3"), Message("q", b"4"), Message("q", b"5")])
            delivery = broker.pull("q", 2)
            assert delivery is not None
            delivery.dead(reason="no stock")
        if verb.name == "resume_key":
            broker.pause_key("q", "other", who="bob")
        before = _recorded(broker)
        asyncio.run(getattr(broker.aio, verb.name)("q", **_values(verb), who="ann"))
        fresh = _recorded(broker)[len(before) :]
        assert fresh
        assert {who for _, who in fresh} == {"ann"}


def _recorded(broker: Broker) -> list[tuple[Any, str | None]]:
    """Events and changes of queues, as the log has them, with who is behind them."""
    log = broker.spectate()
    events = [(event, event.who) for record in log.events() for event in record.rows]
    return [*events, *((change, change.who) for change in log.log.changes("q"))]


@pytest.mark.parametrize(
    "command", [SkipSpooled(SpoolTaken("a", 1, 1, 1)), Reclaim("q", 1, "c", []), EndUnreadable("q", ())]
)
def test_b22_a_command_that_is_not_for_the_wire_is_refused(command: Any) -> None:
    assert type(command) not in ON_THE_WIRE
    with pytest.raises(InvalidOption, match="no command for the wire; nothing was changed"):
        checked(command)
    with pytest.raises(NotAllowed, match="over the wire is refused"):
        Permissions(Grants("ann", ".*", ".*", ".*")).check_command(command)


def test_s6_credit_from_another_machine_is_checked() -> None:
    with pytest.raises(InvalidOption, match="credit must be a whole number, 1 or more, not 0"):
        checked(SetCredit("q", "c", 0))


def test_u1_an_unknown_button_does_nothing(site: Site) -> None:
    site.publish("order.placed", 1)
    token = re.search(r'name="csrf" value="([^"]+)"', site.client.get("/queues/orders").text)
    assert token is not None
    for action in ("", "move-waiting", "explode"):
        told = site.client.post("/queues/orders", data={"csrf": token[1], "action": action, "to": "elsewhere"})
        assert (told.status_code, "nothing was done" in told.text) == (400, True)
    assert site.queue("orders")["waiting"] == 1
