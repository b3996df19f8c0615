"""Who gets which message, in which order, and how fast (Q1, Q2, Q8, Q15, Q16)."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import pytest

from remuda.broker.port import Broker
from remuda.model.errors import InvalidOption
from remuda.model.message import Message
from tests.conformance.kit import (
    MOMENT,
    SOON,
    Backend,
    Conformance,
    bodies_of,
    eventually,
    numbered,
    pulled,
    received,
    restarted,
    state_of,
    urgent,
    view,
    waiting_bodies,
)


class Push(Conformance):
    def test_q1_push_gives_every_message_to_every_consumer(self, broker: Broker) -> None:
        broker.create_queue("orders", type="push", acknowledge="none")
        consumers = [broker.subscribe("orders") for _ in range(3)]
        broker.publish(numbered(3))
        for consumer in consumers:
            assert [received(consumer).bodies for _ in range(3)] == [[b"0"], [b"1"], [b"2"]]

    def test_q1_push_the_first_answer_settles(self, broker: Broker) -> None:
        broker.create_queue("orders", type="push")
        first, second = broker.subscribe("orders"), broker.subscribe("orders")
        receipt = broker.publish(numbered(1))
        ours, theirs = received(first), received(second)
        assert theirs.ack() == 1
        assert state_of(broker, receipt.id) == "X"
        assert ours.ack() == 0
        assert ours.nack() == 0
        assert broker.queue("orders").size == 0

    def test_q1_push_keeps_messages_until_someone_comes(self, broker: Broker) -> None:
        broker.create_queue("orders", type="push")
        broker.publish(numbered(3))
        assert broker.queue("orders").waiting == 3
        assert bodies_of(broker.subscribe("orders"), 3) == [b"0", b"1", b"2"]

    def test_q2_push_waits_for_the_first_answer(self, broker: Broker) -> None:
        broker.create_queue("orders", type="push", acknowledge="wait")
        first, second = broker.subscribe("orders"), broker.subscribe("orders")
        broker.publish(numbered(2))
        held = received(first)
        assert received(second).bodies == [b"0"]
        assert first.receive(MOMENT) is None
        held.ack()
        assert received(second).bodies == [b"1"]
        assert received(first).bodies == [b"1"]

    def test_q2_push_just_request_never_pauses(self, broker: Broker) -> None:
        broker.create_queue("orders", type="push", acknowledge="just-request")
        consumer = broker.subscribe("orders")
        broker.publish(numbered(3))
        held = [received(consumer) for _ in range(3)]
        assert broker.queue("orders").in_flight == 3
        assert [delivery.ack() for delivery in held] == [1, 1, 1]

    def test_q2_push_stays_paused_when_one_of_two_consumers_leaves(self, broker: Broker) -> None:
        broker.create_queue("orders", type="push", acknowledge="wait")
        anna, bert = broker.subscribe("orders"), broker.subscribe("orders")
        broker.publish(numbered(2))
        first, _ = received(anna), received(bert)
        bert.close()
        assert anna.receive(MOMENT) is None
        first.ack()
        assert received(anna).bodies == [b"1"]


class RoundRobin(Conformance):
    def test_q1_round_robin_gives_each_message_to_one_in_the_order_of_coming(self, broker: Broker) -> None:
        broker.create_queue("orders")
        consumers = [broker.subscribe("orders", consumer=name) for name in "zab"]
        broker.publish(numbered(3))
        assert [received(consumer).bodies for consumer in consumers] == [[b"0"], [b"1"], [b"2"]]
        assert [consumer.receive(0) for consumer in consumers] == [None, None, None]

    def test_q1_round_robin_goes_around(self, broker: Broker) -> None:
        broker.create_queue("orders", acknowledge="just-request")
        consumers = [broker.subscribe("orders") for _ in range(3)]
        broker.publish(numbered(7))
        shares = [[b"0", b"3", b"6"], [b"1", b"4"], [b"2", b"5"]]
        for consumer, share in zip(consumers, shares, strict=True):
            assert bodies_of(consumer, len(share)) == share

    def test_q1_round_robin_prefers_whoever_is_available(self, broker: Broker) -> None:
        broker.create_queue("orders")
        first, second = broker.subscribe("orders"), broker.subscribe("orders")
        broker.publish(numbered(2))
        received(first)
        received(second).ack()
        broker.publish(numbered(1, start=2))
        assert received(second).bodies == [b"2"]
        assert first.receive(0) is None

    def test_q2_round_robin_allows_one_unanswered_message_per_consumer(self, broker: Broker) -> None:
        broker.create_queue("orders")
        consumer = broker.subscribe("orders")
        broker.publish(numbered(2))
        held = received(consumer)
        assert consumer.receive(MOMENT) is None
        held.ack()
        assert received(consumer).bodies == [b"1"]

    def test_q2_round_robin_just_request_never_pauses(self, broker: Broker) -> None:
        broker.create_queue("orders", acknowledge="just-request")
        consumer = broker.subscribe("orders")
        ids = broker.publish(numbered(3)).ids
        held = [received(consumer) for _ in range(3)]
        assert [state_of(broker, one) for one in ids] == ["F", "F", "F"]
        assert held[1].ack() == 1
        assert [state_of(broker, one) for one in ids] == ["F", "X", "F"]

    @pytest.mark.parametrize("type", ["push", "round-robin"])
    def test_q2_none_is_kicked_after_the_send(self, broker: Broker, type: str) -> None:
        broker.create_queue("orders", type=type, acknowledge="none")
        receipt = broker.publish(numbered(1))
        assert state_of(broker, receipt.id) == "Q"
        delivery = received(broker.subscribe("orders"))
        assert delivery.bodies == [b"0"]
        assert state_of(broker, receipt.id) == "K"
        assert delivery.ack() == 0
        assert broker.queue("orders").size == 0

    def test_a_subscriber_can_take_batches(self, broker: Broker) -> None:
        broker.create_queue("orders")
        consumer = broker.subscribe("orders", batch=4)
        broker.publish(numbered(10))
        sizes: list[int] = []
        while sum(sizes) < 10:
            delivery = received(consumer)
            sizes.append(delivery.ack())
        assert sizes == [4, 4, 2]

    def test_q2_credit_is_counted_in_messages_and_given_back_answer_by_answer(self, broker: Broker) -> None:
        broker.create_queue("orders", type="round-robin")
        with broker.subscribe("orders", credit=2) as subscription:
            broker.publish(numbered(4))
            first, _ = received(subscription), received(subscription)
            assert subscription.receive(MOMENT) is None
            first.ack()
            assert received(subscription).bodies == [b"2"]
            assert subscription.receive(MOMENT) is None

    def test_q2_a_group_shares_its_credit_over_two_queues(self, broker: Broker) -> None:
        for name in ("orders", "mails"):
            broker.create_queue(name, type="round-robin")
        orders = broker.subscribe("orders", credit=1, group="both")
        mails = broker.subscribe("mails", credit=1, group="both")
        broker.publish([Message("orders", b"order"), Message("mails", b"mail")])
        first = received(orders)
        assert mails.receive(MOMENT) is None
        first.ack()
        assert received(mails).bodies == [b"mail"]


class Pull(Conformance):
    @pytest.fixture
    def broker(self, backend: Backend) -> Broker:
        broker = backend.open()
        broker.create_queue("orders", type="pull")
        return broker

    def test_q1_pull_gives_only_on_request(self, broker: Broker) -> None:
        broker.publish(numbered(1))
        assert broker.queue("orders").waiting == 1
        assert pulled(broker).bodies == [b"0"]

    def test_q1_a_subscriber_of_a_pull_queue_asks_again_whenever_it_has_credit(self, broker: Broker) -> None:
        consumer = broker.subscribe("orders")
        broker.publish(numbered(3))
        assert bodies_of(consumer, 3) == [b"0", b"1", b"2"]

    def test_q1_pull_gives_a_message_to_one_only(self, broker: Broker) -> None:
        broker.publish(numbered(1))
        pulled(broker)
        assert broker.pull("orders") is None

    @pytest.mark.parametrize("kind", ["push", "round-robin"])
    def test_q1_every_queue_can_be_asked(self, broker: Broker, kind: str) -> None:
        broker.create_queue("other", type=kind)
        broker.publish(numbered(1), queue="other")
        assert pulled(broker, "other").ack() == 1

    def test_q2_a_pull_never_blocks_another(self, broker: Broker) -> None:
        broker.publish(numbered(3))
        held = [pulled(broker, consumer="same") for _ in range(3)]
        assert [delivery.bodies for delivery in held] == [[b"0"], [b"1"], [b"2"]]
        assert held[2].ack() == 1

    def test_q2_a_pull_without_acknowledgement_is_kicked(self, broker: Broker) -> None:
        broker.configure_queue("orders", acknowledge="none")
        receipt = broker.publish(numbered(1))
        pulled(broker)
        assert state_of(broker, receipt.id) == "K"

    def test_q16_count(self, broker: Broker) -> None:
        broker.publish(numbered(5))
        assert pulled(broker, count=3).bodies == [b"0", b"1", b"2"]
        assert pulled(broker, count=3).bodies == [b"3", b"4"]

    @pytest.mark.parametrize("count", [0, -1])
    def test_q16_an_impossible_count_is_refused(self, broker: Broker, count: int) -> None:
        with pytest.raises(InvalidOption, match="count must be a whole number, 1 or more"):
            broker.pull("orders", count)

    def test_q16_oldest_first_is_the_usual_order(self, broker: Broker) -> None:
        for message in numbered(4):
            broker.publish(message)
        assert pulled(broker, count=4).bodies == [b"0", b"1", b"2", b"3"]

    def test_q16_newest_first(self, broker: Broker) -> None:
        broker.publish(numbered(3))
        broker.publish(numbered(2, start=3))
        assert pulled(broker, count=3, newest=True).bodies == [b"4", b"3", b"2"]
        assert waiting_bodies(broker) == [b"0", b"1"]

    def test_q16_newest_first_still_takes_high_priority_before(self, broker: Broker) -> None:
        broker.publish([urgent(b"h0"), urgent(b"h1"), *numbered(2)])
        assert pulled(broker, count=3, newest=True).bodies == [b"h1", b"h0", b"1"]

    @pytest.mark.parametrize(
        ("clear_after", "left"),
        [
            ("none", [b"h1", b"0", b"1"]),
            ("all", []),
            ("priority", [b"0", b"1"]),
            ("regular", [b"h1"]),
        ],
    )
    def test_q16_clear_after(self, broker: Broker, clear_after: str, left: list[bytes]) -> None:
        broker.publish([urgent(b"h0"), urgent(b"h1"), *numbered(2)])
        assert pulled(broker, clear_after=clear_after).bodies == [b"h0"]
        assert waiting_bodies(broker) == left

    def test_q16_clear_after_counts_for_a_pull_that_waited(self, broker: Broker) -> None:
        with ThreadPoolExecutor() as pool:
            asked = pool.submit(broker.pull, "orders", 1, clear_after="all", timeout=SOON)
            eventually(lambda: broker.queue("orders").pulls == 1)
            broker.publish(numbered(3))
            delivery = asked.result()
        assert delivery is not None
        assert delivery.bodies == [b"0"]
        assert broker.queue("orders").waiting == 0

    def test_q16_an_unknown_clear_after_is_refused(self, broker: Broker) -> None:
        broker.publish(numbered(1))
        with pytest.raises(InvalidOption, match="clear_after must be one of none, all, priority, regular"):
            broker.pull("orders", clear_after="some")
        assert waiting_bodies(broker) == [b"0"]

    def test_q16_the_answer_tells_what_remains(self, broker: Broker) -> None:
        broker.publish([urgent(b"h0"), urgent(b"h1"), *numbered(3)])
        assert pulled(broker).remaining == (1, 3)
        assert pulled(broker, count=3).remaining == (0, 1)

    def test_q16_a_pull_may_wait(self, broker: Broker) -> None:
        with ThreadPoolExecutor() as pool:
            asked = pool.submit(broker.pull, "orders", 2, timeout=SOON)
            eventually(lambda: broker.queue("orders").pulls == 1)
            broker.publish(numbered(2))
            delivery = asked.result()
        assert delivery is not None
        assert delivery.bodies == [b"0", b"1"]
        assert delivery.ack() == 2

    def test_q16_who_asked_first_is_served_first(self, broker: Broker) -> None:
        with ThreadPoolExecutor() as pool:
            first = pool.submit(broker.pull, "orders", timeout=SOON)
            eventually(lambda: broker.queue("orders").pulls == 1)
            second = pool.submit(broker.pull, "orders", timeout=SOON)
            eventually(lambda: broker.queue("orders").pulls == 2)
            broker.publish(numbered(2))
            answers = [first.result(), second.result()]
        assert [answer and answer.bodies for answer in answers] == [[b"0"], [b"1"]]

    def test_q16_a_pull_in_vain_takes_nothing_later(self, broker: Broker) -> None:
        assert broker.pull("orders", timeout="20ms") is None
        broker.publish(numbered(1))
        assert waiting_bodies(broker) == [b"0"]


class Order(Conformance):
    """Q15: high before normal, first in first out inside each."""

    def test_q15_high_priority_goes_first(self, broker: Broker) -> None:
        broker.create_queue("orders", type="pull")
        broker.publish([*numbered(2), urgent(b"h0"), *numbered(1, start=2), urgent(b"h1")])
        assert waiting_bodies(broker) == [b"h0", b"h1", b"0", b"1", b"2"]

    @pytest.mark.parametrize("type", ["push", "round-robin"])
    def test_q15_each_consumer_sees_the_order(self, broker: Broker, type: str) -> None:
        broker.create_queue("orders", type=type)
        broker.publish([*numbered(3), urgent(b"h0"), urgent(b"h1")])
        assert bodies_of(broker.subscribe("orders"), 5) == [b"h0", b"h1", b"0", b"1", b"2"]

    def test_q15_order_survives_restarts(self, backend: Backend, broker: Broker) -> None:
        broker.create_queue("orders", type="pull")
        broker.publish([urgent(b"h0"), *numbered(3)])
        assert pulled(broker, count=2).ack() == 2
        broker = restarted(backend, broker)
        broker.publish([urgent(b"h1"), *numbered(2, start=3)])
        broker = restarted(backend, broker)
        assert waiting_bodies(broker) == [b"h1", b"1", b"2", b"3", b"4"]

    def test_q15_many_batches_stay_in_order(self, broker: Broker) -> None:
        broker.create_queue("orders", type="pull", queue_size=100)
        for start in range(0, 2000, 40):
            broker.publish(numbered(40, start=start))
        found: list[bytes] = []
        while (delivery := broker.pull("orders", 73)) is not None:
            found += delivery.bodies
            delivery.ack()
        assert found == [b"%d" % number for number in range(2000)]

    def test_q15_each_producers_order_is_kept_under_load(self, broker: Broker) -> None:
        broker.create_queue("orders")
        consumer = broker.subscribe("orders", batch=16)

        def produce(producer: int) -> None:
            for number in range(40):
                broker.publish(Message("orders", b"%d %d" % (producer, number)))

        with ThreadPoolExecutor(6) as pool:
            work = [pool.submit(produce, producer) for producer in range(6)]
            found = bodies_of(consumer, 240)
            for one in work:
                one.result()
        for producer in range(6):
            own = [int(body.split()[1]) for body in found if int(body.split()[0]) == producer]
            assert own == list(range(40))

    def test_q15_each_message_goes_to_one_of_many_consumers(self, broker: Broker) -> None:
        broker.create_queue("orders")
        subscriptions = [broker.subscribe("orders", batch=3) for _ in range(4)]
        found: list[list[int]] = [[] for _ in subscriptions]
        done = threading.Event()

        def consume(index: int) -> None:
            while not done.is_set():
                delivery = subscriptions[index].receive("20ms")
                if delivery is not None:
                    found[index] += [int(body) for body in delivery.bodies]
                    delivery.ack()

        with ThreadPoolExecutor(4) as pool:
            work = [pool.submit(consume, index) for index in range(4)]
            for start in range(0, 200, 10):
                broker.publish(numbered(10, start=start))
            eventually(lambda: broker.queue("orders").size == 0)
            done.set()
            for one in work:
                one.result()
        assert sorted(number for share in found for number in share) == list(range(200))
        assert all(share == sorted(share) for share in found)

    def test_q15_32_priorities_each_first_in_first_out(self, broker: Broker) -> None:
        broker.create_queue("orders", type="pull")
        levels = [7, 0, 31, 7, 15, 31, 0, 1]
        broker.publish([Message("orders", b"%d.%d" % (level, at), priority=level) for at, level in enumerate(levels)])
        assert waiting_bodies(broker) == [b"31.2", b"31.5", b"15.4", b"7.0", b"7.3", b"1.7", b"0.1", b"0.6"]


class Pace(Conformance):
    """Q8: a queue that sends no faster than it is told."""

    @pytest.mark.parametrize("options", [{"type": "push"}, {"type": "round-robin"}, {"type": "pull"}])
    def test_q8_delay_between_messages_is_queue_wide(self, broker: Broker, options: dict[str, Any]) -> None:
        broker.create_queue("orders", acknowledge="just-request", delay_between_messages="30ms", **options)
        for _ in range(2):
            broker.subscribe("orders", batch=10)
        ids = broker.publish(numbered(4)).ids
        eventually(lambda: broker.queue("orders").waiting == 0)
        sent = [view(broker, one).consumed for one in ids]
        for earlier, later in pairwise(sent):
            assert earlier is not None
            assert later is not None
            assert later - earlier >= 30_000

    def test_q8_none_unless_said_otherwise(self, broker: Broker) -> None:
        broker.create_queue("orders", acknowledge="none")
        consumer = broker.subscribe("orders", batch=10)
        broker.publish(numbered(10))
        assert len(received(consumer)) == 10

    def test_q8_pulls_keep_the_pause_and_are_woken_at_its_end(self, broker: Broker) -> None:
        broker.create_queue("orders", type="pull", delay_between_messages="100ms")
        ids = broker.publish(numbered(3)).ids
        assert pulled(broker, count=3).bodies == [b"0"]
        assert broker.pull("orders") is None
        for body in (b"1", b"2"):
            delivery = broker.pull("orders", 3, timeout="20s")
            assert delivery is not None
            assert delivery.bodies == [body]
        sent = [view(broker, one).consumed or 0 for one in ids]
        for earlier, later in pairwise(sent):
            assert 100_000 <= later - earlier < 5_000_000

    def test_q8_a_subscriber_that_joins_within_the_pause_is_served_at_its_end(self, broker: Broker) -> None:
        broker.create_queue("orders", delay_between_messages="200ms")
        broker.publish(numbered(2))
        pulled(broker).ack()
        began = time.monotonic()
        delivery = broker.subscribe("orders").receive("20s")
        assert delivery is not None
        assert delivery.bodies == [b"1"]
        assert time.monotonic() - began < 5
