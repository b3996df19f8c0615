"""One message on the wire, in C: the same as in Python (S5, S6), and in few steps."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

import msgspec
import pytest

from remuda import Message, native, open_broker
from remuda.broker.embedded.pending import Pending
from remuda.broker.shared.wire import nonblocking, wire_frames
from remuda.model.errors import InvalidMessage, Refused
from remuda.model.messages import Messages
from remuda.model.operations.commands import Publish
from remuda.model.operations.results import Receipt

wire: Any = native.wire
pytestmark = pytest.mark.skipif(wire is None, reason="there is no part in C here")
TEXTS = ["", "jobs", "é" * 20, "x" * 31, "x" * 32, "y" * 255, "z" * 300, "\U0001f40e"]
NUMBERS = [0, 1, 127, 128, 255, 256, 65_535, 65_536, 2**32 - 1, 2**32, 2**62, -1, -32, -33, -129, -40_000, -(2**40)]
BODIES = [b"", b"x", b"x" * 255, b"x" * 256, b"\x00\xff" * 20_000, b"x" * 70_000]


def anything(chance: Random) -> Publish:
    """A command as a guest may have it: mostly plain."""

    def often(usual: Any, *others: Any) -> Any:
        return usual if chance.random() < 0.8 else chance.choice(others)

    messages = Messages(
        often([chance.choice(BODIES)], [], [b"1", b"2"]),
        often(chance.choice(TEXTS), [chance.choice(TEXTS)]),
        often(None, ["own"], range(5, 6)),
        often((), ("a", "b"), tuple(TEXTS), tuple("abcdefghijklmnopqrs"), [("a",)]),
        often(None, *TEXTS),
        often(None, *TEXTS),
        often(None, *NUMBERS),
        often("application/octet-stream", "text/plain"),
        often({}, {"a": "b"}, dict.fromkeys(TEXTS, "v"), {str(at): "" for at in range(40)}, [{}]),
        often(0, *NUMBERS, [3]),
        often(0, *NUMBERS),
        often(None, *NUMBERS),
        often(None, *NUMBERS),
        often(None, b"wire"),
    )
    options = often(None, {"message_limit": 5})
    return Publish(messages, often("jobs", None), often(None, "rest"), often(None, "routes"), options)


def in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire_frames, "wire", None)


def test_s6_a_message_has_the_same_frame_in_both_languages() -> None:
    chance, quickly = Random(1), 0
    for _ in range(3000):
        number, command = chance.choice(NUMBERS), anything(chance)
        made = wire.single_frame(number, command)
        if made is not None:
            quickly += 1
            assert made == wire_frames.publish_frame(number, command)
    assert quickly > 500
    for wrong in (None, 5, Message("jobs", b"x"), Messages([b"x"], "jobs")):
        assert wire.single_frame(1, wrong) is None
    assert wire.single_frame(1, Publish(Messages([b"x"], "\ud800"))) is None


def test_s6_a_frame_is_the_same_command_in_both_languages() -> None:
    """Whatever is wrong with it is for Python to say: then it is given back as it is."""
    chance, quickly, given_back = Random(2), 0, 0
    for _ in range(6000):
        data = wire_frames.publish_frame(abs(chance.choice(NUMBERS)), anything(chance))
        if chance.random() < 0.7 and len(data) < 5000:
            spoiled = bytearray(data)
            for _ in range(chance.randint(1, 2)):
                spoiled[chance.randrange(len(spoiled))] = chance.randrange(256)
            data = bytes(spoiled[: chance.choice([len(spoiled), len(spoiled), chance.randrange(len(spoiled))])])
        found = wire.publish_of(data, "producer")
        if found is data:
            given_back += 1
            continue
        quickly += 1
        ((kind, payload),) = wire_frames.Buffer().feed(data)
        assert kind == wire_frames.SINGLE
        assert found == wire_frames.single_of(wire_frames.decode(wire_frames.Single, payload), "producer")
        assert [type(one) for one in msgspec.structs.astuple(found.messages)] == [
            type(one)
            for one in msgspec.structs.astuple(
                wire_frames.single_of(wire_frames.decode(wire_frames.Single, payload), "producer").messages
            )
        ]
    assert quickly > 500
    assert given_back > 500


def test_s6_a_receipt_has_the_same_frame_in_both_languages(monkeypatch: pytest.MonkeyPatch) -> None:
    receipts = [
        Receipt(5, range(10, 11), {}),
        Receipt(2**40, range(2**62, 2**62 + 3 * 1024, 1024), {}),
        Receipt(0, [], {}),
        Receipt(1, ["own", "é"], {}),
        Receipt(1, ["own"] * 9000, {}),
        Receipt(1, ["own"], {0: Refused("no")}),
        Receipt(1, ["own"], {}, (0,)),
        Receipt(1, ["own"], {}, (), 7),
        Receipt(1, ["own"], {}, differs={"q": {}}),
        Receipt(1, ["own"], {}, unroutable=(0,)),
        Receipt(1, ["own"], {}, partly_refused={0: Refused("no")}),
        Receipt(1, ["own"], {}, repeated=1),
    ]
    quickly = [wire.receipt_frame(3, receipt) for receipt in receipts]
    assert [made is not None for made in quickly] == [True] * 4 + [len(quickly[4] or b"") > 0] + [False] * 7
    in_python(monkeypatch)
    for receipt, made in zip(receipts, quickly, strict=True):
        if made is not None:
            assert made == wire_frames.receipt_frame(3, receipt)


def test_s6_what_comes_instead_of_a_receipt_is_given_as_it_is() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        receipt = wire_frames.receipt_frame(7, Receipt(5, range(10, 1034, 1024), {}))
        theirs.sendall(receipt)
        found = wire.receive_receipt(ours.fileno(), 7, 1000)
        assert type(found) is Pending
        assert (found.result, found.ticket) == (Receipt(5, range(10, 1034, 1024), {}), 0)
        for other in (
            wire_frames.receipt_frame(8, Receipt(5, range(10, 1034, 1024), {})),
            wire_frames.receipt_frame(7, Receipt(5, ["own"], {})),
            receipt + receipt[:3],
            receipt[:-1],
            receipt[:2],
            wire_frames.frame(wire_frames.FAILED, (7, wire_frames.Error("Refused", "no"))),
            b"\xff" * 100,
        ):
            theirs.sendall(other)
            assert wire.receive_receipt(ours.fileno(), 7, 1000) == other
        assert wire.receive_receipt(ours.fileno(), 7, 1) is None
        assert wire.receive_receipt(ours.fileno(), 7, -1) is None  # which is for ever to the system
        theirs.close()
        assert wire.receive_receipt(ours.fileno(), 7, 1000) == b""


def test_s6_what_the_system_does_not_take_at_once_is_left_to_the_caller() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        command = Publish(Messages([b"x" * 50_000], "jobs"), "jobs")
        whole, came = wire.single_frame(1, command), b""
        sent = 0
        while not (rest := wire.send_single(ours.fileno(), 1, command)):
            sent += 1
        with pytest.raises(BlockingIOError):
            wire.send(ours.fileno(), b"x")
        while len(came) < (sent + 1) * len(whole) - len(rest):
            came += wire.receive(theirs.fileno())
        assert came + rest == whole * (sent + 1)
        with pytest.raises(BlockingIOError):
            wire.receive(theirs.fileno())
        assert wire.send_single(ours.fileno(), 1, Publish(Messages([b"x" * 70_000], "jobs"), "jobs")) is None
        theirs.close()
        with pytest.raises(OSError, match="pipe"):
            wire.send_single(ours.fileno(), 1, command)


def test_s6_wrong_arguments_are_refused() -> None:
    for verb, *wrong in (
        (wire.single_frame, 1), (wire.receipt_frame,), (wire.publish_of, "text", "p"), (wire.send, 1, "text"),
        (wire.send, None, b"x"), (wire.receive, "1"), (wire.receive, 1 << 40), (wire.receive_publish, 1),
        (wire.send_single, 1, 2), (wire.receive_receipt, 1, "2", 3), (wire.set_up, 1, 2, 3, 4),
    ):  # fmt: skip
        with pytest.raises(TypeError):
            verb(*wrong)


@pytest.mark.alone
def test_s5_a_guest_publishes_one_message_in_few_steps(tmp_path: Path) -> None:
    with open_broker(tmp_path, sync="os") as host, open_broker(tmp_path, sync="os") as guest:
        host.create_queue("jobs", type="pull")
        steps: list[int] = []
        message = Message("jobs", b"x" * 200)
        guest.publish(message, queue="jobs")
        for _ in range(7):
            calls: list[str] = []

            def note(frame: FrameType, event: str, argument: Any, calls: list[str] = calls) -> None:
                if event == "call":
                    calls.append(frame.f_code.co_name)

            sys.setprofile(note)
            try:
                guest.publish(message, queue="jobs")
            finally:
                sys.setprofile(None)
            steps.append(len(calls))
        assert min(steps) <= 14
        assert host.queue("jobs").waiting == 8


def test_s5_what_is_wrong_with_a_single_message_is_told_to_its_guest(tmp_path: Path) -> None:
    with open_broker(tmp_path, sync="os") as host, open_broker(tmp_path, sync="os") as guest:
        host.create_queue("few", type="pull", message_limit=1, limit_exceeded="reject-new")
        guest.publish(Message("few", b"x"), queue="few")
        with pytest.raises(Refused):
            guest.publish(Message("few", b"x"), queue="few")
        with pytest.raises(InvalidMessage):
            guest.publish(Message("few", 5), queue="few")  # type: ignore[arg-type]
        assert guest.queue("few").waiting == 1


@pytest.mark.parametrize("native_wire", [True, False])
def test_s6_both_ways_are_understood_by_both(
    native_wire: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_broker(tmp_path, sync="os") as host:
        host.create_queue("jobs", type="pull")
        if not native_wire:
            in_python(monkeypatch)
            monkeypatch.setattr(nonblocking, "wire", None)
            monkeypatch.setattr("remuda.broker.shared.guest.pending_requests.wire", None)
            monkeypatch.setattr("remuda.broker.shared.guest.frame_reading.wire", None)
        with open_broker(tmp_path, sync="os") as guest:
            bodies = [b"%d" % number for number in range(20)] + [b"x" * 70_000, b"x" * 1_000_000]
            ids = [guest.publish(Message("jobs", body, headers={"a": "b"}), queue="jobs").id for body in bodies]
            assert len(set(ids)) == len(bodies)
            delivery = guest.pull("jobs", len(bodies))
            assert delivery is not None
            assert [message.body for message in delivery.messages] == bodies
            assert [message.id for message in delivery.messages] == ids
