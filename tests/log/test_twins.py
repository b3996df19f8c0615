"""What is there in C and in Python does the same: random operations, hostile ones among them, give equal results and
leave equal states. Each way runs in a process of its own."""

from __future__ import annotations

from pathlib import Path

from tests.log.test_native import BEGIN, WAYS, run

STRUCTURES = (
    BEGIN
    + """
import random
from collections import deque
from remuda.broker.checks import is_plain_pull, plain_publish
from remuda.broker.delivery import Delivery, deliver
from remuda.broker.embedded.recent import RecentMessages
from remuda.broker.embedded.window import Window
from remuda.core.delayed import ColumnMap
from remuda.core.effects import Dispatch
from remuda.core.leases import Leases
from remuda.core.lanes import NEVER
from remuda.core.ranges import MessageRange, RangeMap
from remuda.core.ready import ReadyMessages
from remuda.model.commands import Publish, is_plain
from remuda.model.message import Message
from remuda.model.messages import Messages, of_plain, with_id
from remuda.model.records import SpoolTaken
from remuda.model.state import State
from remuda.model.texts import is_plain_name

told = []
def tell(verb, *args, **named):
    try:
        given = verb(*args, **named)
    except (TypeError, ValueError, OverflowError, LookupError, AttributeError) as error:
        # Not in the same words, but from the same calls.
        told.append("refused" if not isinstance(error, LookupError) else "empty")
    else:
        told.append(repr(given))
        return given

# Lines of messages that wait.
for seed in range(30):
    chance, ready, offset = random.Random(seed), ReadyMessages(), 0
    frozen = []
    for _ in range(100):
        verb = chance.choice("aaaaaaaaarrrrrrrfteonwlF")
        priority, count = chance.choice([0, 0, 0, 5, 31]), chance.randint(1, 4)
        first = chance.randint(0, offset + 1)
        if verb == "a":
            offset += chance.choice([0, 0, 0, 3])
            ready.add(priority, False, offset, count, chance.choice([NEVER, NEVER, NEVER, 50, 80]))
            offset += count
        elif verb == "f" and ready.size:
            for run in ready.take(1):  # and back to the front
                ready.add(run.priority, True, run.first, run.count, run.deadline)
        elif verb == "r":
            tell(ready.take_run, count, chance.choice([0, 0, 0, 60]))
        elif verb == "t":
            tell(ready.take, count)
        elif verb == "n":
            tell(ready.take_newest, count)
        elif verb == "e":
            tell(ready.expire, chance.choice([0, 50, 90]))
        elif verb == "w":
            tell(ready.remove, first, count)
        elif verb == "o":
            tell(ready.overlap, first, count)
            tell(ready.oldest, first)
        elif verb == "l" and not frozen:
            frozen = [(chunk, list(chunk.runs())) for _, _, chunks in ready.freeze() for chunk in chunks]
            told.append(repr([runs for _, runs in frozen]))
        elif verb == "F":
            assert all(list(chunk.runs()) == runs for chunk, runs in frozen), "frozen chunks stay as they are"
            frozen = []
            ready.thaw()
        told.append([ready.size, ready.soonest])
        if chance.random() < 0.05:
            told.append(repr([(p, f, line.size, line.soonest, list(line.runs())) for p, f, line in ready.levels()]))
            assert ready.size == sum(line.size for _, _, line in ready.levels())

# Ranges of messages in flight.
for kind in (RangeMap, ColumnMap):
    for seed in range(15):
        chance, ranges, lease, frozen = random.Random(seed), kind(), 0, []
        span = (8, 60, 4000)[seed % 3]
        for _ in range(600 if span == 4000 else 100):
            first, count, verb = chance.randint(0, span), chance.randint(1, 3), chance.choice("aaaawwwwwrfF")
            if verb == "a" and not ranges.find(first, count):
                lease += 1
                ranges.add(MessageRange(first, count, State.FETCHED, lease=lease))
            elif verb == "w":
                piece = chance.choice(list(ranges)) if span < 4000 and ranges.size else ranges.holding(first)
                if piece is not None and chance.random() < 0.9:
                    first, count = piece.first, piece.count - (chance.random() < 0.2)
                given = piece.lease if piece is not None and chance.random() < 0.9 else lease
                tell(ranges.take_whole, first, count, given)
            elif verb == "r":
                tell(ranges.remove, first, count)
            elif verb == "f" and not frozen:
                frozen = [(block, list(block)) for block in ranges.freeze()]
            elif verb == "F":
                assert all(list(block) == pieces for block, pieces in frozen)
                frozen = []
                ranges.thaw()
            told.append(ranges.size)
            assert ranges.size == sum(piece.count for piece in ranges) if span < 4000 else True
        told.append(repr(list(ranges)))

# Deliveries that were asked for.
class Sky(Leases):
    waits = False

for seed in range(12):
    chance, sky, token, offset = random.Random(seed), Sky("q"), 0, 0
    for _ in range(2600 if seed < 1 else 80):
        if chance.random() < 0.5:
            token, count = token + 1, chance.randint(1, 3)
            deadline = 10**6 * (1000 if chance.random() < 0.1 else 1) + token
            run = (offset, count, chance.choice([NEVER, 10**7]), chance.randint(0, 3))
            told.append(repr(sky.send("q", run, token, chance.choice("ab"), token + 7, 5, deadline, (1, 2))))
            offset += count
        else:
            given = chance.choice([token, chance.randint(0, token + 1)])
            lease = sky.leases.get(given)
            runs = None
            if lease is not None and chance.random() < 0.3:
                runs = [(lease.runs[0][0] + chance.choice([0, 0, 1]), chance.randint(1, 2))]
                runs = runs * chance.choice([1, 1, 1, 2])
            if lease is not None and chance.random() < 0.1:
                lease.pulled = False
                sky.unanswered += 1
            if chance.random() < 0.5:
                tell(sky.land, given, chance.choice(["a", "b", None]), runs)
            else:
                tell(sky.complete, "q", given, chance.choice(["a", "b", None]), runs, token + 9, 11)
        told.append([sky.flights.size, len(sky.leases), sky._lease_ends[:1], len(sky._lease_ends), sky.unanswered])
    told.append(repr([list(sky.flights), sky.leases]))

# Messages that are held.
def batch(chance, first):
    size = chance.choice([1, 1, 1, 3])
    return Messages([b"%d" % (first + row) + bytes(chance.choice([0, 0, 40_000])) for row in range(size)], "n")

for seed in range(20):
    chance, offset = random.Random(seed), 0
    window, recent = Window(chance.choice([1, 5, 50])), RecentMessages(chance.choice([10, 3000, 50_000, 4_000_000]))
    for _ in range(2500 if seed < 1 else 80):
        verb = chance.choice("pppptd")
        if verb == "p":
            messages = batch(chance, offset)
            window.put(offset, messages)
            recent.put(offset, messages, 100)
            offset += len(messages.bodies) + chance.choice([0, 0, 2])
        elif verb == "t":
            few = range(chance.choice([1, 1, 2]))
            runs = [(max(0, offset - chance.randint(0, 9)), chance.randint(1, 4)) for _ in few]
            if window._batches and chance.random() < 0.7:
                first, messages = window._batches[0]
                runs = [(first, chance.choice([1, len(messages.bodies)]))]
            for held in (window, recent):
                found = held.take(runs)
                told.append(None if found is None else [len(body) for body in found.bodies])
        else:
            window.discard(max(0, offset - 3), 2)
        told.append([window.size, recent.bytes, recent._head, len(recent._firsts)])

# What is ordinary.
texts = ["", "a", "b c", "\\x7f", "\\n", "é", "x" * 255, "x" * 256, "\\ud800", b"a", None, 5, True]
texts.append(type("T", (str,), {})("t"))
for value in texts:
    told.append(is_plain_name(value))
odd = [None, 5, -1, 2**70, 31, 32, True, "", "é", "a", (), ("a",), [], b"", 1.5, object]
odd += [{}, {"a": "b"}, {"a": "é"}, {"a": 1}, {1: "a"}]
for name in Message.__struct_fields__:
    for value in odd:
        message = Message(**{"name": "n", "body": b"b", name: value})
        told.append(repr(of_plain(message)))
told.append(repr(of_plain(Message("n", b"b", headers={"a": "b"}, priority=3, created=5))))
for wrong in (None, 5, "text"):
    tell(is_plain_name, wrong)
plain = Messages([b"b"], "n")
for name in Messages.__struct_fields__:
    for value in [[], [b"a", b"b"], *(odd if name != "bodies" else ())]:
        for queue in (None, "q"):
            messages = Messages(**{"bodies": [b"b"], "name": "n", "object": "o", "key": None, name: value})
            tell(is_plain, Publish(messages, queue))
news = Messages([b"b"], "n", object="o", key="k")
told.append([
    is_plain(Publish(plain)), is_plain(Publish(plain, "q", "u", None, None, None, "p", 5)),
    is_plain(Publish(plain, exchange="e")), is_plain(Publish(plain, options={})),
    is_plain(Publish(plain, spooled=SpoolTaken("a", 1, 1, 1))), is_plain(Publish(news)), is_plain(Publish(news, "q")),
])
usual = ["q", 1, False, "none", 0]
for at in range(5):
    for value in [*odd, *texts, 1, 1 << 62, False, "none", "no" + "ne", "all", 0, 0.0]:
        tell(is_plain_pull, *usual[:at], value, *usual[at + 1:])
asked = [Message("n", b"b"), None, None, None, None, None]
for at in range(6):
    for value in [*odd, *texts, Message("é", b"b"), [Message("n", b"b")], plain]:
        tell(plain_publish, *asked[:at], value, *asked[at + 1:])
dispatch = Dispatch("q", "c", 1, 7, [(5, 2)], [1], 9)
delivery = Delivery(dispatch, Messages([b"a", b"b"], "n"), lambda *args: args[2])
told.append([delivery.queue, delivery.consumer, delivery.lease, delivery.runs, delivery.offsets, delivery.attempts])
told.append(repr([delivery.ack([1]), delivery.nack()]))
class Own(Delivery):
    def __init__(self, number):
        super().__init__(dispatch, plain, None)
        self.number = number
told.append([Own(5).number, Own(6).queue, Own(7).offsets])
for wrong in ([], [plain], [plain, 1.5, 1, 1], [plain, 5, "x", 1], [None, 1, 1, 1]):
    tell(with_id, *wrong)
for first in (0, 1024, 1 << 61):
    told.append(repr(with_id(Messages([b"b"], "n", headers={"a": "b"}, priority=3, wire=b"w"), first, 1024, 99)))
made = deliver(Delivery, dispatch, plain, None, None)
told.append([type(made).__name__, made.queue, made.offsets, made.messages is plain])
tell(Delivery)
tell(Delivery, dispatch)
tell(Delivery, None, plain, None)
tell(Delivery, dispatch, plain, None, None, None)
print(json.dumps(told))
"""
)


def test_random_operations_do_the_same_in_both_languages(built: str, tmp_path: Path) -> None:
    in_c, in_python = (run(STRUCTURES, way, built, tmp_path / way) for way in WAYS)
    assert len(in_c) == len(in_python) > 10_000
    assert [pair for pair in zip(in_c, in_python, strict=True) if pair[0] != pair[1]] == []
