"""Permissions on the wire (S6): configure, write and read per name, as the AMQP server grants them."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from remuda import Binding, Bus, Message, MessageFilter, open_broker
from remuda.broker.shared.wire import wire_frames
from remuda.broker.shared.wire.permissions import Grants, Permissions
from remuda.broker.threads import EmbeddedBroker as Broker
from remuda.model.errors import InvalidOption, NotAllowed
from remuda.model.operations import commands
from remuda.model.queues.routing import ALTERNATE
from remuda.model.settlement import Outcome, Settlement
from remuda.server.users import EVERYTHING, Users, add_user
from remuda.server.wire import WireServer, serve_wire
from tests.conformance.kit import eventually
from tests.server.site import dashboard_users

PASSWORD = "correct horse"
FAR = "vhost:evening/mail"
EVE = {"configure": "^eve", "write": "^(eve|orders$|vhost:)", "read": "^(eve|vhost:)"}


@pytest.fixture(scope="module")
def users(tmp_path_factory: pytest.TempPathFactory) -> Users:
    file = tmp_path_factory.mktemp("users") / "users.toml"
    add_user(file, "ann", PASSWORD, {"/": EVERYTHING, "evening": EVERYTHING})
    add_user(file, "eve", PASSWORD, {"/": EVE})
    add_user(file, "bob", PASSWORD, {"evening": EVERYTHING})
    own = "^(eve|remuda[.-])"
    add_user(file, "bus", PASSWORD, {"/": {"configure": own, "write": own, "read": own}})
    add_user(file, "nil", PASSWORD, {"/": {}})
    return Users.load(file)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with open_broker("memory://") as broker:
        broker.create_queue("orders", type="pull")
        broker.create_queue("bills", type="pull")
        broker.create_queue("eve.in", type="pull", topics=["eve"])
        broker.create_queue(FAR, type="pull")
        broker.create_router("post", "distribute", [Binding(queue="bills")])
        broker.publish(Message("bills", b"secret", id="bill"))
        broker.publish(Message("eve.in", b"hers", id="hers"), queue="eve.in")
        yield broker


@pytest.fixture(scope="module")
def server(broker: Broker, users: Users) -> Iterator[WireServer]:
    with serve_wire(broker, ("127.0.0.1", 0), users=users) as serving:
        yield serving


def url_of(server: WireServer, name: str) -> str:
    return f"remuda://{name}:correct%20horse@{server.url.removeprefix('remuda://')}"


@pytest.fixture(scope="module")
def eve(server: WireServer) -> Iterator[Broker]:
    with open_broker(url_of(server, "eve")) as client:
        yield client


REFUSED: list[tuple[str, Callable[[Broker], object]]] = [
    ("write access to topic 'bills'", lambda eve: eve.publish(Message("bills", b"x"))),
    ("write access to topic 'bills'", lambda eve: eve.publish([Message("eve.a", b"x"), Message("bills", b"x")])),
    ("write access to topic 'bills'", lambda eve: eve.publish(Message("eve", b"x", topics=("eve", "bills")))),
    ("write access to queue 'bills'", lambda eve: eve.publish(Message("eve", b"x"), queue="bills")),
    ("write access to queue 'bills'", lambda eve: eve.publish(Message("eve", b"x"), unbound="bills")),
    ("configure access to queue 'orders'", lambda eve: eve.publish(Message("orders", b"x"), options={"type": "pull"})),
    ("write access to router 'post'", lambda eve: eve.route("post", Message("eve", b"x"))),
    ("read access to queue 'bills'", lambda eve: eve.pull("bills")),
    ("read access to queue 'orders'", lambda eve: eve.pull("orders")),
    ("read access to queue 'bills'", lambda eve: eve.subscribe("bills")),
    ("read access to topic 'bills'", lambda eve: eve.channel("eve.spy", ["bills"])),
    ("read access to topic '#'", lambda eve: eve.create_queue("eve.spy", patterns=["#"])),
    ("write access to queue 'bills'", lambda eve: eve.create_queue("eve.spy", dead_letter_queue="bills")),
    ("write access to queue 'bills'", lambda eve: eve.configure_queue("eve.in", expired_queue="bills")),
    ("configure access to queue 'orders'", lambda eve: eve.create_queue("orders")),
    ("configure access to queue 'bills'", lambda eve: eve.configure_queue("bills", message_limit=1)),
    ("configure access to queue 'bills'", lambda eve: eve.set_status("bills", "paused")),
    ("configure access to queue 'bills'", lambda eve: eve.remove_queue("bills")),
    ("configure access to queue 'bills'", lambda eve: eve.clear("bills")),
    ("configure access to queue 'bills'", lambda eve: eve.reprocess("bills")),
    ("configure access to queue 'bills'", lambda eve: eve.forget("bills")),
    ("configure access to queue 'bills'", lambda eve: eve.move("bills", "eve.in")),
    ("write access to queue 'bills'", lambda eve: eve.move("eve.in", "bills")),
    ("configure access to router 'post'", lambda eve: eve.create_router("post", "distribute")),
    ("write access to queue 'bills'", lambda eve: eve.create_router("eve.r", "fanout", [Binding(queue="bills")])),
    ("read access to router 'post'", lambda eve: eve.bind("post", Binding(queue="eve.in"))),
    ("read access to router 'post'", lambda eve: eve.unbind("post", Binding(queue="bills"))),
    ("configure access to router 'post'", lambda eve: eve.remove_router("post")),
    ("any access to queue 'bills'", lambda eve: eve.queue("bills")),
    ("read access to queue 'bills'", lambda eve: eve.parked("bills", MessageFilter())),
    ("read access to queue 'bills'", lambda eve: eve.waiting("bills")),
    ("read access to every queue of message 'bill'", lambda eve: eve.message("bill")),
    ("reading the log", lambda eve: list(eve.spectate().messages())),
    ("collect", lambda eve: eve.collect()),
    ("checkpoint", lambda eve: eve.checkpoint()),
    # Names of another vhost are not hers, whatever the pattern says.
    ("read access to queue 'vhost:evening/mail'", lambda eve: eve.pull("vhost:evening/mail")),
    (
        "write access to queue 'vhost:evening/mail'",
        lambda eve: eve.publish(Message("eve", b"x"), queue="vhost:evening/mail"),
    ),
]


@pytest.mark.parametrize(("what", "work"), REFUSED)
def test_s6_what_is_not_granted_is_refused_and_nothing_happens(
    broker: Broker, eve: Broker, what: str, work: Callable[[Broker], object]
) -> None:
    before = {info.name: info for info in broker.queues()}, broker.routers()
    with pytest.raises(NotAllowed) as refused:
        work(eve)
    assert what in str(refused.value)
    assert "is refused for user 'eve'; nothing was changed" in str(refused.value)
    assert ({info.name: info for info in broker.queues()}, broker.routers()) == before


def test_s6_what_is_granted_works_and_the_rest_is_not_seen(broker: Broker, eve: Broker) -> None:
    heard: list[str] = []
    eve.on_notice(lambda notice: heard.append(notice.queue))
    eve.create_queue("eve.work", type="pull", dead_letter_queue="eve.dead")
    eve.publish(Message("bills", b"1"), queue="eve.work")
    broker.publish(Message("bills", b"more"))
    delivery = eve.pull("eve.work")
    assert delivery is not None
    with pytest.raises(NotAllowed, match="write access to queue 'bills'"):
        delivery.answer(Settlement(Outcome.DEAD, to="bills"))
    assert delivery.ack() == 1
    assert eve.publish(Message("orders", b"2")).accepted == 1
    assert {info.name for info in eve.queues()} == {"orders", "eve.in", "eve.work"}
    assert eve.routers() == {}
    eve.create_router("eve.router", "fanout", [Binding(queue="eve.work")])
    assert list(eve.routers()) == ["eve.router"]
    assert eve.message("hers").queues[0].queue == "eve.in"
    assert eve.health().ready
    eve.set_status("eve.work", "paused")
    eve.remove_queue("eve.work")
    eventually(lambda: heard.count("eve.work") >= 3)
    assert set(heard) == {"eve.work", "orders"}


def test_s6_a_bus_of_a_restricted_user(server: WireServer) -> None:
    seen: list[int] = []
    with Bus(url_of(server, "bus")) as bus:

        @bus.subscribe("eve.placed", queue="eve.ship")
        def ship(order: int) -> None:
            seen.append(order)

        bus.publish("eve.placed", 7)
        bus.run(until_idle=True, timeout="100s")
        with pytest.raises(NotAllowed, match=r"write access to topic 'order\.placed'"):
            bus.publish("order.placed", 7)
    assert seen == [7]
    with Bus(url_of(server, "eve")) as bus, pytest.raises(NotAllowed, match=r"configure access to queue 'remuda\."):
        bus.publish("eve.placed", 7)


def test_s6_who_may_not_enter_is_told(server: WireServer) -> None:
    with pytest.raises(NotAllowed, match="user 'bob' may not enter the vhost '/'"):
        open_broker(url_of(server, "bob"))
    with open_broker(url_of(server, "nil")) as nothing:
        assert nothing.queues() == []
        with pytest.raises(NotAllowed, match="write access to topic 'a'"):
            nothing.publish(Message("a", b"x"))
    with open_broker(url_of(server, "ann")) as everything:
        assert "bills" in {info.name for info in everything.queues()}
        assert everything.message("bill").message.body == b"secret"


def test_s6_a_client_cannot_grant_itself_anything(server: WireServer, broker: Broker) -> None:
    hello = wire_frames.Hello(wire_frames.VERSION, "mine", 1, "eve", PASSWORD, grants=Grants("eve", ".*", ".*", ".*"))
    pull = wire_frames.command_frame(1, commands.Pull("bills", "c", 1))
    claim = wire_frames.frame(wire_frames.ATTACH, (2, [wire_frames.Claim("bills", 1, "c", [(0, 1)], True)]))
    with socket.create_connection(server.address, 30) as peer:
        peer.settimeout(60)
        peer.sendall(wire_frames.frame(wire_frames.HELLO, hello) + pull + claim)
        buffer, said = wire_frames.Buffer(), list[tuple[int, bytes]]()
        while len(said) < 3:
            said += buffer.feed(peer.recv(65536))
        # Nor take over the session of another.
        with socket.create_connection(server.address, 30) as other:
            other.settimeout(60)
            stranger = wire_frames.Hello(wire_frames.VERSION, "mine", 1, "ann", PASSWORD)
            other.sendall(wire_frames.frame(wire_frames.HELLO, stranger))
            (kind, payload), *_ = wire_frames.Buffer().feed(other.recv(65536))
            assert kind == wire_frames.FAILED
            assert b"different permissions" in payload
    kinds = dict(said)
    assert b"read access to queue 'bills' is refused" in kinds[wire_frames.FAILED]
    assert wire_frames.decode(tuple[int, list[int]], kinds[wire_frames.RESULT]) == (2, [0])
    assert broker.queue("bills").in_flight == 0


def test_s6_no_command_is_forgotten() -> None:
    """Whoever may do nothing is refused every command that there is."""
    nobody = Permissions(Grants("nil"))
    samples: dict[str, Any] = {
        "queue": "q", "exchange": "e", "consumer": "c", "tag": 1, "lease": 1, "credit": 1, "to": "t",
        "settlement": Settlement(Outcome.ACK), "options": {}, "filter": MessageFilter(), "kind": "fanout",
        "status": "paused", "key": "k", "duration": "",
        "binding": Binding(queue="q"),
    }  # fmt: skip
    for verb in commands.ON_THE_WIRE:
        command = verb(**{name: samples[name] for name in verb.__match_args__ if name in samples})
        with pytest.raises(NotAllowed, match="'nil'"):
            nobody.check_command(command)
    for query in wire_frames.QUERIES:
        asked_by_all = {"health", "flush", "watch", "notices", "queues", "exchanges", "document", "known"}
        if query not in asked_by_all | {"workers", "tell_worker", "worker_left"}:
            with pytest.raises(NotAllowed, match="'nil'"):
                nobody.check_query(query, ("q",))
    alternate = Permissions(Grants("eve", "^eve", "^eve", "^eve"))
    with pytest.raises(NotAllowed, match="write access to router 'post'"):
        alternate.check_command(commands.Bind("eve.r", Binding(queue="eve.q", arguments={ALTERNATE: "post"})))


def test_s6_only_users_with_permissions_are_taken(tmp_path: Path) -> None:
    with open_broker("memory://") as broker:
        others: Any = dashboard_users(ann="operator")
        with pytest.raises(InvalidOption, match=r"users must be a remuda\.server\.users\.Users"):
            serve_wire(broker, ("127.0.0.1", 0), users=others)
