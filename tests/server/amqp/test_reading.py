"""Runs of publications and acknowledgements are read as the same messages that a plain parser finds (S1, S4)."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from remuda.amqp.codec.frames import Event, FrameParser, add_content, method_frame
from remuda.amqp.codec.methods import BasicAck, BasicNack, BasicPublish, QueueDeclare
from remuda.amqp.codec.properties import Properties, encode_properties
from remuda.server.amqp.protocol.request_reader import Acks, Publications, RequestReader

_FRAME_MAX, _BODY_MAX = 4096, 20_000
_PROPERTIES = [encode_properties(Properties(delivery_mode=2)), b"\0\0", encode_properties(Properties(message_id="x"))]


def flat(requests: list[Event]) -> list[Event]:
    """Requests as they would be one by one."""
    found: list[Event] = []
    for channel, method, properties, body in requests:
        if isinstance(method, Publications):
            for row, own in enumerate(method.bodies):
                found.append((channel, method.method, method.properties_of(row), own))
        elif isinstance(method, Acks):
            for first, last, multiple in method.answers:
                found += [(channel, BasicAck(tag, multiple), b"", b"") for tag in range(first, last + 1)]
        else:
            found.append((channel, method, properties, body))
    return found


def _publication(channel: int, key: str, properties: bytes, size: int) -> bytes:
    frames: list[bytes] = []
    add_content(frames, method_frame(channel, BasicPublish(0, "", key)), channel, properties, bytes(size), _FRAME_MAX)
    return b"".join(frames)


_CHANNELS = st.integers(0, 2)
_PIECES = st.lists(
    st.one_of(
        st.builds(
            lambda many, *rest: _publication(*rest) * many, st.integers(1, 4), _CHANNELS, st.sampled_from(["q", "r"]),
            st.sampled_from(_PROPERTIES), st.sampled_from([0, 1, 1, 5, 300, 9000]),
        ),
        st.builds(
            lambda channel, first, many, multiple: b"".join(
                method_frame(channel, BasicAck(tag, multiple)) for tag in range(first, first + many)
            ),
            _CHANNELS, st.integers(0, 9), st.integers(1, 4), st.booleans(),
        ),
        st.builds(method_frame, _CHANNELS, st.sampled_from([BasicNack(3), QueueDeclare(0, "q")])),
        st.just(b"\x08\0\0\0\0\0\0\xce"),
    ),
    max_size=12,
)  # fmt: skip


@settings(max_examples=120, deadline=None)
@given(
    pieces=_PIECES,
    cuts=st.lists(st.integers(1, 700), min_size=1, max_size=8),
    wrong=st.one_of(st.none(), st.tuples(st.floats(0, 1), st.integers(1, 255))),
)
def test_it_reads_what_a_plain_parser_reads(
    pieces: list[bytes], cuts: list[int], wrong: tuple[float, int] | None
) -> None:
    """S4: however the bytes are cut, and whichever of them is wrong."""
    raw = bytearray(b"".join(pieces))
    if wrong is not None and raw:
        raw[round(wrong[0] * (len(raw) - 1))] ^= wrong[1]
    reader, parser = RequestReader(_FRAME_MAX, max_body=_BODY_MAX), FrameParser(_FRAME_MAX, max_body=_BODY_MAX)
    found: list[Event] = []
    expected: list[Event] = []
    at = turn = 0
    while at < len(raw):
        piece = bytes(raw[at : at + cuts[turn % len(cuts)]])
        found += flat(reader.feed(piece))
        expected += parser.feed(piece)
        at, turn = at + len(piece), turn + 1
    assert found == expected
    assert str(reader.error) == str(parser.error)
    if parser.error is None:
        assert reader.held == parser.held


def test_a_run_is_one_request() -> None:
    """What differs in its body alone is read together, and so is what differs in its size or properties."""
    reader = RequestReader(_FRAME_MAX, max_body=_BODY_MAX)
    alike = _publication(1, "q", b"\0\0", 10) * 50
    ((_, run, _, _),) = reader.feed(alike)
    assert isinstance(run, Publications)
    assert (run.properties, len(run.bodies)) == (b"\0\0", 50)
    mixed = [_publication(1, "q", _PROPERTIES[at % 3], at % 7) for at in range(50)]
    ((_, run, _, _),) = reader.feed(b"".join(mixed))
    assert isinstance(run, Publications)
    assert run.properties == [_PROPERTIES[at % 3] for at in range(50)]
    assert [len(body) for body in run.bodies] == [at % 7 for at in range(50)]
    acks = b"".join(method_frame(1, BasicAck(tag, False)) for tag in [1, 2, 3, 7, 8])
    assert reader.feed(acks) == [(1, Acks([(1, 3, False), (7, 8, False)]), b"", b"")]


def test_bytes_that_come_one_by_one_are_read_as_well() -> None:
    reader = RequestReader(_FRAME_MAX, max_body=_BODY_MAX)
    raw = _publication(1, "q", b"\0\0", 3) * 3 + method_frame(1, BasicAck(5, True))
    found: list[Any] = []
    for byte in raw:
        found += reader.feed(bytes((byte,)))
    assert [type(method) for _, method, _, _ in found] == [Publications] * 3 + [Acks]
    assert reader.held == 0


def test_neither_a_change_of_the_frame_size_nor_a_closed_channel_is_overlooked() -> None:
    reader = RequestReader(_FRAME_MAX, max_body=_BODY_MAX)
    reader.feed(_publication(1, "q", b"\0\0", 9000)[:5000])
    assert reader.held > 0
    reader.forget(1)
    rest = method_frame(1, BasicPublish())
    assert reader.feed(_publication(1, "q", b"\0\0", 9000)[5000:] + rest) == []
    assert reader.error is not None
    small = RequestReader(_FRAME_MAX, max_body=_BODY_MAX)
    small.limit_frames(64)
    assert small.feed(_publication(1, "q", b"\0\0", 100)) == []
    assert small.error is not None
