"""L2, Q20: what is done in C when memory runs out, a class is not what was expected, or Remuda is there twice."""

from __future__ import annotations

from pathlib import Path

from remuda.log.disk import DirectoryDisk
from remuda.log.tail.writer import LogOptions
from tests.log.samples import open_log
from tests.log.tail.test_native import BEGIN, run

WITHOUT_MEMORY = (
    BEGIN
    + """
try:
    from _testcapi import remove_mem_hooks, set_nomemory
except ImportError:
    print(json.dumps(None))
    sys.exit()
from tests.log.samples import appended, events, open_log
from remuda.log.disk import DirectoryDisk
from remuda.log.tail.segment_index import INDEX_STEP
from remuda.log.tail.writer import LogOptions

failed = {"write_single": 0, "frame_single": 0, "hold_single": 0}
def without_memory(verb, *args):
    # Each allocation fails in turn, until there are no more of them.
    for number in range(200):
        set_nomemory(number, number + 1)
        try:
            given = verb(*args)
        except MemoryError:
            failed[verb.__name__] += 1
            continue
        finally:
            remove_mem_hooks()
        if given:
            return given  # else it was left to Python
    raise AssertionError("it never succeeds")

log, _, _ = open_log(DirectoryDisk(directory), LogOptions())
log.append(appended(log, [b"first"]))
log.take().write()
log.reserve(20 * INDEX_STEP)
for size in (1, 3000) * 30:  # some of these begin a new block of the index
    without_memory(log.write_single, appended(log, [bytes(size)]))
    without_memory(log.write_single, events(log, log.next_offset - 1))
for size in (1, 3000) * 30:
    log._add(without_memory(log.frame_single, log._active, appended(log, [bytes(size)])))
    log._add(without_memory(log.frame_single, log._active, events(log, log.next_offset - 1)))
for size in (1, 3000) * 30:
    without_memory(log.hold_single, appended(log, [bytes(size)]))
    without_memory(log.hold_single, events(log, log.next_offset - 1))
log.close()
print(json.dumps(failed))
"""
)


def test_l2_memory_that_runs_out_anywhere_leaves_the_log_as_it_was(built: str, tmp_path: Path) -> None:
    failed = run(WITHOUT_MEMORY, "in C", built, tmp_path / "data")
    if failed is None:
        return
    assert min(failed.values()) > 100, failed
    log, records, recovery = open_log(DirectoryDisk(tmp_path / "data"), LogOptions())
    log.close()
    assert recovery.report.clean
    assert len(records) == 1 + 3 * 2 * 60
    assert (log.next_offset, log.next_position) == (181, 180)


MISUSED = (
    BEGIN
    + """
import msgspec
from tests.log.samples import appended, open_log
from remuda.log.disk import DirectoryDisk
from remuda.model.message import Message
from remuda.model.messages import Messages, of_plain
from remuda.model.records import Appended, Event, Events
from remuda.model.state import State

class Stranger(msgspec.Struct):
    consumers: object = None
    first: object = None
    bodies: object = None
    name: object = None

def refused(verb, *args):
    try:
        verb(*args)
    except (TypeError, AttributeError):
        return
    raise AssertionError((verb, args))

# A class without the fields is refused, and those that are known are read where they were.
known = [Appended, Events, Event, Messages, State, "x"]
for at in range(6):
    for wrong in (Stranger, None, 5, dict):
        refused(native.tail.set_up, *known[:at], wrong, *known[at + 1:])
for args in ((Stranger, Messages), (Message, Stranger), (None, None), (Message, 5)):
    refused(native.columns.set_messages, *args)
refused(native.columns.set_publish, Stranger)

# A refusal changes nothing, also where it comes after a class that has all fields, in other places.
from remuda.broker.embedded.pending import Pending
from remuda.broker.shared.wire import nonblocking
from remuda.model.operations.commands import Publish
from remuda.model.operations.results import Receipt

def turned(known):
    return msgspec.defstruct("Turned", [(name, object, None) for name in reversed(known.__struct_fields__)])

def made():
    command = Publish(Messages([b"b"], "n", key="k"), "q")
    return native.wire.single_frame(5, command), native.wire.receipt_frame(5, Receipt(3, range(7, 8), {}))

before = made()
known = [Publish, Messages, Receipt, Pending]
for at in range(4):
    for wrong in (Stranger, None, 5) if at < 3 else (None, 5):
        refused(native.wire.set_up, *map(turned, known[:at]), wrong, *known[at + 1:])
assert made() == before and None not in before

log, _, _ = open_log(DirectoryDisk(directory))
log.append(appended(log, [b"first"]))
log.take().write()
assert of_plain(Message("n", b"b")).bodies == [b"b"]
# Ids that nobody could have given: more of them than there can be, or beyond all numbers.
far = 1 << 80
for ids in (range(-(1 << 63), (1 << 63) - 1), range(far), range(far, far + 1), range(0), range(-9, -8)):
    record = Appended(log.next_offset, 7, Messages([b"!"], "x", ids), ("q",))
    for verb, *args in ((log.write_single,), (log.hold_single,), (log.frame_single, log._active)):
        try:
            verb(*args, record)
        except (OverflowError, MemoryError):
            pass
        else:
            break
    log._append_gathered()
    log.take().write()

# A tail that is nowhere yet writes nowhere.
tail = native.tail.Tail()
tail._byte, tail._full, tail._direct_until, tail.room = 100, 1000, 1000, 10_000
assert tail.hold_single(Appended(0, 7, Messages([b"!"], "x"), ("q",))) == 0
assert tail.write_single(Appended(0, 7, Messages([b"!"], "x"), ("q",))) == 0
assert tail.let_go() == b""
print(json.dumps(True))
"""
)


def test_q20_classes_and_values_that_were_not_expected_do_no_harm(built: str, tmp_path: Path) -> None:
    assert run(MISUSED, "in C", built, tmp_path / "data")


TWICE = (
    BEGIN
    + """
try:
    import _xxsubinterpreters as interpreters
    other = interpreters.create(isolated=False)
    interpreters.run_string(other, "import msgspec")
except (ImportError, TypeError, RuntimeError):  # a Python, or an msgspec, for which there is one interpreter
    print(json.dumps(None))
    sys.stdout.flush()
    os._exit(0)
from remuda import Message, open_broker

use = '''
from remuda import Message, native, open_broker
with open_broker("memory://") as broker:
    broker.create_queue("q", type="pull")
    for number in range(3):
        broker.publish(Message("q", b"%d" % number))
        delivery = broker.pull("q")
        assert delivery.bodies == [b"%d" % number]
        delivery.ack()
'''
load = '''
import importlib.util, sys
from pathlib import Path
for path in Path(%r).glob("_*"):
    spec = importlib.util.spec_from_file_location("remuda.native." + path.name.split(".")[0], path)
    try:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        raise AssertionError("there are two that share what they know")
    except ImportError:
        sys.modules[spec.name] = None
''' % sys.argv[1]
exec(use)
with open_broker(directory, shared=False, sync="os") as mine:
    mine.create_queue("q", type="pull")
    mine.publish(Message("q", b"before"))
    interpreters.run_string(other, load + use + "assert native.tail is None")
    mine.publish(Message("q", b"after"))
    assert [mine.pull("q").bodies for _ in range(2)] == [[b"before"], [b"after"]]
exec(use)
print(json.dumps(True))
sys.stdout.flush()
os._exit(0)
"""
)


def test_a_second_interpreter_does_without_and_takes_nothing_from_the_first(built: str, tmp_path: Path) -> None:
    assert run(TWICE, "in C", built, tmp_path / "data") in (True, None)
