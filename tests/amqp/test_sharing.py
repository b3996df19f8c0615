"""Several consumers of one channel, whose deliveries come in one read, one between the other."""

from __future__ import annotations

from remuda.amqp.client.amqp_delivery import Delivery
from remuda.amqp.client.connection import Connection
from remuda.amqp.client.consumer import Consumer
from remuda.broker.rabbitmq.consuming.fetcher import Fetcher
from tests.amqp.forgetful import LIMIT, ForgetfulBroker, eventually


def settled(acked: list[tuple[int, bool]]) -> set[int]:
    """Which tags the broker holds for acknowledged."""
    return {tag for last, multiple in acked for tag in (range(1, last + 1) if multiple else (last,))}


def test_no_acknowledgement_covers_what_another_consumer_still_holds() -> None:
    """L2, B16: one with `multiple` settles all tags before it, and what nobody has handled would be lost in a crash."""
    with ForgetfulBroker() as broker, Connection(broker.url) as connection:
        channel = connection.channel(prefetch=10)
        first, second = channel.consume("q"), channel.consume("q")
        one, two = broker.consumers
        broker.deliver([one, one, two, two, one, two])
        taken: list[Delivery] = []
        eventually(lambda: len(taken_in(first, taken)) == 3)
        assert channel.ack(taken) == 3
        eventually(lambda: {1, 2, 5} <= settled(broker.acked))
        assert settled(broker.acked) == {1, 2, 5}
        rest: list[Delivery] = []
        eventually(lambda: len(taken_in(second, rest)) == 3)
        assert channel.ack(rest) == 3
        eventually(lambda: settled(broker.acked) == set(range(1, 7)))
        assert len({tag for tag, _ in broker.acked}) == len(broker.acked), (
            "none twice: the broker would end the channel"
        )


def taken_in(consumer: Consumer, taken: list[Delivery]) -> list[Delivery]:
    taken += consumer.take()
    return taken


def test_what_is_for_nobody_is_acknowledged_by_nobody() -> None:
    """As what is on its way to a consumer that is not known any more."""
    with ForgetfulBroker() as broker, Connection(broker.url) as connection:
        channel = connection.channel(prefetch=10)
        consumer = channel.consume("q")
        (one,) = broker.consumers
        broker.deliver([one, (one[0], "gone"), one])
        taken: list[Delivery] = []
        eventually(lambda: len(taken_in(consumer, taken)) == 2)
        channel.ack(taken)
        eventually(lambda: len(broker.acked) == 2)
        assert settled(broker.acked) == {1, 3}


def test_one_queue_keeps_its_order_over_several_consumers() -> None:
    """Q15: a fetcher that fetches more has another consumer of the same channel."""
    with ForgetfulBroker() as broker, Connection(broker.url) as connection:
        fetcher = Fetcher(connection, "q")
        few = fetcher.ask(1)
        fetcher.start()
        many = fetcher.ask(100)
        fetcher.start()
        eventually(lambda: len(broker.consumers) == 2)
        one, two = broker.consumers
        broker.deliver([two, one, two, two, one, *[two, one] * 20])
        came = [delivery.tag for delivery in few.result(LIMIT) + many.result(LIMIT)]
        while len(came) < 45:
            came += [delivery.tag for delivery in fetcher.ask(100).result(LIMIT)]
        assert came == list(range(1, 46))
        fetcher.close()
