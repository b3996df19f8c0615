"""How queues come to be, what they can be told, and how they go (Q1, Q7, Q10, Q11, Q13, Q14)."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest

from remuda.broker.port import Broker
from remuda.model.errors import (
    BrokerClosed,
    Conflict,
    ConsumersFull,
    InvalidOption,
    MessageTooLarge,
    NotFound,
    QueueNotAccepting,
)
from remuda.model.message import Message
from remuda.model.queues.options import QueueOptions, QueueType, Status
from tests.conformance.kit import (
    MOMENT,
    SOON,
    Backend,
    Conformance,
    bodies_of,
    eventually,
    numbered,
    pulled,
    queue_names,
    received,
    restarted,
    state_of,
    waiting_bodies,
)

DEFAULTS = {
    "type": "round-robin",  # Q1
    "acknowledge": "wait",  # Q2
    "acknowledge_timeout": 15_000_000,  # Q3
    "commit_when": "received",  # Q4
    "message_timeout": 0,  # Q5
    "expired_queue": None,
    "message_limit": 0,  # Q6
    "limit_exceeded": "reject-new",
    "byte_limit": 0,
    "message_size_limit": 0,  # Q7
    "client_limit": 0,
    "delay_between_messages": 0,  # Q8
    "put_back": "regular",  # Q9
    "put_back_delay": 0,
    "auto_destroy": "disabled",  # Q10
    "unique_ids": False,  # Q12
    "persistence": "persistent",  # Q17
    "confirmations": 1,  # M8
    "queue_size": 500,  # Q21
    "topics": (),  # T2
    "patterns": (),
    "delivery_limit": 0,
    "dead_letter_queue": None,
    "max_priority": 31,
    "single_active_consumer": False,
    "flow_key": "key",  # F1
    "ordered": False,
    "on_retry": "auto",
    "concurrency": 0,  # F2
    "concurrency_per_key": 0,
    "limits": (),
    "key_limits": (),
    "rate": None,  # F3
    "rate_per_key": None,
    "fair": False,  # F5
    "weights": (),
    "debounce": 0,  # F4
    "max_wait": 0,
    "throttle": 0,
    "singleton": "no",
}
OTHERS: dict[str, Any] = {
    "acknowledge": "just-request",
    "acknowledge_timeout": "1s",
    "commit_when": "none",
    "message_timeout": "1h",
    "expired_queue": "late",
    "message_limit": 9,
    "limit_exceeded": "delete-oldest",
    "message_size_limit": 99,
    "client_limit": 7,
    "delay_between_messages": "1ms",
    "put_back": "priority",
    "put_back_delay": "2ms",
    "auto_destroy": "empty",
    "unique_ids": True,
    "queue_size": 50,
    "flow_key": "header:tenant",
    "ordered": True,
    "on_retry": "pass",
    "concurrency": 8,
    "concurrency_per_key": 2,
    "limits": {"mail": 5},
    "rate": "100/s",
    "rate_per_key": "10/min",
    "fair": True,
    "weights": {"gold": 3},
    "singleton": "replace",
    "max_wait": "1h",
}


def as_told(options: QueueOptions) -> dict[str, Any]:
    return msgspec.structs.asdict(options)


class Options(Conformance):
    def test_defaults_of_q1_to_q17_and_q21(self, broker: Broker) -> None:
        broker.create_queue("orders")
        assert as_told(broker.queue("orders").options) == DEFAULTS

    def test_the_broker_can_have_other_defaults(self, backend: Backend) -> None:
        broker = backend.open(queue_defaults={"type": "pull", "message_limit": 3})
        broker.publish(numbered(1))
        broker.create_queue("mixed", message_limit=4)
        broker.create_queue("own", QueueOptions.parse(message_limit=5))
        assert broker.queue("orders").options == QueueOptions.parse(type="pull", message_limit=3)
        assert broker.queue("mixed").options == QueueOptions.parse(type="pull", message_limit=4)
        assert broker.queue("own").options == QueueOptions.parse(message_limit=5), "which names them all"

    def test_options_are_taken_as_people_write_them(self, broker: Broker) -> None:
        broker.create_queue("orders", type="round_robin", acknowledge_timeout="250ms", put_back_delay=1.5)
        options = broker.queue("orders").options
        assert options.type is QueueType.ROUND_ROBIN
        assert options.acknowledge_timeout == 250_000
        assert options.put_back_delay == 1_500_000

    def test_options_survive_a_restart(self, backend: Backend, broker: Broker) -> None:
        broker.create_queue("orders", type="push", **OTHERS)
        before = broker.queue("orders").options
        broker = restarted(backend, broker)
        assert broker.queue("orders").options == before
        assert before == QueueOptions.parse(OTHERS, type="push")

    @pytest.mark.parametrize(
        ("options", "says"),
        [
            ({"mesage_limit": 5}, "unknown queue option 'mesage_limit'; did you mean 'message_limit'"),
            ({"zzz": 5}, "unknown queue option 'zzz'; the options are acknowledge, "),
            ({"type": "stack"}, "type must be one of push, round-robin, pull; not 'stack'"),
            ({"acknowledge": 3}, "acknowledge must be one of none, just-request, wait; not 3"),
            ({"acknowledge_timeout": 0}, "acknowledge_timeout must be longer than zero"),
            ({"acknowledge_timeout": "soon"}, "acknowledge_timeout: 'soon' is not a duration"),
            ({"message_timeout": -1}, "message_timeout: -1 is negative"),
            ({"message_limit": -1}, "message_limit must be a whole number, 0 or more, not -1"),
            ({"message_limit": 1.5}, "message_limit must be a whole number"),
            ({"message_limit": True}, "message_limit must be a whole number"),
            ({"client_limit": "many"}, "client_limit must be a whole number"),
            ({"unique_ids": "yes"}, "unique_ids must be true or false, not 'yes'"),
            ({"put_back": "maybe"}, "put_back must be one of no, priority, regular"),
            ({"auto_destroy": "always"}, "auto_destroy must be one of disabled, no-messages, no-consumers, empty"),
            ({"limit_exceeded": "explode"}, "limit_exceeded must be one of reject-new, delete-oldest"),
            ({"commit_when": "later"}, "commit_when must be one of none, received, sent, acknowledged"),
            ({"persistence": "tape"}, "persistence must be one of persistent, memory"),
            ({"expired_queue": 5}, "expired_queue must be 1 to 255 bytes of printable text, not 5"),
            ({"topics": "fruit"}, "topics must be a list of topics"),
            ({"confirmations": 2}, "confirmations=2 needs type='push'"),
        ],
    )
    def test_an_unknown_or_impossible_option_is_refused(
        self, broker: Broker, options: dict[str, Any], says: str
    ) -> None:
        for attempt in (
            lambda: broker.create_queue("orders", **options),
            lambda: broker.publish(numbered(1), options=options),
            lambda: broker.subscribe("orders", options=options),
        ):
            with pytest.raises(InvalidOption) as caught:
                attempt()
            assert says in str(caught.value)
        assert queue_names(broker) == []

    @pytest.mark.parametrize("name", ["", "x" * 256, "tab\there"])
    def test_an_impossible_name_is_refused(self, broker: Broker, name: str) -> None:
        with pytest.raises(InvalidOption, match=r"1 to 255 bytes of printable text|longer than 255 bytes"):
            broker.create_queue(name)
        assert queue_names(broker) == []


class Creation(Conformance):
    """Q13: three ways to create a queue; Q11: none of them when it is forbidden."""

    def test_q13_created_explicitly(self, broker: Broker) -> None:
        assert broker.create_queue("orders", type="pull").created
        assert broker.queue("orders").status is Status.RUNNING

    def test_q13_created_by_the_first_publish(self, broker: Broker) -> None:
        broker.publish(numbered(1), options={"type": "pull", "message_limit": 3})
        assert broker.queue("orders").status is Status.RUNNING
        assert broker.queue("orders").options == QueueOptions.parse(type="pull", message_limit=3)

    def test_q13_created_by_a_subscriber_it_waits_for_its_type(self, broker: Broker) -> None:
        broker.subscribe("orders")
        assert broker.queue("orders").status is Status.NOT_INITIALIZED

    def test_q13_the_first_publish_initializes_it(self, broker: Broker) -> None:
        subscription = broker.subscribe("orders")
        broker.publish(numbered(2), options={"type": "push"})
        assert broker.queue("orders").status is Status.RUNNING
        assert broker.queue("orders").options.type is QueueType.PUSH
        assert bodies_of(subscription, 2) == [b"0", b"1"]

    def test_q13_a_subscriber_that_names_a_type_initializes_it(self, broker: Broker) -> None:
        broker.subscribe("orders", consumer="first")
        broker.subscribe("orders", consumer="second", options={"type": "push"})
        assert broker.queue("orders").status is Status.RUNNING
        assert broker.queue("orders").options.type is QueueType.PUSH

    def test_q13_creating_it_initializes_it(self, broker: Broker) -> None:
        broker.subscribe("orders")
        assert broker.create_queue("orders", type="push").created
        assert broker.queue("orders").options.type is QueueType.PUSH

    def test_q13_not_initialized_survives_a_restart(self, backend: Backend, broker: Broker) -> None:
        broker.subscribe("orders")
        broker = restarted(backend, broker)
        assert broker.queue("orders").status is Status.NOT_INITIALIZED
        broker.publish(numbered(1), options={"type": "pull"})
        assert waiting_bodies(broker) == [b"0"]

    def test_q13_the_creators_options_stand_and_the_caller_is_told(self, broker: Broker) -> None:
        broker.create_queue("orders", type="pull", message_limit=3)
        told = broker.create_queue("orders", type="push", message_limit=3, unique_ids=True)
        assert not told.created
        assert told.differs == {"type": (QueueType.PUSH, QueueType.PULL), "unique_ids": (True, False)}
        assert broker.queue("orders").options == QueueOptions.parse(type="pull", message_limit=3)

    def test_q13_asking_for_the_same_again_tells_of_no_difference(self, broker: Broker) -> None:
        broker.create_queue("orders", type="pull")
        assert broker.create_queue("orders", type="pull").differs == {}
        assert broker.create_queue("orders").differs == {}

    def test_q13_a_publisher_with_other_options_is_told(self, broker: Broker) -> None:
        broker.create_queue("orders", type="pull", message_limit=3)
        receipt = broker.publish(numbered(1), options={"type": "pull", "message_limit": 5})
        assert receipt.differs == {"orders": {"message_limit": (5, 3)}}
        assert broker.publish(numbered(1)).differs == {}
        assert broker.queue("orders").options.message_limit == 3

    def test_q13_a_subscriber_with_other_options_is_told(self, broker: Broker) -> None:
        broker.create_queue("orders", type="push", message_limit=3)
        other = broker.subscribe("orders", options={"type": "round-robin", "message_limit": 3})
        assert other.differs == {"type": (QueueType.ROUND_ROBIN, QueueType.PUSH)}
        assert broker.subscribe("orders").differs == {}
        assert broker.queue("orders").options.type is QueueType.PUSH

    def test_q13_options_of_a_live_queue_can_be_changed(self, broker: Broker) -> None:
        broker.create_queue("orders", type="push")
        broker.publish(numbered(1))
        for name, value in OTHERS.items():
            changed = broker.configure_queue("orders", **{name: value})
            assert getattr(changed, name) != DEFAULTS[name]
        assert broker.queue("orders").options == QueueOptions.parse(OTHERS, type="push")

    def test_q13_changed_options_count_at_once(self, backend: Backend, broker: Broker) -> None:
        broker.create_queue("orders", type="pull")
        broker.configure_queue("orders", message_size_limit=1)
        with pytest.raises(MessageTooLarge):
            broker.publish(Message("orders", b"long"))
        broker = restarted(backend, broker)
        assert broker.queue("orders").options.message_size_limit == 1

    def test_q13_a_tighter_limit_evicts_at_once(self, broker: Broker) -> None:
        broker.create_queue("orders", type="pull")
        broker.publish(numbered(5))
        broker.configure_queue("orders", message_limit=2, limit_exceeded="delete-oldest")
        assert waiting_bodies(broker) == [b"3", b"4"]

    def test_q1_the_type_is_fixed_once_initialized(self, broker: Broker) -> None:
        broker.create_queue("orders", type="pull")
        with pytest.raises(InvalidOption, match="is a pull queue and stays one; create another queue"):
            broker.configure_queue("orders", type="push")
        assert broker.queue("orders").options.type is QueueType.PULL

    def test_q1_the_type_is_open_until_initialized(self, broker: Broker) -> None:
        broker.subscribe("orders")
        assert broker.configure_queue("orders", type="push").type is QueueType.PUSH

    def test_q11_nothing_is_created_when_it_is_forbidden(self, backend: Backend) -> None:
        broker = backend.open(auto_queue_creation=False)
        for attempt in (
            lambda: broker.publish(numbered(1)),
            lambda: broker.publish(numbered(1), queue="orders"),
            lambda: broker.subscribe("orders"),
            lambda: broker.subscribe("orders", options={"type": "push"}),
            lambda: broker.pull("orders"),
        ):
            with pytest.raises(NotFound, match="no queue 'orders' and auto_queue_creation is off; nothing was stored"):
                attempt()
        assert broker.queues() == []

    def test_q11_explicit_creation_is_always_allowed(self, backend: Backend) -> None:
        broker = backend.open(auto_queue_creation=False)
        broker.create_queue("orders", type="pull")
        broker.publish(numbered(1))
        assert waiting_bodies(broker) == [b"0"]

    def test_q11_one_unknown_queue_of_two_stores_nothing(self, backend: Backend) -> None:
        broker = backend.open(auto_queue_creation=False)
        broker.create_queue("orders", type="pull")
        with pytest.raises(NotFound):
            broker.publish(Message("orders", b"", topics=("orders.a", "unknown.b")))
        assert broker.queue("orders").size == 0

    def test_q11_is_on_unless_said_otherwise(self, broker: Broker) -> None:
        assert broker.pull("asked") is None
        broker.subscribe("heard")
        broker.publish(numbered(1, "told"))
        assert queue_names(broker) == ["asked", "heard", "told"]

    def test_verbs_on_an_unknown_queue_say_so(self, broker: Broker) -> None:
        for attempt in (
            lambda: broker.queue("orders"),
            lambda: broker.configure_queue("orders", message_limit=1),
            lambda: broker.set_status("orders", "paused"),
            lambda: broker.remove_queue("orders"),
            lambda: broker.clear("orders"),
            lambda: broker.reprocess("orders"),
            lambda: broker.forget("orders"),
        ):
            with pytest.raises(NotFound, match="there is no queue 'orders'"):
                attempt()

    def test_q13_a_subscribers_options_survive_the_first_publish(self, broker: Broker) -> None:
        with broker.subscribe("orders", options={"message_limit": 2}) as subscription:
            assert subscription.differs == {}
            broker.publish(Message("orders", b"0"))
            assert broker.queue("orders").options.message_limit == 2

    def test_q13_only_what_was_named_differs(self, broker: Broker) -> None:
        broker.create_queue("orders", type="push", message_limit=5, acknowledge_timeout="1m")
        with broker.subscribe("orders", options={"message_limit": 7}) as subscription:
            assert set(subscription.differs) == {"message_limit"}
        assert set(broker.create_queue("orders", type="push", put_back="no").differs) == {"put_back"}
        assert broker.publish(Message("orders", b"0"), options={"type": "push"}).differs == {}

    def test_q13_a_queue_made_by_a_pull_can_be_pulled(self, broker: Broker) -> None:
        assert broker.pull("orders") is None
        assert broker.queue("orders").status is Status.NOT_INITIALIZED
        broker.publish(Message("orders", b"0"))
        assert pulled(broker).bodies == [b"0"]


class Statuses(Conformance):
    """Q14: a queue can take, give, both or neither."""

    def test_q14_running_takes_and_gives(self, broker: Broker) -> None:
        broker.create_queue("orders", type="pull")
        broker.publish(numbered(1))
        assert waiting_bodies(broker) == [b"0"]

    def test_q14_only_publish_takes_and_keeps(self, broker: Broker) -> None:
        broker.create_queue("orders")
        subscription = broker.subscribe("orders")
        broker.set_status("orders", "only-publish")
        broker.publish(numbered(1))
        assert subscription.receive(MOMENT) is None
        broker.set_status("orders", "running")
        assert bodies_of(subscription, 1) == [b"0"]

    def test_q14_only_consume_gives_and_takes_nothing(self, broker: Broker) -> None:
        broker.create_queue("orders", type="pull")
        broker.publish(numbered(1))
        broker.set_status("orders", Status.ONLY_CONSUME)
        with pytest.raises(QueueNotAccepting, match=r"is only-consume and takes no messages.*not stored.*running"):
            broker.publish(numbered(1))
        assert waiting_bodies(broker) == [b"0"]

    def test_q14_paused_neither_takes_nor_gives(self, broker: Broker) -> None:
        broker.create_queue("orders", type="pull")
        broker.publish(numbered(1))
        broker.set_status("orders", "paused")
        with pytest.raises(QueueNotAccepting):
            broker.publish(numbered(1))
        assert broker.pull("orders") is None
        assert broker.queue("orders").waiting == 1

    def test_q14_a_paused_queue_still_hears_answers(self, broker: Broker) -> None:
        broker.create_queue("orders", type="pull")
        broker.publish(numbered(1))
        delivery = pulled(broker)
        broker.set_status("orders", "paused")
        assert delivery.ack() == 1
        assert broker.queue("orders").size == 0

    @pytest.mark.parametrize("status", ["running", "only-publish", "only-consume", "paused"])
    def test_q14_status_survives_a_restart(self, backend: Backend, broker: Broker, status: str) -> None:
        broker.create_queue("orders")
        broker.set_status("orders", status)
        assert broker.queue("orders").status.value == status
        broker = restarted(backend, broker)
        assert broker.queue("orders").status.value == status

    def test_q14_nobody_can_undo_the_initialization(self, broker: Broker) -> None:
        broker.create_queue("orders")
        with pytest.raises(Conflict, match="is running and cannot be set to not-initialized"):
            broker.set_status("orders", "not-initialized")

    def test_q14_an_uninitialized_queue_has_no_other_status(self, broker: Broker) -> None:
        broker.subscribe("orders")
        with pytest.raises(Conflict, match="is not-initialized and cannot be set to paused"):
            broker.set_status("orders", "paused")

    def test_q14_an_unknown_status_is_refused(self, broker: Broker) -> None:
        broker.create_queue("orders")
        with pytest.raises(InvalidOption, match="status must be one of not-initialized, running, only-publish"):
            broker.set_status("orders", "tired")


class Consumers(Conformance):
    """Q7: how many may subscribe; and what a subscription is."""

    def test_q7_client_limit(self, broker: Broker) -> None:
        broker.create_queue("orders", client_limit=2)
        first, _ = broker.subscribe("orders"), broker.subscribe("orders")
        with pytest.raises(ConsumersFull, match="has 2 consumers, its client_limit; close one of them or raise"):
            broker.subscribe("orders")
        first.close()
        broker.subscribe("orders")
        assert len(broker.queue("orders").consumers) == 2

    def test_q7_a_limit_of_one_consumer(self, broker: Broker) -> None:
        """Q7: the second is refused as any other past the limit, also before the queue delivers."""
        broker.create_queue("orders", client_limit=1)
        broker.set_status("orders", "paused")
        first = broker.subscribe("orders")
        with pytest.raises(ConsumersFull, match="has 1 consumers, its client_limit; close one of them or raise"):
            broker.subscribe("orders")
        broker.set_status("orders", "running")
        with pytest.raises(ConsumersFull, match="has 1 consumers, its client_limit"):
            broker.subscribe("orders")
        first.close()
        second = broker.subscribe("orders")
        broker.publish(numbered(1, "orders"))
        delivery = second.receive(timeout=SOON)
        assert delivery is not None
        delivery.ack()

    def test_q7_no_client_limit_means_none(self, broker: Broker) -> None:
        broker.create_queue("orders", client_limit=0)
        for _ in range(50):
            broker.subscribe("orders")
        assert len(broker.queue("orders").consumers) == 50

    def test_a_consumers_name_is_unique_in_its_queue(self, broker: Broker) -> None:
        first = broker.subscribe("orders", consumer="anna")
        with pytest.raises(Conflict, match="already has a consumer named 'anna'"):
            broker.subscribe("orders", consumer="anna")
        broker.publish(numbered(1))
        assert received(first).consumer == "anna"

    @pytest.mark.parametrize("batch", [0, -1])
    def test_a_batch_holds_at_least_one(self, broker: Broker, batch: int) -> None:
        with pytest.raises(InvalidOption, match="batch must be a whole number, 1 or more"):
            broker.subscribe("orders", batch=batch)

    def test_closing_a_subscription_ends_its_loop(self, broker: Broker) -> None:
        with broker.subscribe("orders") as subscription:
            pass
        assert list(subscription) == []
        assert broker.queue("orders").consumers == ()


class AutoDestroy(Conformance):
    """Q10: queues that remove themselves. Nothing in flight or delayed is forgotten."""

    def test_q10_disabled_keeps_an_empty_queue(self, broker: Broker) -> None:
        broker.create_queue("orders", type="pull")
        broker.publish(numbered(1))
        pulled(broker).ack()
        assert queue_names(broker) == ["orders"]

    def test_q10_no_messages(self, broker: Broker) -> None:
        broker.create_queue("orders", auto_destroy="no-messages")
        subscription = broker.subscribe("orders")
        assert queue_names(broker) == ["orders"]
        broker.publish(numbered(2))
        received(subscription).ack()
        last = received(subscription)
        assert queue_names(broker) == ["orders"]
        last.ack()
        assert queue_names(broker) == []

    def test_q10_no_messages_waits_for_what_is_in_flight_or_delayed(self, broker: Broker) -> None:
        broker.create_queue("orders", type="pull", auto_destroy="no-messages", put_back_delay="300ms")
        broker.publish(numbered(1))
        pulled(broker).nack()
        assert queue_names(broker) == ["orders"]
        pulled(broker, timeout=SOON).ack()
        assert queue_names(broker) == []

    def test_q10_no_consumers(self, broker: Broker) -> None:
        broker.create_queue("orders", auto_destroy="no-consumers", acknowledge="none")
        first, second = broker.subscribe("orders"), broker.subscribe("orders")
        first.close()
        broker.set_status("orders", "only-publish")
        broker.publish(numbered(3))
        assert queue_names(broker) == ["orders"]
        second.close()
        assert queue_names(broker) == []

    def test_q10_empty_needs_neither_messages_nor_consumers(self, broker: Broker) -> None:
        broker.create_queue("orders", auto_destroy="empty")
        subscription = broker.subscribe("orders")
        broker.publish(numbered(1))
        bodies_of(subscription, 1)
        assert queue_names(broker) == ["orders"]
        subscription.close()
        assert queue_names(broker) == []

    def test_q10_empty_waits_for_the_last_message(self, broker: Broker) -> None:
        broker.create_queue("orders", type="pull", auto_destroy="empty")
        broker.publish(numbered(1))
        held = pulled(broker)
        assert queue_names(broker) == ["orders"]
        held.ack()
        eventually(lambda: queue_names(broker) == [])

    @pytest.mark.parametrize("auto_destroy", ["empty", "no-messages"])
    def test_q10_dead_letters_keep_their_queue(self, broker: Broker, auto_destroy: str) -> None:
        broker.create_queue("orders", type="pull", auto_destroy=auto_destroy)
        broker.publish(numbered(1))
        pulled(broker).dead(reason="no stock")
        assert [one.reason for one in broker.parked("orders")] == ["no stock"]
        broker.forget("orders")
        eventually(lambda: queue_names(broker) == [])

    def test_q10_a_removed_queue_lets_its_consumers_go(self, broker: Broker) -> None:
        broker.create_queue("orders", auto_destroy="no-messages")
        subscription = broker.subscribe("orders")
        broker.publish(numbered(1))
        assert [delivery.ack() for delivery in subscription] == [1]

    def test_removing_a_queue_ends_what_it_holds(self, backend: Backend, broker: Broker) -> None:
        broker.create_queue("orders", type="pull")
        ids = broker.publish(numbered(2)).ids
        held = pulled(broker)
        broker.remove_queue("orders", who="eve")
        assert queue_names(broker) == []
        assert [state_of(broker, one) for one in ids] == ["E", "E"]
        assert held.ack() == 0
        broker = restarted(backend, broker)
        assert queue_names(broker) == []

    def test_a_removed_queue_can_be_made_anew(self, broker: Broker) -> None:
        broker.create_queue("orders", type="pull")
        broker.publish(numbered(2))
        broker.remove_queue("orders")
        broker.publish(numbered(1, start=7), options={"type": "pull"})
        assert waiting_bodies(broker) == [b"7"]

    def test_q10_a_closed_broker_keeps_queues_without_consumers(self, backend: Backend, broker: Broker) -> None:
        broker.create_queue("orders", type="round-robin", auto_destroy="no-consumers")
        subscription = broker.subscribe("orders")
        broker.publish(numbered(2))
        received(subscription)
        broker = restarted(backend, broker)
        assert broker.queue("orders").options.auto_destroy.value == "no-consumers"
        with broker.subscribe("orders") as again:
            assert sorted(bodies_of(again, 2)) == [b"0", b"1"]


class Closing(Conformance):
    def test_a_closed_broker_says_so(self, broker: Broker) -> None:
        broker.create_queue("orders", type="pull")
        broker.publish(numbered(1))
        held = pulled(broker)
        broker.close()
        for attempt in (
            lambda: broker.publish(numbered(1)),
            lambda: broker.subscribe("orders"),
            lambda: broker.channel("mine", ["orders"]),
            lambda: broker.pull("orders"),
            lambda: broker.create_queue("more"),
            lambda: broker.queue("orders"),
            lambda: broker.queues(),
            lambda: broker.clear("orders"),
            lambda: broker.message(0),
            held.ack,
        ):
            with pytest.raises(BrokerClosed, match=r"closed.*open it again to go on.*accepted before is kept"):
                attempt()

    def test_closing_twice_is_no_error(self, broker: Broker) -> None:
        broker.close()
        broker.close()

    def test_closing_ends_the_loops_of_consumers(self, broker: Broker) -> None:
        subscription = broker.subscribe("orders")
        broker.close()
        assert subscription.receive() is None
        subscription.close()

    def test_closing_wakes_whoever_waits(self, broker: Broker) -> None:
        subscription = broker.subscribe("orders")
        broker.create_queue("asked", type="pull", commit_when="acknowledged")
        broker.create_queue("empty", type="pull")
        with ThreadPoolExecutor(3) as pool:
            receiving = pool.submit(subscription.receive)
            pulling = pool.submit(broker.pull, "empty", timeout=SOON)
            publishing = pool.submit(broker.publish, Message("asked", b""))
            eventually(lambda: broker.queue("empty").pulls and broker.queue("asked").waiting)
            broker.close()
            assert receiving.result(SOON) is None
            assert pulling.result(SOON) is None
            with pytest.raises(BrokerClosed, match="the message is kept"):
                publishing.result(SOON)

    def test_closing_a_subscription_wakes_its_thread(self, broker: Broker) -> None:
        subscription = broker.subscribe("orders")
        with ThreadPoolExecutor(1) as pool:
            receiving = pool.submit(subscription.receive)
            subscription.close()
            assert receiving.result(SOON) is None

    def test_closing_under_load_keeps_what_was_confirmed(self, backend: Backend, broker: Broker) -> None:
        broker.create_queue("orders", type="pull")
        confirmed: list[str] = []

        def produce() -> None:
            with contextlib.suppress(BrokerClosed):
                while True:
                    confirmed.extend(broker.publish(numbered(3)).ids)

        with ThreadPoolExecutor(4) as pool:
            work = [pool.submit(produce) for _ in range(4)]
            eventually(lambda: len(confirmed) > 50)
            broker.close()
            for one in work:
                one.result(SOON)
        broker = restarted(backend, broker)
        kept = {message.id for message in pulled(broker, count=1_000_000)}
        assert kept >= set(confirmed)

    def test_closing_puts_back_what_consumers_hold(self, backend: Backend, broker: Broker) -> None:
        broker.create_queue("orders")
        broker.publish(numbered(1))
        received(broker.subscribe("orders"))
        broker = restarted(backend, broker)
        again = received(broker.subscribe("orders"))
        assert again.bodies == [b"0"]
        assert again.attempts == [2]
