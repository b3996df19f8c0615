"""G2: the notes of messages in the core: kept by every restart, from records or from a snapshot, and nothing beyond."""

from __future__ import annotations

import random
import struct
import sys

import pytest

from remuda.core.core import Core
from remuda.core.queues.notes import Notes
from remuda.core.recovery import snapshot
from remuda.core.recovery.snapshot import FrozenCore
from remuda.model.errors import Duplicate, NotHeld
from remuda.model.ids import Snowflakes
from remuda.model.notes import NOTE, Note, note_headers
from remuda.model.settlement import Outcome
from remuda.model.state import State
from tests.core.kit import PULL, Bench
from tests.core.naive import state_of

FAR = 3_600_000_000
WAITING = frozenset({State.QUEUED, State.RETRY})


def note(bench: Bench, offset: int, number: int, lease: int | None = None, queue: str = "q") -> None:
    about = Note(queue, offset, number, lease)
    bench.publish_to({"note": about}, "x", name=NOTE, headers=note_headers(about), ids=["n"])


def replayed(bench: Bench, upto: int) -> Core:
    fresh = Core(Snowflakes(1))
    for record in bench.records[:upto]:
        fresh.replay(record)
    return fresh


@pytest.mark.parametrize("seed", range(60))
def test_g2_every_restart_finds_the_notes_of_what_lives(seed: int) -> None:
    dice = random.Random(seed)
    bench = Bench(PULL)
    bench.declare("p", PULL)
    kept: dict[int, list[int]] = {}
    held = []
    for _ in range(60):
        act = dice.choice(["publish", "pull", "note", "note", "sleep", "end", "wake", "move", "wait", "dead", "again"])
        if act == "publish":
            kept[bench.publish("m").first] = []
        elif act == "pull" and (dispatch := bench.pull()) is not None:
            held.append(dispatch)
        elif act == "note" and held:
            dispatch = dice.choice(held)
            offset, number = dispatch.runs[0][0], dice.randrange(4)
            try:
                note(bench, offset, number, dispatch.lease)
                kept[offset].append(number)
            except Duplicate:
                assert number in kept[offset]
        elif act == "wake" and kept:
            offset = dice.choice(list(kept))
            try:
                note(bench, offset, 100 + dice.randrange(9))
                kept[offset].append(-1)
            except (Duplicate, NotHeld):
                pass
        elif act in ("sleep", "end", "dead") and held:
            dispatch = held.pop(dice.randrange(len(held)))
            outcome = {"sleep": Outcome.RELEASE, "end": Outcome.ACK, "dead": Outcome.DEAD}[act]
            sleeps = act == "sleep"
            settled = bench.answer(
                dispatch, outcome, delay=FAR if sleeps else None, awaits=dice.choice([0, 3]) if sleeps else 0
            )
            if settled and act == "end":
                kept.pop(dispatch.runs[0][0])
        elif act == "move":
            bench.move("p", states=WAITING)
            for offset in list(kept):
                if len(bench.core.notes("p", offset)):
                    assert not bench.core.notes("q", offset)
        elif act == "again":
            bench.reprocess()
        elif act == "wait":
            bench.wait(1)
        fresh = replayed(bench, len(bench.records))
        for name, queue in bench.core.queues.items():
            assert dict(fresh.queues[name].notes.table) == dict(queue.notes.table)
        loaded = Core(Snowflakes(1))
        snapshot.load(loaded, snapshot.save(bench.core))
        assert state_of(loaded) == state_of(bench.core)
        for offset, numbers in kept.items():
            found = len(bench.core.notes("q", offset)) + len(bench.core.notes("p", offset))
            assert found == len(numbers)


def test_g2_notes_stay_in_the_log_as_long_as_their_message() -> None:
    bench = Bench(PULL)
    offset = bench.publish("m").first
    dispatch = bench.pull()
    assert dispatch is not None
    note(bench, offset, 0, dispatch.lease)
    places = bench.core.notes("q", offset)

    def live() -> set[int]:
        frozen = FrozenCore(bench.core)
        frozen.thaw()
        return {at for first, count in frozen.live() for at in range(first, first + count)}

    assert set(places) <= live()
    bench.answer(dispatch, Outcome.ACK)
    assert not set(places) & live()


def test_g2_after_a_restart_any_note_wakes() -> None:
    bench = Bench(PULL)
    offset = bench.publish("m").first
    bench.answer(bench.pull(), Outcome.RELEASE, delay=FAR, awaits=5)
    fresh = bench.restarted()
    bench.core = fresh
    assert bench.pull() is None
    note(bench, offset, 1)
    assert bench.pull() is not None


def test_g2_a_note_wakes_nothing_that_waits_for_something_else() -> None:
    bench = Bench(PULL)
    scheduled = bench.publish("m", due=bench.now + FAR).first
    note(bench, scheduled, 1)
    assert bench.pull() is None, "it was scheduled"
    retried = bench.publish("m").first
    bench.answer(bench.pull(), Outcome.RETRY, delay=FAR)
    note(bench, retried, 1)
    assert bench.pull() is None, "it waits for its next attempt"


def test_g2_a_sleeper_costs_little_memory() -> None:
    bench = Bench(PULL)
    many = 2000
    bench.publish(*["m"] * many)
    for _ in range(many):
        dispatch = bench.pull()
        assert dispatch is not None
        for number in range(2):
            note(bench, dispatch.runs[0][0], number, dispatch.lease)
        bench.answer(dispatch, Outcome.RELEASE, delay=FAR)
    table = bench.core.queues["q"].notes.table
    size = sum(sys.getsizeof(pairs) + sys.getsizeof(offset) for offset, pairs in table.items())
    size += sum(sys.getsizeof(page) for page in table.freeze())
    assert size / many < 300
    assert len(snapshot.save(bench.core)) / many < 150


@pytest.mark.parametrize("restart", ["none", "records", "snapshot", "moved"])
def test_g1_g2_a_message_has_thousands_of_notes_each_once(restart: str) -> None:
    """Their cost does not grow with their number: they are kept in pages."""
    bench = Bench(PULL)
    bench.declare("p", PULL)
    offset, many = bench.publish("m").first, 400
    for number in range(many):
        note(bench, offset, 7 * number)
    queue = "q"
    if restart == "records":
        bench.core = replayed(bench, len(bench.records))
    elif restart == "snapshot":
        saved = snapshot.save(bench.core)
        bench.core = Core(Snowflakes(1))
        snapshot.load(bench.core, saved)
    elif restart == "moved":
        bench.move("p", states=WAITING)
        queue = "p"
    notes = bench.core.queues[queue].notes
    assert notes.count(offset) == many
    places = bench.core.notes(queue, offset)
    assert len(set(places)) == many
    assert places == sorted(places)
    for after in (0, 1, 127, 128, 129, 256, 399, 400, 500):
        assert bench.core.notes(queue, offset, after) == places[after:]
    for number in (0, 7, 7 * 127, 7 * 128, 7 * (many - 1)):
        assert notes.has(offset, number)
        assert not notes.has(offset, number + 1)
    if restart in ("none", "moved"):
        with pytest.raises(Duplicate):
            note(bench, offset, 7 * 200, queue=queue)
        note(bench, offset, 1, queue=queue)
        assert notes.has(offset, 1)
    notes.forget(offset, 1)
    assert (len(notes), notes.count(offset), notes.places(offset)) == (0, 0, [])


def test_g2_a_checkpoint_from_before_there_were_pages_is_read() -> None:
    notes, pairs = Notes(), struct.Struct("<QQ")
    notes.load({5: b"".join(pairs.pack(number, 100 + number) for number in range(300)), 6: pairs.pack(1, 2)})
    assert notes.places(5) == list(range(100, 400))
    assert notes.has(5, 299)
    notes.add(5, 300, 400)
    assert (notes.count(5), notes.count(6), notes.places(6)) == (301, 1, [2])
