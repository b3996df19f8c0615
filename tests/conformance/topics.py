"""Where messages go: topics, channels, the compacter, routers (T1, T2, T3, Q18)."""

from __future__ import annotations

import pytest

from remuda.broker.port import Broker
from remuda.model.errors import Conflict, ConsumersFull, InvalidOption, NotFound, PartlyRefused, QueueFull
from remuda.model.message import CORRELATION, Message
from remuda.model.queues.options import QueueOptions
from remuda.model.queues.routing import Binding, ExchangeKind
from tests.conformance.kit import (
    MOMENT,
    SOON,
    Backend,
    Conformance,
    bodies_of,
    numbered,
    pulled,
    queue_names,
    received,
    restarted,
    state_of,
    urgent,
    waiting_bodies,
)

PULL = QueueOptions.parse(type="pull")


def news(body: bytes, key: str | None = "k", object: str | None = "thing", name: str = "orders") -> Message:
    return Message(name, body, object=object, key=key)


class Topics(Conformance):
    """T1: the word before the first dot names the queue."""

    def test_t1_the_root_is_the_queue(self, broker: Broker) -> None:
        for topic in ("orders", "orders.new", "orders.new.eu"):
            broker.publish(Message(topic, topic.encode()), options=PULL)
        assert queue_names(broker) == ["orders"]
        assert waiting_bodies(broker) == [b"orders", b"orders.new", b"orders.new.eu"]

    def test_t1_several_roots_give_one_copy_per_queue(self, broker: Broker) -> None:
        receipt = broker.publish(Message("x", b"0", topics=("orders.a", "audit.b", "mail")), options=PULL)
        assert queue_names(broker) == ["audit", "mail", "orders"]
        pulled(broker, "audit").ack()
        assert [state_of(broker, receipt.id, queue) for queue in ("orders", "audit", "mail")] == ["Q", "X", "Q"]

    def test_t3_a_topic_says_what_its_message_is_about(self, backend: Backend) -> None:
        """By the first pattern that fits; what a message says of itself wins."""
        patterns = ["orders.price.{object}.#", "orders.{key}.changed", "{object}.*.{key}"]
        broker = backend.open(queue_defaults=PULL, infer_types=patterns)
        told = {
            "orders.price.bond.today.late": ("bond", None), "orders.price.bond": ("bond", None),
            "orders.7.changed": ("orders", "7"), "orders.changed.7": ("orders", "7"),
            "orders": (None, None), "orders.a.b.c": (None, None),
        }  # fmt: skip
        for topic in told:
            broker.publish(Message(topic, topic.encode()))
        broker.publish([Message("orders.7.changed", b"2", object="own"), Message("orders.8.changed", b"2")])
        found: list[tuple[str, tuple[str | None, str | None]]] = []
        while len(found) < len(told) + 2:
            delivery = broker.pull("orders", 10, timeout=SOON)
            assert delivery is not None
            found += [(message.name, (message.object, message.key)) for message in delivery]
            delivery.ack()
        assert sorted(found, key=repr) == sorted(
            [*told.items(), ("orders.7.changed", ("own", None)), ("orders.8.changed", ("orders", "8"))], key=repr
        )

    def test_t1_several_topics_of_one_root_give_one_copy(self, broker: Broker) -> None:
        broker.publish(Message("orders", b"0", topics=("orders.a", "orders.b", "orders")), options=PULL)
        assert waiting_bodies(broker) == [b"0"]

    def test_t1_a_batch_is_sorted_into_its_queues(self, broker: Broker) -> None:
        names = ["orders.a", "audit", "orders.b", "mail.c", "audit.d"]
        broker.publish([Message(name, name.encode()) for name in names], options=PULL)
        assert waiting_bodies(broker, "orders") == [b"orders.a", b"orders.b"]
        assert waiting_bodies(broker, "audit") == [b"audit", b"audit.d"]
        assert waiting_bodies(broker, "mail") == [b"mail.c"]

    def test_t1_an_unknown_root_goes_to_the_default_queue(self, backend: Backend) -> None:
        broker = backend.open(default_queue="rest", queue_defaults=PULL)
        broker.create_queue("orders")
        broker.publish([Message("orders.a", b"0"), Message("unknown.b", b"1"), Message("other", b"2")])
        assert queue_names(broker) == ["orders", "rest"]
        assert waiting_bodies(broker, "orders") == [b"0"]
        assert waiting_bodies(broker, "rest") == [b"1", b"2"]

    def test_t1_two_unknown_roots_give_one_copy_in_the_default_queue(self, backend: Backend) -> None:
        broker = backend.open(default_queue="rest", queue_defaults=PULL)
        broker.publish(Message("x", b"0", topics=("unknown.a", "other.b")))
        assert waiting_bodies(broker, "rest") == [b"0"]

    def test_t1_a_message_without_a_root_goes_to_the_default_queue(self, backend: Backend) -> None:
        broker = backend.open(default_queue="rest", queue_defaults=PULL)
        broker.publish(Message("", b"0"))
        assert waiting_bodies(broker, "rest") == [b"0"]

    def test_t1_a_queue_can_be_named_outright(self, broker: Broker) -> None:
        broker.publish(Message("orders.new", b"0"), queue="special", options=PULL)
        assert queue_names(broker) == ["special"]
        assert pulled(broker, "special")[0].name == "orders.new"


class Channels(Conformance):
    """T2: a subscriber's own copy of what it cares about."""

    def test_t2_every_channel_has_its_own_copy_and_state(self, broker: Broker) -> None:
        broker.create_queue("fruit", type="pull")
        anna, ben = broker.channel("anna", ["fruit"]), broker.channel("ben", ["fruit"])
        receipt = broker.publish(Message("fruit.sour", b"lemon"))
        received(anna).ack()
        received(ben).dead()
        states = {one.queue: one.state.value for one in broker.message(receipt.id).queues}
        assert states == {"fruit": "Q", "anna": "X", "ben": "E"}

    @pytest.mark.parametrize(
        ("prefix", "gets"),
        [
            ("fruit", [b"fruit", b"fruit.sour", b"fruit.sour.green"]),
            ("fruit.*", [b"fruit", b"fruit.sour", b"fruit.sour.green"]),
            ("fruit.sour", [b"fruit.sour", b"fruit.sour.green"]),
            ("*", [b"fruit", b"fruit.sour", b"fruits.x", b"fruit.sour.green"]),
        ],
    )
    def test_t2_prefixes_end_at_a_dot(self, broker: Broker, prefix: str, gets: list[bytes]) -> None:
        channel = broker.channel("anna", [prefix], batch=10)
        broker.publish(
            [Message(name, name.encode()) for name in ("fruit", "fruit.sour", "fruits.x", "fruit.sour.green")]
        )
        assert bodies_of(channel, len(gets)) == gets
        assert channel.receive(MOMENT) is None

    @pytest.mark.parametrize(
        ("pattern", "gets"),
        [
            ("fruit.*", [b"fruit.sour"]),
            ("fruit.#", [b"fruit", b"fruit.sour", b"fruit.sour.green"]),
            ("*.sour.#", [b"fruit.sour", b"fruit.sour.green"]),
            ("#", [b"fruit", b"fruit.sour", b"fruits.x", b"fruit.sour.green"]),
        ],
    )
    def test_t2_a_channel_can_be_fed_by_pattern(self, broker: Broker, pattern: str, gets: list[bytes]) -> None:
        broker.create_queue("anna", type="pull", patterns=[pattern])
        names = ("fruit", "fruit.sour", "fruits.x", "fruit.sour.green")
        broker.publish([Message(name, name.encode()) for name in names])
        assert waiting_bodies(broker, "anna") == gets

    def test_t2_channels_alone_can_be_served(self, broker: Broker) -> None:
        broker.create_queue("anna", type="pull", topics=["fruit"])
        broker.publish([Message("fruit.sour", b"0"), Message("bread", b"1")], unbound="nobody", options=PULL)
        assert waiting_bodies(broker, "anna") == [b"0"]
        assert waiting_bodies(broker, "nobody") == [b"1"]
        assert queue_names(broker) == ["anna", "nobody"]

    def test_t2_several_prefixes_give_one_copy(self, broker: Broker) -> None:
        channel = broker.channel("anna", ["fruit", "fruit.sour", "bread"])
        broker.publish([Message("fruit.sour", b"0", topics=("fruit.sour", "bread")), Message("bread", b"1")])
        assert bodies_of(channel, 2) == [b"0", b"1"]

    def test_t2_workers_compete_while_subscribers_own(self, broker: Broker) -> None:
        broker.create_queue("fruit")
        workers = [broker.subscribe("fruit") for _ in range(2)]
        channel = broker.channel("anna", ["fruit"])
        broker.publish(numbered(2, "fruit"))
        assert [received(worker).bodies for worker in workers] == [[b"0"], [b"1"]]
        assert bodies_of(channel, 2) == [b"0", b"1"]

    def test_t2_a_channel_waits_for_its_subscriber(self, backend: Backend, broker: Broker) -> None:
        broker.channel("anna", ["fruit"]).close()
        broker.publish(numbered(2, "fruit"))
        broker = restarted(backend, broker)
        broker.publish(numbered(1, "fruit", start=2))
        assert bodies_of(broker.channel("anna", ["fruit"]), 3) == [b"0", b"1", b"2"]

    def test_t2_a_channel_belongs_to_one(self, broker: Broker) -> None:
        broker.channel("anna", ["fruit"])
        with pytest.raises((ConsumersFull, Conflict)):
            broker.channel("anna", ["fruit"])

    def test_t2_a_channel_can_be_pulled(self, broker: Broker) -> None:
        broker.channel("anna", ["fruit"], options={"type": "pull"}).close()
        broker.publish(numbered(1, "fruit"))
        assert pulled(broker, "anna").bodies == [b"0"]

    def test_t2_a_removed_channel_gets_no_more(self, broker: Broker) -> None:
        broker.channel("anna", ["fruit"])
        broker.remove_queue("anna")
        receipt = broker.publish(numbered(1, "fruit"))
        assert [one.queue for one in broker.message(receipt.id).queues] == ["fruit"]

    def test_t2_a_channel_can_change_its_topics(self, broker: Broker) -> None:
        channel = broker.channel("anna", ["fruit"])
        broker.configure_queue("anna", topics=["bread"])
        broker.publish([Message("fruit", b"0"), Message("bread", b"1")])
        assert bodies_of(channel, 1) == [b"1"]

    def test_t2_a_channel_needs_a_topic(self, broker: Broker) -> None:
        with pytest.raises(InvalidOption, match="a channel needs at least one topic prefix"):
            broker.channel("anna", [])
        assert queue_names(broker) == []


class Compacter(Conformance):
    """T3: news is delivered, repetition is logged."""

    @pytest.fixture
    def broker(self, backend: Backend) -> Broker:
        return backend.open(queue_defaults=PULL)

    def test_t3_a_b_a_delivers_three(self, broker: Broker) -> None:
        for body in (b"A", b"B", b"A"):
            assert broker.publish(news(body)).unchanged == ()
        assert waiting_bodies(broker) == [b"A", b"B", b"A"]

    def test_t3_a_repetition_is_logged_and_archived_only(self, broker: Broker) -> None:
        broker.publish(news(b"A"))
        receipt = broker.publish(news(b"A"))
        assert receipt.unchanged == (0,)
        assert receipt.accepted == 1
        document = broker.message(receipt.id)
        assert document.state.value == "U"
        assert document.queues == ()
        assert document.message.body == b"A"
        assert waiting_bodies(broker) == [b"A"]

    def test_t3_inside_a_batch(self, broker: Broker) -> None:
        receipt = broker.publish([news(body) for body in (b"A", b"A", b"B", b"B", b"A")])
        assert receipt.unchanged == (1, 3)
        assert waiting_bodies(broker) == [b"A", b"B", b"A"]

    @pytest.mark.parametrize(("key", "object"), [(None, "thing"), ("k", None), (None, None)])
    def test_t3_without_object_or_key_everything_is_news(
        self, broker: Broker, key: str | None, object: str | None
    ) -> None:
        broker.publish([news(b"A", key, object), news(b"A", key, object)])
        assert waiting_bodies(broker) == [b"A", b"A"]

    def test_t3_object_and_key_together_name_the_thing(self, broker: Broker) -> None:
        pairs = [("a", "bc"), ("ab", "c"), ("a", "c"), ("b", "c")]
        broker.publish([news(b"A", key, object) for object, key in pairs])
        assert len(waiting_bodies(broker)) == 4

    def test_t3_survives_a_restart(self, backend: Backend, broker: Broker) -> None:
        broker.publish(news(b"A"))
        broker = restarted(backend, broker, queue_defaults=PULL)
        assert broker.publish(news(b"A")).unchanged == (0,)
        assert broker.publish(news(b"B")).unchanged == ()

    def test_t3_a_refused_message_is_not_remembered(self, broker: Broker) -> None:
        broker.create_queue("orders", message_size_limit=2)
        broker.publish(news(b"A"))
        broker.publish(news(b"long"), raise_refusals=False)
        assert broker.publish(news(b"A")).unchanged == (0,)
        broker.configure_queue("orders", message_size_limit=0)
        assert broker.publish(news(b"long")).unchanged == ()

    def test_t3_switched_off_for_an_object(self, backend: Backend) -> None:
        broker = backend.open(queue_defaults=PULL, compact_objects={"noisy": False})
        broker.publish([news(b"A", object="noisy")] * 2 + [news(b"B", object="thing")] * 2)
        assert waiting_bodies(broker) == [b"A", b"A", b"B"]

    def test_t3_switched_on_for_an_object(self, backend: Backend) -> None:
        broker = backend.open(queue_defaults=PULL, compact=False, compact_objects={"quiet": True})
        broker.publish([news(b"A", object="quiet")] * 2 + [news(b"B", object="thing")] * 2)
        assert waiting_bodies(broker) == [b"A", b"B", b"B"]

    def test_t3_a_message_repeats_what_its_topic_says_it_is_about(self, backend: Backend) -> None:
        broker = backend.open(queue_defaults=PULL, infer_types="{object}.{key}.*")
        same = Message("orders.7.changed", b"A")
        assert broker.publish([same, Message("orders.8.changed", b"A"), same]).unchanged == (2,)
        assert broker.publish(Message("orders.7.sent", b"A")).unchanged == (0,)
        assert waiting_bodies(broker) == [b"A", b"A"]

    def test_t3_who_asks_twice_is_answered_twice(self, backend: Backend) -> None:
        """B9: a question is no news of what its topic names."""
        broker = backend.open(queue_defaults=PULL, infer_types="{object}.{key}")
        question = Message("orders.7", b"A", headers={"cap-callback-name": "answers"})
        plain = Message("orders.7", b"B")
        assert broker.publish([question, question, plain, plain, question]).unchanged == (3,)
        assert broker.publish([question, question]).unchanged == ()

    def test_t3_channels_get_no_repetition_either(self, broker: Broker) -> None:
        channel = broker.channel("anna", ["orders"], options={"type": "push"})
        broker.publish([news(b"A"), news(b"A"), news(b"B")])
        assert bodies_of(channel, 2) == [b"A", b"B"]


class Routers(Conformance):
    """Q18: a name in front of several queues and topics."""

    @pytest.fixture
    def broker(self, backend: Backend) -> Broker:
        broker = backend.open(queue_defaults=PULL)
        for name in ("one", "two", "three"):
            broker.create_queue(name)
        return broker

    def sizes(self, broker: Broker) -> list[int]:
        return [broker.queue(name).waiting for name in ("one", "two", "three")]

    def test_q18_distribute_copies_to_every_binding(self, broker: Broker) -> None:
        broker.create_router(
            "gate", "distribute", [Binding(queue="one"), Binding(queue="two"), Binding(topic="three.x")]
        )
        assert broker.route("gate", numbered(2)).accepted == 2
        for name in ("one", "two", "three"):
            assert waiting_bodies(broker, name) == [b"0", b"1"]

    def test_q18_copies_keep_the_original_id_as_correlation(self, broker: Broker) -> None:
        broker.create_router("gate", "distribute", [Binding(queue="one"), Binding(queue="two")])
        broker.route("gate", Message("x", b"0", id="original", headers={"a": "b"}))
        copies = [pulled(broker, name)[0] for name in ("one", "two")]
        assert [dict(copy.headers) for copy in copies] == [{"a": "b", CORRELATION: "original"}] * 2
        assert {copy.id for copy in copies} == {"original"}  # one record, one stored body, a state in each queue

    def test_q18_a_topic_renames_and_a_queue_does_not(self, broker: Broker) -> None:
        broker.create_router("gate", "distribute", [Binding(queue="one"), Binding(topic="two.renamed")])
        broker.route("gate", Message("orders.new", b"0"))
        assert pulled(broker, "one")[0].name == "orders.new"
        assert pulled(broker, "two")[0].name == "two.renamed"

    def test_q18_round_robin_takes_turns(self, broker: Broker) -> None:
        bindings = [Binding(queue="one"), Binding(queue="two"), Binding(topic="three")]
        broker.create_router("gate", "round-robin", bindings)
        broker.route("gate", numbered(4))
        broker.route("gate", numbered(1, start=4))
        assert waiting_bodies(broker, "one") == [b"0", b"3"]
        assert waiting_bodies(broker, "two") == [b"1", b"4"]
        assert waiting_bodies(broker, "three") == [b"2"]

    def test_q18_first_takes_the_highest_priority(self, broker: Broker) -> None:
        bindings = [Binding(queue="one", priority=1), Binding(queue="two", priority=9), Binding(queue="three")]
        broker.create_router("gate", "first", bindings)
        broker.route("gate", numbered(2))
        assert self.sizes(broker) == [0, 2, 0]

    def test_q18_first_goes_on_when_one_refuses(self, broker: Broker) -> None:
        broker.configure_queue("one", message_limit=1)
        broker.set_status("two", "paused")
        broker.create_router("gate", "first", [Binding(queue="one"), Binding(queue="two"), Binding(queue="three")])
        broker.route("gate", numbered(3))
        assert self.sizes(broker) == [1, 0, 2]

    def test_q18_first_goes_on_when_a_queue_is_missing(self, backend: Backend, broker: Broker) -> None:
        broker.close()
        broker = backend.open(queue_defaults=PULL, auto_queue_creation=False)
        broker.create_queue("three")
        broker.create_router("gate", "first", [Binding(queue="missing"), Binding(queue="three")])
        broker.route("gate", numbered(1))
        assert broker.queue("three").waiting == 1

    def test_q18_one_refusal_does_not_hinder_the_other_bindings(self, broker: Broker) -> None:
        broker.configure_queue("one", message_size_limit=1)
        broker.create_router("gate", "distribute", [Binding(queue="one"), Binding(queue="two")])
        receipt = broker.route("gate", Message("x", b"long"))
        assert receipt.accepted == 1
        assert "message_size_limit" in str(receipt.partly_refused[0])
        assert self.sizes(broker) == [0, 1, 0]

    def test_q18_priorities_travel_along(self, broker: Broker) -> None:
        broker.create_router("gate", "distribute", [Binding(queue="one")])
        broker.route("gate", [*numbered(1), urgent(b"h")])
        assert waiting_bodies(broker, "one") == [b"h", b"0"]

    def test_q18_survives_a_restart(self, backend: Backend, broker: Broker) -> None:
        broker.create_router("gate", "first", [Binding(queue="one"), Binding(queue="two", priority=3)])
        broker = restarted(backend, broker)
        broker.route("gate", numbered(1))
        assert self.sizes(broker) == [0, 1, 0]

    def test_q18_can_be_replaced_and_removed(self, broker: Broker) -> None:
        broker.create_router("gate", "first", [Binding(queue="one")])
        broker.create_router("gate", "first", [Binding(queue="two")])
        broker.route("gate", numbered(1))
        assert self.sizes(broker) == [0, 1, 0]
        broker.remove_router("gate")
        with pytest.raises(NotFound, match="there is no router 'gate'; nothing was stored"):
            broker.route("gate", numbered(1))
        with pytest.raises(NotFound, match="there is no router 'gate'"):
            broker.remove_router("gate")

    def test_q18_without_bindings_nothing_is_stored(self, broker: Broker) -> None:
        broker.create_router("gate", "distribute", [])
        with pytest.raises(Conflict, match="has no binding; nothing was stored"):
            broker.route("gate", numbered(1))

    @pytest.mark.parametrize("binding", [Binding(), Binding(queue="one", topic="two")])
    def test_q18_a_binding_names_a_queue_or_a_topic(self, broker: Broker, binding: Binding) -> None:
        with pytest.raises(InvalidOption, match="must name either a queue or a topic"):
            broker.create_router("gate", "first", [binding])

    def test_q18_an_unknown_kind_is_refused(self, broker: Broker) -> None:
        with pytest.raises(InvalidOption, match="kind must be one of distribute, round-robin, first"):
            broker.create_router("gate", "last", [Binding(queue="one")])

    def test_q18_round_robin_skips_a_full_queue(self, broker: Broker) -> None:
        broker.configure_queue("two", message_limit=1)
        broker.create_router("gate", "round-robin", [Binding(queue=name) for name in ("one", "two", "three")])
        assert broker.route("gate", numbered(6)).refusals == {}
        assert self.sizes(broker) == [3, 1, 2]

    @pytest.mark.parametrize("kind", ["distribute", "round-robin", "first"])
    def test_q18_refusals_are_told(self, broker: Broker, kind: str) -> None:
        broker.configure_queue("one", message_limit=1)
        broker.create_router("gate", kind, [Binding(queue="one")])
        receipt = broker.route("gate", numbered(3), raise_refusals=False)
        assert receipt.accepted == 1
        assert {row: type(refusal) for row, refusal in receipt.refusals.items()} == {1: QueueFull, 2: QueueFull}
        with pytest.raises(QueueFull):
            broker.route("gate", numbered(1))
        with pytest.raises(PartlyRefused, match="2 of 2 messages were refused"):
            broker.route("gate", numbered(2))

    def test_q18_routers_can_be_listed_and_bound_one_by_one(self, broker: Broker) -> None:
        broker.create_router("gate", "distribute", [Binding(queue="one")])
        broker.bind("gate", Binding(queue="two"))
        assert broker.routers() == {"gate": (ExchangeKind.DISTRIBUTE, (Binding(queue="one"), Binding(queue="two")))}
        broker.unbind("gate", Binding(queue="one"))
        broker.route("gate", numbered(1))
        assert self.sizes(broker) == [0, 1, 0]
