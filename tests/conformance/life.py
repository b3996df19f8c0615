"""A message's life: its states, its moves, its document, and what operators may do (M5, M6, M7, L8, Q17)."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from remuda.broker.delivery import Delivery
from remuda.broker.port import Broker
from remuda.model.errors import IllegalMove, InvalidOption, NotFound
from remuda.model.message import Message
from remuda.model.operations.filters import MessageFilter
from remuda.model.records import Appended
from remuda.model.state import State
from tests.conformance.kit import (
    SOON,
    Backend,
    Conformance,
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


class States(Conformance):
    """M5, M6: the states a message goes through."""

    @pytest.fixture
    def broker(self, backend: Backend) -> Broker:
        broker = backend.open()
        broker.create_queue("orders", type="pull", put_back_delay="1h")
        return broker

    @pytest.mark.parametrize(
        ("answer", "letter"),
        [
            (Delivery.ack, "X"),
            (Delivery.nack, "R"),
            (Delivery.retry, "Q"),
            (Delivery.release, "Q"),
            (Delivery.invalid, "I"),
            (Delivery.not_interested, "N"),
            (Delivery.dead, "E"),
        ],
    )
    def test_m5_m6_from_queued_over_fetched(
        self, broker: Broker, answer: Callable[[Delivery], int], letter: str
    ) -> None:
        receipt = broker.publish(numbered(1))
        states = [state_of(broker, receipt.id)]
        delivery = pulled(broker)
        states.append(state_of(broker, receipt.id))
        answer(delivery)
        states.append(state_of(broker, receipt.id))
        assert states == ["Q", "F", letter]

    def test_m5_state_is_kept_per_message_and_queue(self, broker: Broker) -> None:
        broker.create_queue("audit", type="pull")
        receipt = broker.publish(Message("x", b"", topics=("orders", "audit")))
        pulled(broker, "audit").invalid()
        assert state_of(broker, receipt.id, "orders") == "Q"
        assert state_of(broker, receipt.id, "audit") == "I"

    def test_m5_states_are_counted_per_queue(self, broker: Broker) -> None:
        broker.publish(numbered(4))
        delivery = pulled(broker, count=3)
        delivery.ack(rows=[0])
        delivery.dead(rows=[1])
        counts = broker.queue("orders").counts
        told = {state.value: count for state, count in counts.items()}
        assert told == {"Q": 4, "F": 3, "S": 1, "X": 1, "E": 1}

    @pytest.mark.parametrize("state", [State.SUCCESS, State.COMPLETED, State.KICKED, State.UNCHANGED])
    def test_m6_an_impossible_move_names_both_states(self, broker: Broker, state: State) -> None:
        broker.publish(numbered(1))
        pulled(broker).ack()
        with pytest.raises(IllegalMove, match=rf"from {state.name} \({state.value}\) to QUEUED \(Q\)"):
            broker.reprocess("orders", MessageFilter(states=frozenset({state})))


class Operators(Conformance):
    """M6: what a person may do with messages that ended, and with those that wait."""

    @pytest.fixture
    def broker(self, backend: Backend) -> Broker:
        broker = backend.open()
        broker.create_queue("orders", type="pull")
        return broker

    def park(self, broker: Broker) -> list[str]:
        """Messages that ended in three ways."""
        ids = broker.publish(numbered(4)).ids
        delivery = pulled(broker, count=4)
        delivery.dead(rows=[0], reason="disk broken")
        delivery.dead(rows=[1], reason="no such customer")
        delivery.invalid(rows=[2])
        delivery.not_interested(rows=[3])
        return ids

    def test_m6_everything_parked_can_be_reprocessed(self, broker: Broker) -> None:
        ids = self.park(broker)
        assert broker.reprocess("orders", who="eve") == 4
        assert [state_of(broker, one) for one in ids] == ["Q"] * 4
        delivery = pulled(broker, count=4)
        assert delivery.bodies == [b"0", b"1", b"2", b"3"]
        assert delivery.attempts == [1, 1, 1, 1]

    @pytest.mark.parametrize(
        ("selection", "back"),
        [
            (MessageFilter(states=frozenset({State.DEAD})), [b"0", b"1"]),
            (MessageFilter(states=frozenset({State.INVALID})), [b"2"]),
            (MessageFilter(states=frozenset({State.NOT_INTERESTED})), [b"3"]),
            (MessageFilter(reason="customer"), [b"1"]),
            (MessageFilter(since=1 << 60), []),
            (MessageFilter(until=1), []),
            (MessageFilter(offsets=((1, 2),)), [b"1", b"2"]),
        ],
    )
    def test_m6_reprocess_a_selection(self, broker: Broker, selection: MessageFilter, back: list[bytes]) -> None:
        self.park(broker)
        assert broker.reprocess("orders", selection) == len(back)
        assert waiting_bodies(broker) == back

    def test_m6_parked_messages_survive_a_restart(self, backend: Backend, broker: Broker) -> None:
        ids = self.park(broker)
        broker = restarted(backend, broker)
        info = broker.queue("orders")
        assert (info.dead, info.invalid, info.not_interested) == (2, 1, 1)
        assert view(broker, ids[0]).reason == "disk broken"
        assert broker.reprocess("orders") == 4

    def test_forgotten_messages_are_gone(self, backend: Backend, broker: Broker) -> None:
        self.park(broker)
        assert broker.forget("orders", MessageFilter(states=frozenset({State.DEAD})), who="eve") == 2
        broker = restarted(backend, broker)
        assert broker.queue("orders").dead == 0
        assert broker.reprocess("orders") == 2

    @pytest.mark.parametrize(("lanes", "left"), [("all", []), ("priority", [b"0", b"1"]), ("regular", [b"h"])])
    def test_clear(self, broker: Broker, lanes: str, left: list[bytes]) -> None:
        ids = broker.publish([urgent(b"h"), *numbered(2)]).ids
        assert broker.clear("orders", lanes, who="eve") == 3 - len(left)
        cleared = next(one for one in ids if state_of(broker, one) == "E")
        assert view(broker, cleared).reason == "cleared"
        assert waiting_bodies(broker) == left

    def test_clear_all_takes_delayed_ones_too_and_leaves_what_is_in_flight(self, broker: Broker) -> None:
        broker.publish(numbered(2))
        pulled(broker).retry(after="1h")
        held = pulled(broker)
        assert broker.clear("orders") == 1
        assert held.ack() == 1
        assert broker.queue("orders").size == 0

    def test_clear_of_something_else_is_refused(self, broker: Broker) -> None:
        with pytest.raises(InvalidOption, match="lanes must be one of all, priority, regular"):
            broker.clear("orders", "some")

    def test_m6_parked_messages_are_listed_and_chosen_by_state_and_reason(self, broker: Broker) -> None:
        broker.create_queue("orders", type="pull")
        broker.publish(numbered(4))
        delivery = pulled(broker, count=4)
        delivery.dead([0], reason="no stock")
        delivery.dead([1], reason="no address")
        delivery.invalid([2], reason="no order at all")
        delivery.not_interested([3])
        listed = broker.parked("orders")
        assert [each.offset for each in listed] == [3, 2, 1, 0]
        assert [each.state.value for each in listed] == ["N", "I", "E", "E"]
        assert [each.reason for each in broker.parked("orders", MessageFilter(reason="no a"))] == ["no address"]
        assert [each.offset for each in broker.parked("orders", limit=1)] == [3]
        assert broker.reprocess("orders", MessageFilter(reason="stock"), who="ann") == 1
        assert waiting_bodies(broker) == [b"0"]
        assert broker.forget("orders", MessageFilter(states=frozenset({State.INVALID})), who="ann") == 1
        assert [each.offset for each in broker.parked("orders")] == [3, 1]

    def test_b15_what_an_operator_does_is_on_record_with_the_name(self, broker: Broker) -> None:
        broker.create_queue("orders", type="pull")
        broker.publish(numbered(1))
        pulled(broker).dead(reason="no stock")
        broker.reprocess("orders", who="ann")
        broker.clear("orders", who="ben")
        events = [event for record in broker.spectate().events() for event in record.rows]
        assert [(event.state.value, event.who) for event in events[-2:]] == [("Q", "ann"), ("E", "ben")]


class Documents(Conformance):
    """M7: a whole message as one document."""

    @pytest.fixture
    def broker(self, backend: Backend) -> Broker:
        broker = backend.open()
        broker.create_queue("orders", type="pull")
        return broker

    def test_m7_a_waiting_message(self, broker: Broker) -> None:
        receipt = broker.publish(Message("orders.new", b"0"))
        document = broker.message(receipt.id)
        told = document.queues[0]
        assert document.offset == receipt.first
        assert document.message.name == "orders.new"
        assert document.topic_count == 1
        assert (told.queued, told.delivered, told.success, told.archived) == (True, False, False, False)
        assert (told.consumed, told.processed, told.completed, told.failed) == (None, None, None, None)
        assert told.modified == document.created

    def test_m7_a_completed_message(self, broker: Broker) -> None:
        receipt = broker.publish(numbered(1))
        pulled(broker, consumer="anna").ack()
        document = broker.message(receipt.id)
        told = document.queues[0]
        assert (told.queued, told.delivered, told.success, told.archived) == (False, True, True, True)
        assert told.consumed is not None
        assert told.processed is not None
        assert told.completed is not None
        assert told.failed is None
        assert document.created <= told.consumed <= told.processed <= told.completed == told.modified
        (one,) = told.consumed_by
        assert (one.consumer, one.fetched, one.confirmed) == ("anna", told.consumed, told.processed)
        assert one.duration == told.processed - told.consumed
        assert told.confirmed_count == 1

    def test_m7_a_message_that_failed_twice(self, broker: Broker) -> None:
        receipt = broker.publish(numbered(1))
        pulled(broker, consumer="anna").nack()
        first = view(broker, receipt.id)
        pulled(broker, consumer="ben").dead(reason="no use")
        told = view(broker, receipt.id)
        assert (told.consumed, told.processed) == (first.consumed, first.processed), "of the first time"
        assert (told.queued, told.delivered, told.success, told.archived) == (False, True, False, True)
        assert told.failed == told.modified
        assert told.attempts == 2
        assert told.reason == "no use"
        assert [one.consumer for one in told.consumed_by] == ["anna", "ben"]
        assert told.consumed_by[1].confirmed is None

    def test_m7_by_id_or_by_offset(self, broker: Broker) -> None:
        receipt = broker.publish(numbered(3))
        documents = [broker.message(receipt.first + row) for row in range(3)]
        assert [document.message.id for document in documents] == receipt.ids
        assert broker.message(receipt.ids[2]) == documents[2]

    def test_m7_survives_a_restart(self, backend: Backend, broker: Broker) -> None:
        receipt = broker.publish(Message("orders", b"0", topics=("orders.a", "orders.b")))
        pulled(broker, consumer="anna").ack()
        before = broker.message(receipt.id)
        broker = restarted(backend, broker)
        assert broker.message(receipt.id) == before
        assert before.topic_count == 2

    @pytest.mark.parametrize("unknown", ["unknown", "12345", 99, -1])
    def test_m7_an_unknown_message_says_so(self, broker: Broker, unknown: str | int) -> None:
        broker.publish(numbered(1))
        with pytest.raises(NotFound, match=f"there is no message {unknown!r}; it may have been collected"):
            broker.message(unknown)

    def test_m7_a_push_names_every_consumer(self, broker: Broker) -> None:
        broker.create_queue("news", type="push")
        subscriptions = [broker.subscribe("news", consumer=name) for name in ("anna", "ben")]
        receipt = broker.publish(numbered(1, "news"))
        received(subscriptions[1]).ack()
        told = view(broker, receipt.id)
        assert [one.consumer for one in told.consumed_by] == ["anna", "ben"]
        assert [one.confirmed is not None for one in told.consumed_by] == [False, True]


class Persistence(Conformance):
    """Q17: what a restart keeps."""

    def test_q17_persistent_unless_said_otherwise(self, backend: Backend, broker: Broker) -> None:
        broker.create_queue("orders", type="pull")
        broker.publish(numbered(3))
        broker = restarted(backend, broker)
        assert waiting_bodies(broker) == [b"0", b"1", b"2"]

    def test_q17_memory_queues_lose_their_messages_and_nothing_else(self, backend: Backend, broker: Broker) -> None:
        broker.create_queue("fast", type="pull", persistence="memory", message_limit=9)
        broker.create_queue("orders", type="pull")
        ids = broker.publish(Message("x", b"0", topics=("fast", "orders"))).ids
        broker.set_status("fast", "only-publish")
        broker = restarted(backend, broker)
        info = broker.queue("fast")
        assert (info.size, info.options.message_limit, info.status.value) == (0, 9, "only-publish")
        assert state_of(broker, ids[0], "fast") == "E"
        assert waiting_bodies(broker) == [b"0"]

    def test_q17_memory_queues_work_like_others(self, broker: Broker) -> None:
        broker.create_queue("orders", type="pull", persistence="memory")
        broker.publish([*numbered(2), urgent(b"h")])
        pulled(broker).nack()
        assert waiting_bodies(broker) == [b"h", b"0", b"1"]

    def test_q17_in_flight_messages_come_back(self, backend: Backend, broker: Broker) -> None:
        broker.create_queue("orders", type="pull")
        broker.publish(numbered(2))
        pulled(broker)
        broker = restarted(backend, broker)
        assert sorted(waiting_bodies(broker)) == [b"0", b"1"]

    def test_q17_delayed_messages_keep_their_time(self, backend: Backend, broker: Broker) -> None:
        broker.create_queue("orders", type="pull")
        now = broker.message(broker.publish(numbered(1)).id).created
        waiting_bodies(broker)
        receipt = broker.publish(Message("orders", b"later", due=now + 150_000))
        broker = restarted(backend, broker)
        assert pulled(broker, timeout=SOON).bodies == [b"later"]
        fetched = view(broker, receipt.id).consumed
        assert fetched is not None
        assert fetched >= now + 150_000


class Spectators(Conformance):
    """L8: the log can be read from anywhere, as often as one likes, and nothing changes."""

    @pytest.fixture
    def broker(self, backend: Backend) -> Broker:
        broker = backend.open()
        broker.create_queue("orders", type="pull")
        return broker

    def bodies(self, records: list[Appended]) -> list[bytes]:
        return [body for record in records for body in record.messages.bodies]

    def test_l8_reading_changes_nothing(self, broker: Broker) -> None:
        spectator = broker.spectate()
        broker.publish(numbered(3))
        for _ in range(2):
            assert self.bodies(list(spectator.messages())) == [b"0", b"1", b"2"]
        assert waiting_bodies(broker) == [b"0", b"1", b"2"]

    def test_l8_from_any_offset(self, broker: Broker) -> None:
        for number in range(5):
            broker.publish(numbered(2, start=2 * number))
        spectator = broker.spectate()
        for offset in range(10):
            assert self.bodies(list(spectator.messages(offset)))[0] == b"%d" % offset
        assert list(spectator.messages(10)) == []

    def test_l8_from_any_time(self, broker: Broker) -> None:
        times = [broker.message(broker.publish(one).id).created for one in numbered(4)]
        spectator = broker.spectate()
        assert times == sorted(set(times))
        for number, since in enumerate(times):
            found = [record for record in spectator.messages(since=since) if record.created >= since]
            assert self.bodies(found) == [b"%d" % later for later in range(number, 4)]
        assert list(spectator.messages(since=times[-1] + 1)) == []

    def test_l8_events_tell_every_change_of_state(self, broker: Broker) -> None:
        broker.publish(numbered(1))
        pulled(broker).nack()
        pulled(broker).ack()
        events = [event for record in broker.spectate().events() for event in record.rows]
        assert [event.state.value for event in events if event.queue == "orders"] == ["F", "R", "Q", "F", "S", "X"]

    def test_l8_settled_messages_can_still_be_read(self, backend: Backend, broker: Broker) -> None:
        broker.publish(numbered(2))
        waiting_bodies(broker)
        broker = restarted(backend, broker)
        assert self.bodies(list(broker.spectate().messages())) == [b"0", b"1"]

    def test_l8_a_spectator_can_follow(self, broker: Broker) -> None:
        stop, seen = threading.Event(), list[bytes]()
        spectator = broker.spectate()

        def watch() -> None:
            for record in spectator.follow(poll=0.005, stop=stop):
                seen.extend(record.messages.bodies)

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            for one in numbered(5):
                broker.publish(one)
            eventually(lambda: len(seen) == 5)
        finally:
            stop.set()
            thread.join()
        assert seen == [b"0", b"1", b"2", b"3", b"4"]
