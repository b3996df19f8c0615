"""What people see who print what they have in hand."""

from __future__ import annotations

import pytest

from remuda import Binding, Bus, Handled, ManualClock, Message, QueueOptions, Response, StopToken, open_broker


def test_a_bus_says_where_it_is_and_what_it_does() -> None:
    """B2: and never a password."""
    bus = Bus("remuda://ada:secret@example.org")
    assert repr(bus) == "<Bus at remuda://ada:***@example.org, no handlers>"
    bus = Bus()
    bus.subscribe("x", queue="q")(lambda body: body)
    with bus:
        assert repr(bus) == "<Bus at memory://, 1 handler>"
        runner = bus.start()
        assert repr(bus) == "<Bus at memory://, 1 handler, running>"
        assert repr(runner).startswith("<Runner of q, remuda.")
        assert repr(runner).endswith(", running>")


def test_a_broker_and_what_it_gives_out() -> None:
    with open_broker("memory://") as broker:
        assert (repr(broker), repr(broker.aio)) == (
            "<EmbeddedBroker at memory://>",
            "<AsyncEmbeddedBroker at memory://>",
        )
        broker.publish([Message("mail.a", b"1"), Message("mail.b", b"2")])
        with broker.subscribe("mail", consumer="ada", batch=2) as subscription:
            assert repr(subscription) == "<EmbeddedSubscription of ada to mail>"
            assert repr(subscription.receive("60s")) == "<Delivery of 2 messages from mail>"
        assert repr(broker.queue("mail")).startswith("QueueInfo(name='mail'")


def test_values_show_what_was_said_of_them() -> None:
    """M2: the rest is as always."""
    assert repr(Message("mail", b"Dear Ann", key="7")) == "Message(name='mail', body=b'Dear Ann', key='7')"
    assert repr(QueueOptions(message_limit=5)) == "QueueOptions(message_limit=5)"
    assert repr(Binding(queue="a")) == "Binding(queue='a')"
    assert (repr(Handled(5)), repr(ManualClock(7))) == ("Handled(5)", "ManualClock(7)")
    assert repr(Response("topic")) == "<Response to topic, headers {}>"
    token = StopToken()
    assert repr(token) == "<StopToken, not requested>"
    token.set()
    assert repr(token) == "<StopToken, requested>"


@pytest.mark.parametrize("size", [121, 10_000_000])
def test_a_long_body_does_not_fill_the_screen(size: int) -> None:
    """M1"""
    shown = repr(Message("mail", b"x" * size))
    assert len(shown) < 200
    assert shown.endswith(f"… ({size} bytes))")
