"""One message at a time goes a short way over the wire (S5, S6), and says the same as a batch does."""

from __future__ import annotations

import selectors
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from remuda import Message, open_broker
from remuda.broker import checks
from remuda.broker.shared.wire import poller, wire_frames
from remuda.model.errors import Refused
from remuda.model.messages import Messages
from remuda.model.operations.results import Receipt

FULL = Message(
    "é", b"\x00\xff", "my-id", ("a.b", "ü"), "object", "key", 12, "text/plain", {"h": "ß"}, 3, -5, 2**62, 7, b"w"
)
SINGLE = [
    Messages.of_one(Message("jobs", b"x")),
    Messages.of_one(Message("jobs", b"", headers={"a": "b"}, priority=9)),
    Messages.of_one(Message("jobs", b"x", id="one", topics=("only",))),
    Messages.of_one(FULL),
]
SEVERAL = [
    Messages.of([Message("jobs", b"1"), Message("others", b"2")]),
    Messages([b"x"], ["jobs"], topics=[("a",)]),
    Messages([b"x"], "jobs", range(5, 6)),
    Messages([], "jobs"),
]


def sent(messages: Messages, kind: int, **given: Any) -> Any:
    """The command that a host makes of one."""
    command = msgspec.structs.replace(checks.publish([], "jobs", None, None, None, None), messages=messages, **given)
    ((found, payload),) = wire_frames.Buffer().feed(wire_frames.publish_frame(7, command))
    assert found == kind
    if kind == wire_frames.SINGLE:
        return wire_frames.single_of(wire_frames.decode(wire_frames.Single, payload), "me")
    return wire_frames.publish_of(wire_frames.decode(wire_frames.Published, payload), "me")


@pytest.mark.parametrize(
    ("messages", "kind"),
    [*((one, wire_frames.SINGLE) for one in SINGLE), *((one, wire_frames.PUBLISH) for one in SEVERAL)],
)
def test_s5_a_publish_comes_as_it_was_sent(messages: Messages, kind: int) -> None:
    command = sent(messages, kind, options={"message_limit": 3})
    assert command.messages == messages
    assert (command.queue, command.options) == ("jobs", {"message_limit": 3})
    assert (command.producer, command.sequence) == ("me", 7)


def test_s5_one_message_with_all_it_can_have_arrives_whole(tmp_path: Path) -> None:
    with open_broker(tmp_path / "d", sync="os") as host, open_broker(tmp_path / "d", sync="os") as guest:
        host.create_queue("all", type="pull", topics=["a.b"])
        known = msgspec.structs.replace(FULL, due=None, wire=None)
        assert guest.publish(known).ids == ["my-id"]
        delivery = guest.pull("all")
        assert delivery is not None
        (found,) = delivery.messages
        assert found == msgspec.structs.replace(known, created=found.created)


@pytest.mark.parametrize(
    "columns",
    [
        {"bodies": []},
        {"bodies": [b"1", b"2"]},
        {"bodies": ["text"]},
        {"name": 1},
        {"name": ["jobs"]},
        {"ids": ["a", "b"]},
        {"topics": [["a"]]},
        {"headers": {"a": 1}},
        {"headers": None},
        {"created": "now"},
        {"expires": 2**63},
        {"wire": "text"},
    ],
)
def test_s5_one_message_that_is_none_is_refused(columns: dict[str, Any]) -> None:
    values = dict(zip(Messages.__struct_fields__, msgspec.structs.astuple(SINGLE[0]), strict=True)) | columns
    payload = msgspec.msgpack.encode((7, "jobs", None, None, None, *values.values()))
    with pytest.raises(wire_frames.WireError):
        wire_frames.decode(wire_frames.Single, payload)


@pytest.mark.parametrize(
    ("receipt", "kind"),
    [
        (Receipt(5, range(9, 10), {}), wire_frames.RECEIPT),
        (Receipt(5, range(9, 15, 2), {}), wire_frames.RECEIPT),
        (Receipt(0, ["a", "b", "c"], {}), wire_frames.RECEIPT),
        (Receipt(5, ["a"], {0: Refused("full")}), wire_frames.RESULT),
        (Receipt(5, ["a"], {}, watch=0), wire_frames.RESULT),
        (Receipt(5, ["a"], {}, unroutable=(0,)), wire_frames.RESULT),
        (Receipt(5, ["a"], {}, unchanged=(0,)), wire_frames.RESULT),
        (Receipt(5, ["a"], {}, partly_refused={0: Refused("full")}), wire_frames.RESULT),
    ],
)
def test_s5_a_receipt_comes_as_it_was_sent(receipt: Receipt, kind: int) -> None:
    ((found, payload),) = wire_frames.Buffer().feed(wire_frames.receipt_frame(7, receipt))
    assert found == kind
    if kind == wire_frames.RECEIPT:
        number, first, ids = wire_frames.decode(wire_frames.Received, payload)
        assert (number, wire_frames.plain_receipt(first, ids)) == (7, receipt)
        return
    said = wire_frames.decode(wire_frames.FullReceipt, wire_frames.decode(wire_frames.Answered, payload).result)
    assert said.watched is (receipt.watch is not None)
    again = wire_frames.receipt_of(said)
    assert repr(msgspec.structs.replace(again, watch=receipt.watch)) == repr(receipt)


@pytest.mark.parametrize("make", [poller.readiness, poller._Selector])
def test_s5_a_host_serves_with_whatever_the_system_offers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[], poller.Readiness]
) -> None:
    monkeypatch.setattr("remuda.broker.shared.host.host.readiness", make)
    monkeypatch.setattr(selectors, "DefaultSelector", selectors.PollSelector)
    with open_broker(tmp_path / "d") as host, open_broker(tmp_path / "d") as guest:
        host.create_queue("jobs", type="pull")
        for body in (b"1", b"x" * 3_000_000):  # the host has to wait until the guest takes the rest
            guest.publish(Message("jobs", body))
        delivery = guest.pull("jobs", 2)
        assert delivery is not None
        assert [len(body) for body in delivery.bodies] == [1, 3_000_000]
