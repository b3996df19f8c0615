"""A message that somebody waits for reaches them before its publish returns, whoever they are (Q1)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from remuda import Message, open_broker
from remuda.broker.embedded.delivering.inbox import Inbox
from remuda.broker.threads import EmbeddedBroker
from remuda.core.effects import Dispatch
from remuda.model.operations.commands import Pull


@pytest.fixture(params=["os", "always", "memory"])
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EmbeddedBroker]:
    place = "memory://" if request.param == "memory" else tmp_path / "data"
    with open_broker(place, sync="os" if request.param == "memory" else request.param) as made:
        made.create_queue("jobs", type="pull")
        assert isinstance(made, EmbeddedBroker)
        made.publish(Message("jobs", b"first"), queue="jobs")
        assert made.pull("jobs") is not None
        yield made


class Post(Inbox):
    """Sends on what comes, as the host does for its guests."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        super().__init__()
        self._broker = broker
        self.sent: list[list[bytes]] = []

    def put(self, dispatch: Dispatch) -> None:
        assert not self._broker.runtime.lock.locked(), "others must be able to come in meanwhile"
        self.sent.append(self._broker.runtime.load(dispatch)[1].bodies)


def wait_for_message(broker: EmbeddedBroker, inbox: Inbox) -> None:
    pending = broker.runtime.submit(Pull("jobs", "anna", broker.runtime.new_tag(), wait=60_000_000), inbox)
    broker.runtime.wait(pending.ticket)
    assert pending.result is None


def test_one_who_waits_here(broker: EmbeddedBroker) -> None:
    inbox = Inbox()
    wait_for_message(broker, inbox)
    broker.publish(Message("jobs", b"second"), queue="jobs")
    found = inbox.get(0)
    assert found is not None
    assert broker.runtime.load(found)[1].bodies == [b"second"]
    assert broker.queue("jobs").in_flight == 2


def test_one_who_waits_elsewhere(broker: EmbeddedBroker) -> None:
    inbox = Post(broker)
    wait_for_message(broker, inbox)
    broker.publish(Message("jobs", b"second"), queue="jobs")
    assert inbox.sent == [[b"second"]]


def test_one_who_is_gone(broker: EmbeddedBroker) -> None:
    """Q3: what nobody will take comes back by itself."""
    inbox, back = Inbox(), threading.Event()
    wait_for_message(broker, inbox)

    def give_back(dispatch: Dispatch) -> None:
        broker.runtime.give_back(dispatch)
        back.set()

    inbox.divert(give_back)
    broker.publish(Message("jobs", b"second"), queue="jobs")
    assert back.wait(60)
    found = broker.pull("jobs")
    assert found is not None
    assert (found.bodies, found.attempts) == ([b"second"], [1])
