"""What a message is, how it is taken in, and what is refused (M1, M2, M4)."""

from __future__ import annotations

from typing import Any, cast

import pytest

from remuda.broker.port import Broker
from remuda.model.errors import InvalidMessage, MessageTooLarge, PartlyRefused
from remuda.model.message import Message, Priority
from remuda.model.messages import Messages
from tests.conformance.kit import Backend, Conformance, numbered, pulled, queue_names, restarted, waiting_bodies

EVERY_BYTE = bytes(range(256))
FULL = Message(
    "orders.new",
    EVERY_BYTE,
    id="my own id ✓",
    topics=("orders.new", "orders.eu"),
    object="order",
    key="4711",
    timestamp=1_700_000_000_000_123,
    mime_type="application/x-thing",
    headers={"trace": "abc", "empty": "", "ünïcode": "✓"},
    priority=Priority.HIGH,
    expires=4_000_000_000_000_000,
)


def assert_whole(message: Message) -> None:
    for field in Message.__struct_fields__:
        if field != "created":
            assert getattr(message, field) == getattr(FULL, field), field


class Publishing(Conformance):
    @pytest.mark.parametrize("body", [b"", b"\x00", EVERY_BYTE, b"{not json", b"x" * 2_000_000])
    def test_m1_the_body_is_never_changed(self, broker: Broker, body: bytes) -> None:
        broker.create_queue("orders", type="pull")
        broker.publish(Message("orders", body, mime_type="text/odd"))
        message = pulled(broker)[0]
        assert message.body == body
        assert message.mime_type == "text/odd"

    def test_m1_the_type_of_a_body_is_bytes_unless_said_otherwise(self, broker: Broker) -> None:
        broker.create_queue("orders", type="pull")
        broker.publish(Message("orders", b"x"))
        assert pulled(broker)[0].mime_type == "application/octet-stream"

    def test_m2_every_field_reaches_the_consumer(self, broker: Broker) -> None:
        broker.create_queue("orders", type="pull")
        broker.publish(FULL)
        message = pulled(broker)[0]
        assert_whole(message)
        assert message.created > 1_700_000_000_000_000

    def test_m2_a_message_is_what_it_was_when_it_was_published(self, broker: Broker) -> None:
        """Headers and lists of a caller may be changed, and used again, as soon as the call returns."""
        broker.create_queue("orders", type="pull")
        headers, bodies, ids, rows = {"step": "1"}, [b"1"], ["own"], [{"row": "1"}, {"row": "2"}]
        broker.publish(Message("orders", b"0", headers=headers))
        broker.publish(Message("orders", b"0", headers=headers, key="k"))
        broker.publish(Messages(name="orders", bodies=bodies, headers=headers))
        broker.publish(Messages(name="orders", bodies=bodies, ids=ids, headers=headers))
        broker.publish(Messages(name="orders", bodies=[b"2", b"3"], headers=cast(Any, rows)))
        headers["step"], bodies[0], ids[0] = "2", b"changed", "changed"
        rows[0]["row"] = rows[1]["row"] = "changed"
        seen = pulled(broker, count=10)
        assert [message.headers.get("step") or message.headers["row"] for message in seen] == [*"111112"]
        assert [message.body for message in seen] == [b"0", b"0", b"1", b"1", b"2", b"3"]
        assert seen[3].id == "own"

    def test_m2_what_one_consumer_changes_no_other_sees(self, broker: Broker) -> None:
        """A body is stored once however many queues take it, and a message may come again."""
        for name in ("orders", "mails"):
            broker.create_queue(name, type="pull")
        topics = ("orders.new", "mails.new")
        broker.publish(Message("orders.new", b"1", topics=topics, headers={"step": "1"}))
        broker.publish([Message("orders.new", b"2", topics=topics, headers={"step": "1"})] * 2)
        for queue in ("orders", "orders", "mails"):
            delivery = broker.pull(queue, 3)
            assert delivery is not None
            assert delivery.bodies == [b"1", b"2", b"2"]
            for message in (delivery[0], *delivery):
                assert message.headers == {"step": "1"}
                cast(Any, message.headers)["step"] = "2"
            delivery.bodies.clear()
            assert len(delivery) == 3
            assert delivery.nack() == 3

    def test_m2_every_field_survives_a_restart(self, backend: Backend, broker: Broker) -> None:
        broker.create_queue("orders", type="pull")
        broker.publish(FULL)
        created = broker.message(FULL.id).created
        broker = restarted(backend, broker)
        message = pulled(broker)[0]
        assert_whole(message)
        assert message.created == created

    def test_m2_a_batch_may_differ_in_every_column(self, broker: Broker) -> None:
        broker.create_queue("orders", type="pull")
        broker.publish([Message("orders.a", b"0"), FULL, Message("orders.b", b"1", headers={"x": "y"})])
        assert_whole(pulled(broker)[0])
        delivery = pulled(broker, count=2)
        assert [message.name for message in delivery] == ["orders.a", "orders.b"]
        assert [dict(message.headers) for message in delivery] == [{}, {"x": "y"}]

    def test_m2_messages_can_be_given_as_columns(self, broker: Broker) -> None:
        broker.create_queue("orders", type="pull")
        receipt = broker.publish(Messages(bodies=[b"0", b"1"], name="orders", key=["a", "b"]))
        delivery = pulled(broker, count=2)
        assert receipt.accepted == 2
        assert [message.id for message in delivery] == receipt.ids
        assert [message.key for message in delivery] == ["a", "b"]

    def test_m4_ids_are_given_in_order_and_fit_64_bits(self, broker: Broker) -> None:
        ids = [broker.publish(message).id for message in numbered(20)] + broker.publish(numbered(500)).ids
        numbers = [int(one) for one in ids]
        assert numbers == sorted(set(numbers))
        assert max(numbers) < 2**63

    def test_m4_ids_go_on_after_a_restart(self, backend: Backend, broker: Broker) -> None:
        before = broker.publish(numbered(10_000)).ids
        broker = restarted(backend, broker)
        assert int(broker.publish(numbered(1)).id) > int(before[-1])

    @pytest.mark.parametrize("own", ["a", "x" * 255, "ü" * 127, "0", "with space"])
    def test_m4_a_caller_may_bring_its_own_id(self, broker: Broker, own: str) -> None:
        broker.create_queue("orders", type="pull")
        assert broker.publish(Message("orders", b"", id=own)).id == own
        assert pulled(broker)[0].id == own
        assert broker.message(own).message.id == own

    def test_m4_own_and_given_ids_mix_in_a_batch(self, broker: Broker) -> None:
        ids = broker.publish([Message("orders", b"", id="mine"), Message("orders", b"")]).ids
        assert ids[0] == "mine"
        assert int(ids[1]) > 0

    @pytest.mark.parametrize("own", ["x" * 256, "ü" * 128])
    def test_m4_an_id_over_255_bytes_is_refused(self, broker: Broker, own: str) -> None:
        with pytest.raises(InvalidMessage, match=r"256 bytes, at most 255.*nothing was stored"):
            broker.publish(Message("orders", b"", id=own))
        assert queue_names(broker) == []

    def test_an_empty_batch_is_no_error(self, broker: Broker) -> None:
        assert len(broker.publish([])) == 0
        assert queue_names(broker) == []

    @pytest.mark.parametrize("body", ["text", None, 5, bytearray(b"x"), {"a": 1}])
    def test_a_body_that_is_not_bytes_is_refused(self, broker: Broker, body: Any) -> None:
        with pytest.raises(InvalidMessage, match=r"must be bytes, not \w+; encode it first.*stored"):
            broker.publish([Message("orders", b"fine"), Message("orders", body)])
        assert queue_names(broker) == []

    @pytest.mark.parametrize(
        "column",
        [
            {"key": ["a"]},
            {"ids": ["a"]},
            {"name": ["orders"] * 3},
            {"headers": [{}]},
            {"priority": [Priority.HIGH] * 5},
        ],
    )
    def test_columns_of_another_length_are_refused(self, broker: Broker, column: dict[str, Any]) -> None:
        with pytest.raises(InvalidMessage, match=r"for 2 (bodies|messages); nothing was stored"):
            broker.publish(Messages(**{"bodies": [b"0", b"1"], "name": "orders", **column}))
        assert queue_names(broker) == []

    @pytest.mark.parametrize(
        "wrong",
        [
            {"id": 5},
            {"id": "\ud800"},
            {"name": None},
            {"name": 7},
            {"topics": (3,)},
            {"object": 1, "key": "a"},
            {"object": "a", "key": 1},
            {"timestamp": "yesterday"},
            {"timestamp": 2**63},
            {"mime_type": None},
            {"mime_type": 1},
            {"headers": {"a": 1}},
            {"headers": {1: "a"}},
            {"headers": {"a": "\ud800"}},
            {"headers": "text"},
            {"priority": 32},
            {"priority": -1},
            {"priority": True},
            {"priority": "urgent"},
            {"topics": "orders"},
            {"headers": {"n": 5}},
            {"object": "\ud800"},
            {"wire": "text"},
            {"expires": "never"},
            {"expires": 2**63},
            {"due": "later"},
            {"due": -(2**70)},
        ],
        ids=str,
    )
    def test_a_field_of_the_wrong_kind_is_refused_and_hurts_nothing(
        self, broker: Broker, wrong: dict[str, Any]
    ) -> None:
        broker.create_queue("orders", type="pull")
        fields: dict[str, Any] = {"name": "orders", "body": b"bad", **wrong}
        with pytest.raises(InvalidMessage, match="nothing was stored"):
            broker.publish([Message("orders", b"good"), Message(**fields)])
        broker.publish(Message("orders", b"next"))
        assert waiting_bodies(broker) == [b"next"]

    def test_only_messages_can_be_published(self, broker: Broker) -> None:
        with pytest.raises(InvalidMessage, match="publish takes messages, not str; nothing was stored"):
            broker.publish(cast(Any, ["text"]))

    @pytest.mark.parametrize("topic", ["", ".new", "x" * 256, "line\nbreak"])
    def test_a_topic_that_names_no_queue_is_refused(self, broker: Broker, topic: str) -> None:
        with pytest.raises(InvalidMessage, match="nothing was stored"):
            broker.publish(Message(topic, b""))
        assert queue_names(broker) == []

    def test_a_batch_is_taken_as_far_as_it_can_be(self, broker: Broker) -> None:
        broker.create_queue("orders", type="pull", message_size_limit=1)
        with pytest.raises(PartlyRefused, match=r"1 of 3 messages were refused, the others are stored") as caught:
            broker.publish([Message("orders", body) for body in (b"0", b"long", b"2")])
        assert list(cast(Any, caught.value.receipt).refusals) == [1]
        assert waiting_bodies(broker) == [b"0", b"2"]

    def test_refusals_can_be_told_instead_of_raised(self, broker: Broker) -> None:
        broker.create_queue("orders", type="pull", message_size_limit=1)
        receipt = broker.publish([Message("orders", b"long"), Message("orders", b"1")], raise_refusals=False)
        assert receipt.accepted == 1
        assert isinstance(receipt.refusals[0], MessageTooLarge)
        assert broker.message(receipt.first).message.body == b"1"

    def test_m2_priorities_have_names(self, broker: Broker) -> None:
        broker.create_queue("orders", type="pull")
        broker.publish(Message("orders", b"normal", priority="normal"))  # type: ignore[arg-type]
        broker.publish(Message("orders", b"high", priority="high"))  # type: ignore[arg-type]
        broker.publish(Messages(name="orders", bodies=[b"a", b"b"], priority=["normal", "high"]))  # type: ignore[list-item]
        assert waiting_bodies(broker) == [b"high", b"b", b"normal", b"a"]

    @pytest.mark.parametrize(
        "wrong",
        [{"body": "text"}, {"name": 5}, {"priority": 32}, {"headers": {"n": 5}}, {"id": "x" * 256}, {"expires": 5}],
        ids=lambda wrong: next(iter(wrong)),
    )
    def test_m2_a_failed_batch_names_the_row_and_stores_nothing(self, broker: Broker, wrong: dict[str, Any]) -> None:
        broker.create_queue("orders", type="pull")
        rows = [*numbered(2), Message(**{"name": "orders", "body": b"2", **wrong})]
        with pytest.raises(InvalidMessage, match=f"row 2: .*{next(iter(wrong))}"):
            broker.publish(rows)
        assert waiting_bodies(broker) == []
