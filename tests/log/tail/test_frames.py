"""L3: frames are found again after any damage, and nothing else is taken for one."""

from __future__ import annotations

import random
import time
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remuda.log.tail import tail_frames
from remuda.log.tail.tail_frames import HEADER, Frame, Torn, Unreadable, pack_header, scan, scan_file

MARKER = tail_frames.new_marker()


def packed(payloads: list[bytes], marker: bytes = MARKER) -> bytes:
    return b"".join(pack_header(marker, at, 1, payload) + payload for at, payload in enumerate(payloads))


def payloads_in(data: bytes) -> list[bytes]:
    return [item.payload for item in scan(data, MARKER) if isinstance(item, Frame)]


def test_frames_come_back_in_order() -> None:
    payloads = [b"", b"a", b"\0" * 50, b"x" * 1000]
    items = list(scan(packed(payloads), MARKER))
    assert [item.payload for item in items if isinstance(item, Frame)] == payloads
    assert [item.number for item in items if isinstance(item, Frame)] == [0, 1, 2, 3]


def test_a_zero_rest_is_a_clean_end() -> None:
    assert payloads_in(packed([b"a", b"b\0\0"]) + bytes(5000)) == [b"a", b"b\0\0"]
    assert list(scan(bytes(5000), MARKER)) == []
    assert list(scan(b"", MARKER)) == []


def test_l3_a_torn_tail_is_told_from_its_first_byte() -> None:
    whole = packed([b"first", b"second"])
    begin = len(packed([b"first"]))
    for cut in range(begin + 1, len(whole)):
        items = list(scan(whole[:cut] + bytes(100), MARKER))
        assert isinstance(items[0], Frame)
        assert items[1:] == [Torn(begin, len(whole[:cut].rstrip(b"\0")))], cut


def test_l3_damage_in_the_middle_costs_only_what_it_hit() -> None:
    whole = packed([b"one", b"two", b"three"])
    start, end = len(packed([b"one"])), len(packed([b"one", b"two"]))
    for at in range(start, end):
        broken = bytearray(whole)
        broken[at] ^= 0x10
        items = list(scan(bytes(broken), MARKER))
        assert items[1] == Unreadable(start, end)
        assert payloads_in(bytes(broken)) == [b"one", b"three"]


def test_a_body_cannot_forge_a_frame() -> None:
    forged = pack_header(tail_frames.new_marker(), 7, 1, b"evil") + b"evil"
    whole = packed([b"one", forged * 3, b"two"])
    assert payloads_in(whole) == [b"one", forged * 3, b"two"]
    broken = bytearray(whole)
    broken[len(packed([b"one"])) + 9] ^= 1
    assert payloads_in(bytes(broken)) == [b"one", b"two"]


@settings(deadline=None)
@given(st.lists(st.binary(max_size=80), max_size=8), st.data())
def test_l3_random_damage_never_gives_a_wrong_frame(payloads: list[bytes], data: st.DataObject) -> None:
    whole = bytearray(packed(payloads))
    for _ in range(data.draw(st.integers(0, 4))):
        if whole:
            at = data.draw(st.integers(0, len(whole) - 1))
            whole[at : at + data.draw(st.integers(0, 6))] = data.draw(st.binary(max_size=6))
    for item in scan(bytes(whole), MARKER):
        if isinstance(item, Frame):
            assert item.payload == payloads[item.number]


@settings(deadline=None)
@given(st.binary(max_size=400))
def test_l3_garbage_is_never_a_frame(garbage: bytes) -> None:
    assert payloads_in(garbage) == []


@pytest.mark.parametrize("window", [32, 64, 200, 5000])
def test_a_window_sees_what_the_whole_shows(window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail_frames, "WINDOW_BYTES", window)
    rng = random.Random(window)
    for _ in range(60):
        whole = bytearray(packed([rng.randbytes(rng.randrange(150)) for _ in range(12)]))
        for _ in range(rng.randrange(3)):
            at = rng.randrange(len(whole))
            whole[at : at + rng.choice([1, 90])] = bytes(rng.choice([1, 90]))
        whole += bytes(rng.choice([0, 300]))
        data = bytes(whole)
        expected = list(scan(data, MARKER))
        assert list(scan_file(partial(part_of, data), MARKER, 0, len(data))) == expected


def part_of(data: bytes, start: int, length: int) -> bytes:
    return data[start : start + length]


def test_searching_stays_linear_in_a_hostile_file() -> None:
    claim = HEADER.pack(MARKER, 1, 1 << 20, 0, 1)
    data = claim * (2_000_000 // len(claim))
    started = time.process_time()
    assert not any(isinstance(item, Frame) for item in scan(data, MARKER))
    assert time.process_time() - started < 5


@pytest.mark.parametrize("zeros", [0, 1, 65535, 65536, 65537, 300_000])
@pytest.mark.parametrize("content", [b"", b"x", b"\0x", b"x" * 65536, b"x" + bytes(70_000) + b"y"], ids=len)
def test_the_rest_that_was_never_written_is_found(content: bytes, zeros: int) -> None:
    assert tail_frames._written(content + bytes(zeros)) == len(content)
