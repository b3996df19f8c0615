"""Order, concurrency, rates and turns, by key and by queue (F1, F2, F3, F5)."""

from __future__ import annotations

import time

import pytest

from remuda.broker.delivery import Delivery
from remuda.broker.port import Broker
from remuda.model.errors import Conflict, Duplicate, InvalidOption
from remuda.model.message import Message
from tests.conformance.kit import Backend, Conformance, eventually, pulled, restarted


def keyed(keys: str, name: str = "orders") -> list[Message]:
    """A message for each letter, which is its key; the body is its number."""
    return [Message(name, b"%d" % number, key=key) for number, key in enumerate(keys)]


def numbers(delivery: Delivery | None) -> list[int]:
    return [] if delivery is None else [int(body) for body in delivery.bodies]


class Flow(Conformance):
    def test_f1_one_of_a_key_at_a_time_and_in_order(self, broker: Broker) -> None:
        broker.create_queue("orders", type="pull", ordered=True)
        broker.publish(keyed("aabab"))
        first = pulled(broker, count=9)
        assert sorted(numbers(first)) == [0, 2]
        assert broker.pull("orders") is None
        first.ack([numbers(first).index(0)])
        assert numbers(pulled(broker, count=9)) == [1]

    def test_f1_a_retry_holds_its_key(self, broker: Broker) -> None:
        broker.create_queue("orders", type="pull", ordered=True)
        broker.publish(keyed("aab"))
        pulled(broker, count=1).retry(after="50ms")
        assert numbers(broker.pull("orders", count=9)) == [2]
        assert numbers(pulled(broker, timeout=60)) == [0]

    def test_f1_a_retry_may_let_the_next_go_on(self, broker: Broker) -> None:
        broker.create_queue("orders", type="pull", ordered=True, on_retry="pass")
        broker.publish(keyed("aa"))
        pulled(broker, count=1).retry(after="1h")
        assert numbers(pulled(broker)) == [1]

    def test_f1_the_order_survives_a_restart(self, backend: Backend, broker: Broker) -> None:
        broker.create_queue("orders", type="pull", ordered=True)
        broker.publish(keyed("aab"))
        pulled(broker).retry(after="1h")
        broker = restarted(backend, broker)
        assert numbers(broker.pull("orders", count=9)) == [2]

    def test_f2_slots_of_the_queue_and_of_its_keys(self, broker: Broker) -> None:
        broker.create_queue("orders", type="pull", concurrency=3, concurrency_per_key=2)
        broker.publish(keyed("aaabb"))
        first = pulled(broker, count=9)
        assert len(numbers(first)) == 3
        assert {0, 1, 3} == set(numbers(first))
        first.ack([0])
        assert len(numbers(broker.pull("orders", count=9))) == 1

    def test_f2_queues_share_a_limit(self, broker: Broker) -> None:
        for name in ("mail", "text"):
            broker.create_queue(name, type="pull", limits={"provider": 2})
            broker.publish(keyed("abc", name))
        first = pulled(broker, "mail", 2)
        assert broker.pull("text") is None
        first.ack([0])
        assert numbers(pulled(broker, "text", 9)) == [0]

    def test_f2_a_slot_that_comes_free_wakes_who_waits_at_another_queue(self, broker: Broker) -> None:
        for name in ("mail", "text"):
            broker.create_queue(name, limits={"provider": 1})
        subscription = broker.subscribe("text")
        broker.publish(keyed("a", "mail"))
        held = pulled(broker, "mail")
        broker.publish(keyed("b", "text"))
        assert subscription.receive(0.03) is None
        held.ack()
        assert numbers(subscription.receive(60)) == [0]

    def test_f3_a_rate_waits_and_drops_nothing(self, broker: Broker) -> None:
        broker.create_queue("orders", rate="50/s burst 1")
        subscription = broker.subscribe("orders", credit=100)
        began = time.monotonic()
        broker.publish(keyed("aaaaaa"))
        found: list[int] = []
        while len(found) < 6:
            delivery = subscription.receive(60)
            found += numbers(delivery)
            assert delivery is not None
            delivery.ack()
        assert found == [0, 1, 2, 3, 4, 5]
        assert time.monotonic() - began >= 0.099

    def test_f3_a_rate_of_a_key_holds_no_other(self, broker: Broker) -> None:
        broker.create_queue("orders", type="pull", rate_per_key="1/h burst 1")
        broker.publish(keyed("aab"))
        assert sorted(numbers(pulled(broker, count=9))) == [0, 2]
        assert broker.pull("orders") is None

    def test_f3_a_restart_brings_no_second_burst(self, backend: Backend, broker: Broker) -> None:
        broker.create_queue("orders", type="pull", rate="2/h burst 2", rate_per_key="1/h burst 1")
        broker.publish(keyed("aab"))
        delivery = pulled(broker, count=9)
        assert sorted(numbers(delivery)) == [0, 2]
        delivery.ack()
        broker = restarted(backend, broker)
        broker.configure_queue("orders", rate="")
        assert broker.pull("orders") is None
        broker.configure_queue("orders", rate_per_key="")
        assert numbers(pulled(broker)) == [1]

    def test_f5_a_tenant_with_much_waiting_delays_another_by_one_turn(self, broker: Broker) -> None:
        broker.create_queue("orders", type="pull", fair=True)
        broker.publish(keyed("a" * 200 + "b"))
        assert [numbers(pulled(broker)) for _ in range(3)] == [[0], [200], [1]]

    def test_f4_debounce_sends_the_last_of_a_key(self, broker: Broker) -> None:
        broker.create_queue("orders", type="pull", debounce="200ms")
        words = [broker.publish(message).by_key for message in keyed("aab")]
        assert words == [{}, {0: "replaced"}, {}]
        eventually(lambda: broker.queue("orders").waiting == 2)
        assert sorted(numbers(pulled(broker, count=9))) == [1, 2]
        assert broker.queue("orders").dead == 0

    def test_f4_throttle_takes_the_first_of_a_key(self, backend: Backend, broker: Broker) -> None:
        broker.create_queue("orders", type="pull", throttle="1h")
        assert broker.publish(keyed("aba")).by_key == {2: "skipped"}
        broker = restarted(backend, broker)
        assert broker.publish(keyed("a")).by_key == {0: "skipped"}
        assert sorted(numbers(pulled(broker, count=9))) == [0, 1]

    def test_f4_a_singleton_is_refused_skipped_or_replaced(self, broker: Broker) -> None:
        broker.create_queue("orders", type="pull", singleton="refuse")
        broker.publish(keyed("a"))
        with pytest.raises(Duplicate, match="a message of the same key waits or runs"):
            broker.publish(keyed("a"))
        broker.configure_queue("orders", singleton="skip")
        assert broker.publish(keyed("a")).by_key == {0: "skipped"}
        broker.configure_queue("orders", singleton="replace")
        receipt = broker.publish([Message("orders", b"7", key="a")])
        assert receipt.by_key == {0: "replaced"}
        assert numbers(pulled(broker, count=9)) == [7]

    def test_f7_rules_are_changed_on_a_live_queue(self, broker: Broker) -> None:
        broker.create_queue("orders", type="pull")
        broker.publish(keyed("aabc"))
        broker.configure_queue("orders", ordered=True, rate="1000/s")
        assert sorted(numbers(pulled(broker, count=9))) == [0, 2, 3]
        broker.configure_queue("orders", ordered=False)
        eventually(lambda: broker.queue("orders").options.ordered is False)
        assert numbers(pulled(broker, count=9)) == [1]

    def test_f7_what_is_held_is_shown(self, broker: Broker) -> None:
        broker.create_queue("orders", type="pull", ordered=True)
        broker.publish(keyed("aaab"))
        first = pulled(broker)
        found = broker.flow("orders")
        assert (found.keys, found.held, found.held_by) == (2, 1, "")
        assert [(key.key, key.waiting, key.in_flight, key.held_by) for key in found.top] == [
            ("a", 2, 1, "concurrency"),
            ("b", 1, 0, ""),
        ]
        first.retry(after="1h")
        assert broker.flow("orders").top[0].held_by == "retry"
        broker.configure_queue("orders", rate="1/h burst 1")
        assert numbers(broker.pull("orders")) == [3]
        held = broker.flow("orders", limit=0)
        assert (held.held_by, held.top) == ("rate", [])
        assert held.until is not None

    def test_f3_a_key_is_paused_alone(self, backend: Backend, broker: Broker) -> None:
        broker.create_queue("orders", type="pull")
        with pytest.raises(Conflict, match="has no rule that looks at keys"):
            broker.pause_key("orders", "a")
        broker.configure_queue("orders", fair=True)
        broker.pause_key("orders", "a", who="eve")
        broker.publish(keyed("ab"))
        assert numbers(broker.pull("orders", count=9)) == [1]
        assert broker.flow("orders").top[0].held_by == "pause"
        broker = restarted(backend, broker)
        assert [key.held_by for key in broker.flow("orders").top if key.key == "a"] == ["pause"]
        broker.resume_key("orders", "a")
        assert 0 in numbers(pulled(broker, count=9))
        broker.pause_key("orders", "a", "30ms")
        broker.publish(keyed("a"))
        eventually(lambda: broker.pull("orders", count=9))

    def test_f7_impossible_rules_are_refused(self, broker: Broker) -> None:
        broker.create_queue("orders", type="pull")
        for wrong in ({"rate": "fast"}, {"limits": {"a": -1}}, {"ordered": True, "acknowledge": "none"}):
            with pytest.raises(InvalidOption):
                broker.configure_queue("orders", **wrong)
        assert not broker.queue("orders").options.has_flow
