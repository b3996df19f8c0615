"""The protocol without I/O: its order, its refusals, and what happens when anything at all comes in (S1, S4)."""

from __future__ import annotations

from itertools import takewhile
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remuda.amqp.codec.frames import PROTOCOL_HEADER, Event, FrameParser, add_content, method_frame
from remuda.amqp.codec.methods import (
    BY_INDEX,
    BasicAck,
    BasicDeliver,
    BasicPublish,
    ChannelClose,
    ChannelCloseOk,
    ChannelOpen,
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionOpen,
    ConnectionStart,
    ConnectionStartOk,
    ConnectionTune,
    ConnectionTuneOk,
    Method,
    QueueDeclare,
)
from remuda.server.amqp.protocol.channels import Confirms, Taken, Unanswered, UnknownTag
from remuda.server.amqp.protocol.connection import Limits, ServerConnection, Stage
from remuda.server.amqp.protocol.failures import Failure
from tests.server.amqp.test_reading import flat

LIMITS = Limits(frame_max=8192, message_max=100_000, channel_max=8)


class Peer:
    """The client's end, which sees what the server says."""

    def __init__(self, limits: Limits = LIMITS) -> None:
        self.server = ServerConnection(limits, {"product": "test"})
        self._parser = FrameParser()

    def says(self, *frames: bytes) -> list[Event]:
        return self.server.receive(b"".join(frames))

    def hears(self) -> list[tuple[int, Method]]:
        events = self._parser.feed(b"".join(self.server.output()))
        assert self._parser.error is None
        return [(channel, method) for channel, method, _, _ in events]

    def running(self) -> Peer:
        self.says(PROTOCOL_HEADER)
        self.says(method_frame(0, ConnectionStartOk(response=b"\0guest\0guest")))
        self.server.accept()
        self.says(method_frame(0, ConnectionTuneOk(0, 0, 0)), method_frame(0, ConnectionOpen("/")))
        self.server.open()
        assert self.server.stage is Stage.RUNNING
        self.hears()
        return self


def test_the_handshake_in_order() -> None:
    """S1."""
    peer = Peer()
    for byte in PROTOCOL_HEADER:
        peer.says(bytes((byte,)))
    ((_, start),) = peer.hears()
    assert isinstance(start, ConnectionStart)
    assert start.server_properties == {"product": "test"}
    ((_, login, _, _),) = peer.says(method_frame(0, ConnectionStartOk(response=b"\0a\0b")))
    assert isinstance(login, ConnectionStartOk)
    peer.server.accept()
    assert peer.hears() == [(0, ConnectionTune(8, 8192, 60))]
    ((_, opening, _, _),) = peer.says(
        method_frame(0, ConnectionTuneOk(4, 4096, 10)), method_frame(0, ConnectionOpen("/"))
    )
    assert isinstance(opening, ConnectionOpen)
    peer.server.open()
    assert (peer.server.channel_max, peer.server.frame_max, peer.server.heartbeat) == (4, 4096, 10)


def test_another_protocol_is_answered_with_ours() -> None:
    """S1."""
    peer = Peer()
    assert peer.says(b"GET / HTTP/1.1\r\n\r\n") == []
    assert b"".join(peer.server.output()) == PROTOCOL_HEADER
    assert peer.server.stage is Stage.CLOSED


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        ([method_frame(1, ChannelOpen()), method_frame(1, ChannelOpen())], 504),
        ([method_frame(1, QueueDeclare())], 504),
        ([method_frame(number, ChannelOpen()) for number in range(1, 10)], 530),
        ([method_frame(1, ChannelOpen()), method_frame(1, BasicDeliver()), b""], 505),
        ([method_frame(0, ConnectionTuneOk())], 504),
        ([b"\x01\x00\x01\x00\x00\x00\x04\x00\x63\x00\x01\xce"], 540),
        ([b"\x09\x00\x00\x00\x00\x00\x00\xce"], 501),
        ([b"\x01\x00\x01\x00\xff\xff\xff"], 501),
        ([b"\x03\x00\x01\x00\x00\x00\x01x\xce"], 505),
        ([method_frame(1, BasicAck())], 504),
    ],
)
def test_what_is_out_of_order_ends_the_connection(frames: list[bytes], code: int) -> None:
    """S4."""
    peer = Peer().running()
    if code == 505 and len(frames) == 3:
        frames = [frames[0], method_frame(1, BasicPublish()), method_frame(1, BasicAck())]
    peer.says(*frames, b"\x01")
    closes = [method for _, method in peer.hears() if isinstance(method, ConnectionClose)]
    assert [method.code for method in closes] == [code]
    assert peer.server.stage in (Stage.CLOSING, Stage.CLOSED)


def test_a_body_larger_than_allowed_is_refused_by_its_header() -> None:
    """S4."""
    peer = Peer().running()
    peer.says(method_frame(1, ChannelOpen()))
    frames: list[bytes] = []
    add_content(frames, method_frame(1, BasicPublish()), 1, b"\0\0", bytes(100_001), 8192)
    peer.says(*frames[:4])
    assert [getattr(method, "code", None) for _, method in peer.hears()] == [311]


@pytest.mark.parametrize(
    "asked", [ConnectionTuneOk(0, 4095, 0), ConnectionTuneOk(0, 8193, 0), ConnectionTuneOk(9, 0, 0)]
)
def test_more_than_was_offered_is_refused(asked: ConnectionTuneOk) -> None:
    """S4."""
    peer = Peer()
    peer.says(PROTOCOL_HEADER)
    peer.says(method_frame(0, ConnectionStartOk()))
    peer.server.accept()
    peer.hears()
    peer.says(method_frame(0, asked))
    assert [getattr(method, "code", None) for _, method in peer.hears()] == [530]


def test_after_a_channel_was_closed_what_still_comes_is_passed_over() -> None:
    """S1."""
    peer = Peer().running()
    peer.says(method_frame(1, ChannelOpen()), method_frame(2, ChannelOpen()))
    peer.server.close_channel(1, Failure(404, "no queue 'q' in vhost '/'"), QueueDeclare())
    assert peer.hears() == [(1, ChannelClose(404, "NOT_FOUND - no queue 'q' in vhost '/'", 50, 10))]
    assert peer.says(method_frame(1, QueueDeclare()), method_frame(1, ChannelCloseOk())) == []
    assert len(peer.says(method_frame(1, ChannelOpen()), method_frame(2, QueueDeclare()))) == 2


def test_what_came_before_a_close_is_carried_out_before_it_is_answered() -> None:
    """S1."""
    peer = Peer().running()
    events = peer.says(
        method_frame(1, ChannelOpen()), method_frame(1, QueueDeclare()), method_frame(0, ConnectionClose())
    )
    assert [type(method) for _, method, _, _ in events] == [ChannelOpen, QueueDeclare, ConnectionClose]
    assert peer.hears() == []
    peer.server.part()
    assert peer.hears() == [(0, ConnectionCloseOk())]


_METHODS: Any = st.sampled_from([kind() for kind in BY_INDEX.values()])
_FRAMES = st.lists(
    st.one_of(
        st.builds(method_frame, st.integers(0, 9), _METHODS),
        st.binary(max_size=30),
        st.builds(lambda kind, channel, body: bytes((kind, 0, channel)) + len(body).to_bytes(4, "big") + body + b"\xce",
                  st.sampled_from([1, 2, 3, 8]), st.integers(0, 9), st.binary(max_size=40)),
    ),
    max_size=30,
)  # fmt: skip


@settings(max_examples=120, deadline=None)
@given(frames=_FRAMES, sizes=st.lists(st.integers(1, 40), min_size=1, max_size=20), greeted=st.booleans())
def test_anything_may_come_in_any_pieces(frames: list[bytes], sizes: list[int], greeted: bool) -> None:
    """S4: whatever comes, the connection answers within the protocol or ends; how it is cut makes no difference."""
    whole, cut = Peer(), Peer()
    if greeted:
        whole.running()
        cut.running()
    raw = b"".join(frames)
    requests = whole.says(raw)
    pieces, at, turn = [], 0, 0
    while at < len(raw):
        pieces.append(raw[at : at + sizes[turn % len(sizes)]])
        at += len(pieces[-1])
        turn += 1
    found: list[Event] = []
    for piece in pieces:
        found += cut.server.receive(piece)
    assert flat(found) == flat(requests)
    assert cut.server.stage is whole.server.stage
    assert b"".join(cut.server.output()) == b"".join(whole.server.output())
    assert all(channel in range(10) for channel, _, _, _ in requests)


@given(st.lists(st.tuples(st.integers(1, 5), st.sets(st.integers(0, 4))), max_size=12), st.randoms())
def test_confirms_come_in_order_and_once(batches: list[tuple[int, set[int]]], random: Any) -> None:
    """S1: whatever order the broker keeps batches in, each message is confirmed or refused once, after those before."""
    confirms, waiting, parser = Confirms(1), [], FrameParser()
    for count, refused in batches:
        batch = confirms.expect(confirms.next(count), count)
        waiting.append((batch, sorted(row for row in refused if row < count)))
    wrong = {batch.tags[row] for batch, rows in waiting for row in rows}
    random.shuffle(waiting)
    told: dict[int, bool] = {}
    done = 0
    for batch, rows in waiting:
        for _, method, _, _ in parser.feed(b"".join(confirms.settle(batch, rows, []))):
            upto = method.delivery_tag  # type: ignore[attr-defined]
            for tag in range(done + 1, upto + 1):
                told[tag] = isinstance(method, BasicAck)
            done = upto
    assert told == {tag: tag not in wrong for tag in range(1, confirms.last_tag + 1)}


def _tags(taken: list[Taken]) -> list[int]:
    return [one.handed.first + place for one in taken for place in range(one.start, one.stop)]


def test_tags_are_answered_once() -> None:
    """S1."""
    held = Unanswered()
    delivery: Any = object()
    assert held.add(delivery, range(5), None, 0.0) == 1
    (taken,) = held.take(3, True)
    assert list(taken.rows) == [0, 1, 2]
    for tag, multiple in ((2, False), (3, True), (9, True), (9, False)):
        with pytest.raises(Failure, match="unknown delivery tag"):
            held.take(tag, multiple)
    held.give_back(held.take(4, False))
    assert _tags(held.take(0, True)) == [4, 5]
    assert held.take(0, True) == []


_ANSWERS = st.one_of(
    st.tuples(st.just("add"), st.integers(1, 5), st.just(0)),
    st.tuples(st.just("skip"), st.integers(1, 3), st.just(0)),
    st.tuples(st.sampled_from(["one", "multiple", "run", "back"]), st.integers(0, 30), st.integers(0, 6)),
)


@settings(max_examples=120, deadline=None)
@given(st.lists(_ANSWERS, max_size=40))
def test_stretches_hold_what_single_tags_would(steps: list[tuple[str, int, int]]) -> None:
    """S1: whatever is answered in whatever order."""
    held, model, last = Unanswered(), dict[int, None](), 0
    delivery: Any = object()
    for verb, number, more in steps:
        if verb in ("add", "skip"):
            assert (held.add(delivery, range(number), None, 0.0) if verb == "add" else held.skip(number)) == last + 1
            model |= dict.fromkeys(range(last + 1, last + number + 1)) if verb == "add" else {}
            last += number
            continue
        wanted = range(number, number + more + 1) if verb == "run" else [number]
        if verb in ("multiple", "back"):
            wanted = [tag for tag in model if not number or tag <= number]
            fails = bool(number) and (not wanted or number > last)
        else:
            wanted = list(takewhile(model.__contains__, wanted))
            fails = len(wanted) <= (more if verb == "run" else 0)
        try:
            taken = held.take_run(number, number + more) if verb == "run" else held.take(number, verb != "one")
            assert not fails
        except UnknownTag as unknown:
            assert fails
            taken = unknown.before
            wanted = [] if verb in ("multiple", "back") else wanted
        assert _tags(taken) == list(wanted)
        if verb == "back":
            held.give_back(taken)
        else:
            for tag in wanted:
                del model[tag]
        assert [one.first for one in held.held()] == sorted({one.first for one in held.held()})
    assert _tags(held.take_all()) == sorted(model)
