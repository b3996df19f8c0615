"""Vhosts stay apart through every restart, whatever they are called, and so do directories of before (S7)."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import pika.exceptions
import pytest

from remuda.broker.opening import open_broker
from remuda.model.message import Message
from remuda.model.queues.routing import DECLARED, Binding
from remuda.server.amqp.declarations.exchanges import ExchangeDeclaration
from remuda.server.amqp.declarations.queues import QueueDeclaration
from remuda.server.amqp.declarations.topology import _encode
from remuda.server.amqp.protocol.vhosts import VHost, dead_letters_of, prefix_of, split_name, vhost_name
from tests.server.amqp.kit import Client, eventually
from tests.servers.amqpd import RunningServer

STRANGE = ("shop", "a/b", "a", "%2F", "vhost:x", "//", " ", "tab\there", "Ünïcödé", "v" * 64, "a%2Fb", "x/amq.default")


def _at(server: RunningServer, vhost: str) -> Client:
    return Client(server.url.removesuffix("%2F") + quote(vhost, safe=""))


@pytest.mark.parametrize("vhost", STRANGE)
def test_s7_a_name_leads_back_to_its_vhost(vhost: str) -> None:
    full = VHost(vhost).queue("a/b/c")
    assert (vhost_name(full), split_name(full)) == (vhost, (prefix_of(vhost), "a/b/c"))
    assert full.isprintable()
    assert vhost_name(dead_letters_of(full)) == vhost
    assert vhost_name("vhost:no slash") == "/"  # a name that a bus gave


def test_s7_vhosts_may_be_called_anything(tmp_path: Path) -> None:
    with RunningServer(str(tmp_path / "data"), vhosts=STRANGE) as server:
        for number, vhost in enumerate(STRANGE):
            with _at(server, vhost) as client:
                client.channel.queue_declare("a/b", durable=True)
                client.publish("a/b", b"%d" % number, delivery_mode=2)
    # Vhosts last, without being named again.
    with RunningServer(str(tmp_path / "data")) as server:
        for number, vhost in enumerate(STRANGE):
            with _at(server, vhost) as client:
                assert client.bodies("a/b") == [b"%d" % number]
        with _at(server, "/") as root, pytest.raises(pika.exceptions.ChannelClosedByBroker, match="404"):
            root.channel.queue_declare("a/b", passive=True)


def test_s7_a_vhost_takes_nothing_from_the_root_and_leaves_nothing_to_it(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    with RunningServer(data, vhosts=("/", "shop")) as server:
        with _at(server, "/") as root:
            for name in ("new/q", "shop/x"):
                root.channel.queue_declare(name, durable=True)
                root.publish(name, b"of the root", delivery_mode=2)
        with _at(server, "shop") as shop:
            shop.channel.queue_declare("orders", durable=True)
    with RunningServer(data, vhosts=("/", "new")) as server:
        with _at(server, "new") as new:
            assert new.refused(lambda ch: ch.queue_declare("q", passive=True))[0] == 404
        with _at(server, "/") as root:
            assert root.refused(lambda ch: ch.queue_declare("shop/orders", passive=True))[0] == 404
            assert root.bodies("new/q") == root.bodies("shop/x") == [b"of the root"]


def test_s7_a_dead_letter_exchange_is_one_of_the_same_vhost(tmp_path: Path) -> None:
    with RunningServer(vhosts=("/", "shop")) as server, _at(server, "shop") as shop, _at(server, "/") as root:
        for client in (shop, root):
            client.channel.exchange_declare("dlx", "fanout")
            client.channel.queue_declare("late")
            client.channel.queue_bind("late", "dlx")
            client.channel.queue_declare("q", arguments={"x-dead-letter-exchange": "dlx", "x-message-ttl": 1})
            client.publish("q", b"late")
            client.get("late")
        refused = root.refused(
            lambda ch: ch.queue_declare("far", arguments={"x-dead-letter-exchange": "vhost:shop/dlx"})
        )
        assert refused[0] == 403
        # What dies goes through a queue that only its own vhost can name.
        assert shop.refused(lambda ch: ch.queue_declare("amq.dead-letters.none", passive=True))[0] == 404
        assert shop.waiting("amq.dead-letters.q") == 0


def test_s7_a_directory_of_before_is_brought_up_to_date(tmp_path: Path) -> None:
    """Names of a vhost began with its name and a slash; a queue of `/` could be called the same."""
    data = tmp_path / "data"
    with open_broker(data) as broker:
        broker.create_router("shop/amq.default", "direct")
        broker.create_router("amq.default", "direct")
        topic = ExchangeDeclaration("topic", durable=True)
        broker.create_router(
            "shop/events", "topic", [Binding(exchange="shop/events", arguments={DECLARED: _encode(topic)})]
        )
        declared = QueueDeclaration(durable=True, arguments={"x-dead-letter-exchange": "events"})
        broker.create_queue("amq.dead-letters.shop/orders", put_back="priority")
        broker.create_queue(
            "shop/orders", dead_letter_queue="amq.dead-letters.shop/orders", put_back="priority", max_priority=0
        )
        broker.bind(
            "shop/amq.default", Binding(queue="shop/orders", key="orders", arguments={DECLARED: _encode(declared)})
        )
        broker.bind("shop/events", Binding(queue="shop/orders", key="order.#"))
        broker.create_queue("shop/mine")  # of `/`: the vhost's default exchange does not know it
        declared = QueueDeclaration(durable=True)
        broker.bind("amq.default", Binding(queue="shop/mine", key="shop/mine", arguments={DECLARED: _encode(declared)}))
        for number in range(5):
            broker.publish(Message("orders", b"%d" % number), queue="shop/orders")
        broker.publish(Message("shop/mine", b"mine"), queue="shop/mine")
    for _ in range(2):
        with RunningServer(str(data)) as server, _at(server, "shop") as shop, _at(server, "/") as root:
            names = {info.name for info in server.broker.queues()}
            assert {"vhost:shop/orders", "vhost:shop/amq.dead-letters.orders", "shop/mine"} <= names
            assert not names & {"shop/orders", "amq.dead-letters.shop/orders"}
            assert not [name for name in server.broker.routers() if name.startswith("shop/")]
            assert shop.waiting("orders") == 5
            assert root.waiting("shop/mine") == 1
            shop.channel.queue_declare("orders", durable=True, arguments={"x-dead-letter-exchange": "events"})
            shop.publish("order.new", b"more", exchange="events")
            assert eventually(lambda: shop.waiting("orders") == 6)
            assert shop.bodies("orders") == [b"0", b"1", b"2", b"3", b"4", b"more"]
            for number in range(5):
                shop.publish("orders", b"%d" % number, delivery_mode=2)
