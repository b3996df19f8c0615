"""The broker on RabbitMQ passes the suite, save for what its table refuses (docs/rabbitmq.md)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from remuda.broker.opening import open_async_broker, open_broker
from remuda.broker.port import AsyncBroker, Broker
from tests.conformance import asyncio_face, delivery, events, life, limits, publishing, queues, settling, topics
from tests.conformance.kit import Backend


class Rabbit:
    """Brokers in one virtual host. Opening again finds what was left there."""

    durable = True

    def __init__(self, url: str) -> None:
        self._url = url
        self._opened: list[Broker] = []

    def open(self, **options: Any) -> Broker:
        broker: Broker = open_broker(self._url, **options)
        self._opened.append(broker)
        return broker

    async def open_async(self, **options: Any) -> AsyncBroker:
        return await open_async_broker(self._url, **options)

    def close(self) -> None:
        for broker in self._opened:
            broker.close()


CLASSIC = ("priorit", "test_m2_a_batch_may_differ", "clear", "q15", "high", "q17_memory", "remains")
"""In the names of tests that need priorities, which quorum queues of RabbitMQ 3 do not have."""


DELAYED = "RabbitMQ does not tell how many messages wait for their time"
UNTOLD = "what RabbitMQ itself parks is found among the dead letters; the log does not hear of it"
LIMIT = "RabbitMQ counts what waits, and a quorum queue also takes what is on its way at that moment"
NUMBERS = "messages are numbered by their ids, which are not neighbours"
PARKED = "RabbitMQ tells how many dead letters there are, not of which state"
DIFFERS = {
    "test_q9_put_back_delay[answer_no]": DELAYED,
    "test_q9_put_back_delay[stay_silent]": DELAYED,
    "test_q9_put_back_delay_of_a_lost_consumer": DELAYED,
    "test_q9_delayed_messages_fill_the_queue": LIMIT,
    "test_q16_the_answer_tells_what_remains": "RabbitMQ counts what waits, not by priority",
    "test_q5_a_message_waits_no_longer_than_message_timeout": UNTOLD,
    "test_q5_expired_messages_can_go_to_a_named_queue": UNTOLD,
    "test_q5_a_put_back_does_not_extend_the_deadline": UNTOLD,
    "test_q5_a_message_may_bring_its_own_deadline": "RabbitMQ ends what expired when it comes to the head of its queue",
    "test_q5_a_delay_past_the_deadline_ends_at_the_deadline": "what waits for its time ends when that comes",
    "test_q5_the_named_queue_is_created_when_it_is_missing": "it is made together with the queue that names it",
    "test_q7_holds_for_messages_from_other_queues": "sizes are looked at when a message is published",
    "test_m6_reprocess_a_selection[selection6-back6]": NUMBERS,
    "test_m6_parked_messages_are_listed_and_chosen_by_state_and_reason": NUMBERS,
    "test_m7_by_id_or_by_offset": NUMBERS,
    "test_l8_from_any_offset": NUMBERS,
    "test_q17_memory_queues_lose_their_messages_and_nothing_else": "they are lost with RabbitMQ, not with this process",
    "test_m6_parked_messages_survive_a_restart": PARKED,
    "test_forgotten_messages_are_gone": PARKED,
    "test_clear_all_takes_delayed_ones_too_and_leaves_what_is_in_flight": "what waits for its time is not reached",
    "test_q6_reject_new": LIMIT,
    "test_q6_a_batch_fills_the_queue_to_the_brim": LIMIT,
    "test_q6_what_is_in_flight_counts": LIMIT,
    "test_q6_exact_under_parallel_producers": LIMIT,
    "test_q6_errors_are_raised_where_they_are_awaited": LIMIT,
    "test_q19_message_timed_out": UNTOLD,
    "test_q6_delete_oldest": UNTOLD,
    "test_q6_delete_oldest_spares_high_priority_while_it_can": "RabbitMQ evicts from the head, whatever the priority",
    "test_q6_nothing_in_flight_is_evicted": LIMIT,
    "test_release_may_wait": "it looks into the log within 50 ms, which takes longer over a network",
}
"""Where RabbitMQ differs, as the tables of docs/rabbitmq.md say."""


@pytest.fixture
def backend(clean_url: str, request: pytest.FixtureRequest) -> Iterator[Backend]:
    if issubclass(request.cls, topics.Compacter):
        pytest.skip("what repeats is told by the log, and delivered")
    if request.node.name in DIFFERS:
        pytest.skip(DIFFERS[request.node.name])
    classic = any(word in request.node.name for word in CLASSIC)
    place = Rabbit(clean_url + ("?queue_type=classic" if classic else ""))
    yield place
    place.close()


class TestPublishing(publishing.Publishing):
    pass


class TestOptions(queues.Options):
    pass


class TestCreation(queues.Creation):
    pass


class TestStatuses(queues.Statuses):
    pass


class TestConsumers(queues.Consumers):
    pass


class TestAutoDestroy(queues.AutoDestroy):
    pass


class TestClosing(queues.Closing):
    pass


class TestPush(delivery.Push):
    pass


class TestRoundRobin(delivery.RoundRobin):
    pass


class TestPull(delivery.Pull):
    pass


class TestOrder(delivery.Order):
    pass


class TestPace(delivery.Pace):
    pass


class TestTimeouts(settling.Timeouts):
    pass


class TestPutBack(settling.PutBack):
    pass


class TestAnswers(settling.Answers):
    pass


class TestCommits(settling.Commits):
    pass


class TestConfirmations(settling.Confirmations):
    pass


class TestExpiry(limits.Expiry):
    pass


class TestMessageLimit(limits.MessageLimit):
    pass


class TestSizeLimit(limits.SizeLimit):
    pass


class TestUniqueIds(limits.UniqueIds):
    pass


class TestTopics(topics.Topics):
    pass


class TestChannels(topics.Channels):
    pass


class TestCompacter(topics.Compacter):
    pass


class TestRouters(topics.Routers):
    pass


class TestStates(life.States):
    pass


class TestOperators(life.Operators):
    pass


class TestDocuments(life.Documents):
    pass


class TestPersistence(life.Persistence):
    pass


class TestSpectators(life.Spectators):
    pass


class TestEvents(events.Events):
    pass


class TestAsyncFace(asyncio_face.AsyncFace):
    pass
