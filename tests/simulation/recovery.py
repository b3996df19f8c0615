"""Opening the log again after a crash, and everything that must be true then."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from remuda.core.compacter import Compacter
from remuda.core.core import Core
from remuda.core.extensions import MessageFacts
from remuda.core.recovery import snapshot
from remuda.log.log import Log
from remuda.log.readers.reader import Reader
from remuda.log.segments import list_files
from remuda.log.tail.writer import LogOptions
from remuda.model.ids import Snowflakes
from remuda.model.message import Message
from remuda.model.messages import cell
from remuda.model.records import Appended, Events, Record
from tests.simulation import checks
from tests.simulation.disk import CrashKind, SimulatedCrash, SimulatedDisk
from tests.simulation.flow import Spent
from tests.simulation.journal import Journal, WatchedEngine
from tests.simulation.model import LIVE, PARKED, Model, Step, Violation, require

if TYPE_CHECKING:
    from tests.simulation.runner import Simulation

WORKER = 7


def recover(sim: Simulation, kind: CrashKind) -> None:
    """Bring the disk back and open it; the opening itself may crash too."""
    while True:
        durable = promised(sim, kind)
        sim.disk.restart(kind)
        sim.power_was_lost = sim.power_was_lost or kind is CrashKind.POWER
        chances = sim.disk.calm()
        lost = sim.journal.cut(sim.disk, kind)
        forget_events(sim, lost)
        if sim.random.random() < 0.15:
            sim.disk.crash_in(sim.random.randint(1, 40), sim.random.choice(list(CrashKind)))
        try:
            open_engine(sim, durable)
        except SimulatedCrash:
            assert sim.disk.crash_kind is not None
            kind = sim.disk.crash_kind
            sim.note(f"  {kind.value} while the log was being opened")
            sim.tally.crashes += 1
        else:
            sim.disk.full_chance, sim.disk.fault_chance = chances
            sim.tally.recoveries += 1
            return


def promised(sim: Simulation, kind: CrashKind) -> Model:
    """What a crash of this kind must leave: all up to the last write, or up to the last sync."""
    model = sim.base.copy()
    step = Step("what was promised", replays=True)
    count = sim.journal.written if kind is CrashKind.KILL else sim.journal.synced
    if None not in sim.journal.records[:count]:
        for record in sim.journal.records[:count]:
            assert record is not None
            model.play(record, step)
    return model


def open_engine(sim: Simulation, durable: Model | None = None) -> None:
    """Open an engine on what the disk has, and check it against the records that survived."""
    journal = Journal()
    sim.model.now = sim.clock
    begun = sim.begun()
    try:
        engine = WatchedEngine(sim.disk, sim.scenario.broker, WORKER, sim.clock, journal, sim.extensions)
    except SimulatedCrash:
        sim.journal.join(journal)
        raise
    sim.disk.disarm()
    sim.disk.full_chance, sim.disk.fault_chance = sim.scenario.full_chance, sim.scenario.fault_chance
    sim.engine = engine
    sim.marks.clear()
    assert journal.base is not None
    sim.journal.reach(journal.base)
    holes = sim.journal.has_holes
    if holes:
        require(sim.power_was_lost, "L2: records are gone although the power was never lost")
    check_report(sim, holes)
    expected = sim.base.copy()
    expected.now, expected.latest = sim.clock, sim.latest
    went_back = sim.clock < sim.latest
    if holes:
        sim.damaged = True
        for queue in expected.queues.values():
            queue.spent = Spent(known=False)
        expected.shared_dues.clear()
        check_promises(engine.core, durable or sim.base, [*sim.journal.kept(), *journal.kept()])
        expected.next_offset, expected.next_position = engine.log.next_offset, engine.log.next_position
        for record in [*sim.journal.kept(), *journal.kept()]:
            remember_messages(expected, record)
    else:
        replay = Step("replay", replays=True)
        for record in sim.journal.kept():
            expected.play(record, replay)
        for queue in expected.queues.values():
            queue.consumers.clear()
            queue.leases.clear()
        resume = Step("resume", resumes=True, begun=begun)
        for record in journal.kept():
            expected.play(record, resume)
        # A clock that was set back makes a scheduled message wait again, unless a checkpoint saw it come due.
        checks.compare(engine.core, expected, max(sim.latest, sim.clock), ordered=sim.clock >= sim.latest)
    for record in [*sim.journal.kept(), *journal.kept()]:
        sim.remember(record)
    if went_back:
        expected.shared_dues.clear()
        for queue in expected.queues.values():
            queue.spent.clock_went_back()
    checks.adopt(engine.core, expected)
    expected.newest_pullers = sim.model.newest_pullers
    sim.model = expected
    journal.rebase()
    sim.journal = journal
    sim.base = expected.copy()
    checks.check_numbers(engine, expected)
    check_nothing_held(engine.core)
    check_readable(sim)
    if sim.random.random() < 0.3:
        check_rebuilding(sim)


def check_report(sim: Simulation, holes: bool) -> None:
    """No damage but a torn end, unless a power loss took records that were not synced from between others."""
    report = sim.engine.report
    require(not report.damaged_checkpoints, f"L3: checkpoints {report.damaged_checkpoints} are damaged")
    if not holes and not sim.damaged:
        require(not report.state_lost, "L3: the state was lost")
        # A segment's header may be lost while all its records are there.
        damages = [one for one in report.damages if one.records or one.messages or one.events or not sim.power_was_lost]
        require(not damages, f"L3: there is damage where nothing was damaged: {report.describe()}")


def check_promises(core: Core, durable: Model, survived: Sequence[Record]) -> None:
    """Where a power loss left holes among records that nobody was promised: all that was promised is still there."""
    ends: set[tuple[str, int]] = set()
    for record in survived:
        if isinstance(record, Events):
            for event in record.rows:
                if event.state.value not in LIVE:
                    ends |= {(event.queue, offset) for offset in range(event.first, event.first + event.count)}
    changed = {record.queue for record in survived if hasattr(record, "queue")}
    for name, queue in durable.queues.items():
        if name not in core.queues:
            require(name in changed, f"L2: queue {name!r} is gone")
            continue
        found = checks.core_view(core.queues[name], -1)
        live = {*found["deadlines"], *found["delayed"], *found["flying"]}
        for offset, entry in queue.entries.items():
            if entry.state in LIVE and queue.is_persistent and name not in changed:
                known = offset in live or offset in found["parked"] or (name, offset) in ends
                require(known, f"L2: {name}: message {offset} was accepted for good and is nowhere")
        for offset, state in queue.ended.items():
            require(
                state in PARKED or offset not in live,
                f"L2: {name}: message {offset} was settled for good and is back",
            )


def remember_messages(model: Model, record: Record) -> None:
    if not isinstance(record, Appended):
        return
    for row, message in enumerate(record.messages):
        model.messages[record.first + row] = message
        if message.id.isdecimal():
            model.made_ids.add(message.id)
        if message.object is not None and message.key is not None and cell(record.digest, row) is not None:
            model.history[message.object, message.key] = message.body


def forget_events(sim: Simulation, lost: Sequence[Record]) -> None:
    for record in lost:
        if isinstance(record, Events):
            for position in range(record.first, record.first + len(record.rows)):
                sim.events.pop(position, None)


def check_nothing_held(core: Core) -> None:
    """Q17, and nobody holds a delivery right after a start."""
    for queue in core.queues.values():
        require(not queue.flights.size, f"{queue.name}: {list(queue.flights)} are in flight after a restart")


def check_readable(sim: Simulation) -> None:
    """Every live message can be read back, and is what was published."""
    live = sorted({offset for queue in sim.model.queues.values() for offset in queue.entries})
    fetched = sim.engine.log.fetch([(offset, 1) for offset in live])
    require(sim.damaged or not fetched.missing, f"L2: the log has lost {fetched.missing}, which are live")
    found = [offset for first, count in fetched.offsets for offset in range(first, first + count)]
    for offset, message in zip(found, fetched.messages, strict=True):
        check_message(offset, message, sim.model)


def check_message(offset: int, message: Message, model: Model) -> None:
    expected = model.messages.get(offset)
    require(expected is not None, f"message {offset} was never published")
    assert expected is not None
    for name in Message.__struct_fields__:
        found, wanted = getattr(message, name), getattr(expected, name)
        if name == "headers":
            found, wanted = dict(found), dict(wanted)
        require(found == wanted, f"M1: message {offset} has {name} {found!r}, not {wanted!r}")


def check_rebuilding(sim: Simulation) -> None:
    """L4: the newest checkpoint with the records after it gives the same state as all records."""
    twin = sim.disk.clone()
    names = twin.list()
    if not any(name.startswith("checkpoint/") for name in names) or any(name.startswith("sealed/") for name in names):
        return
    tail = list_files(names).tail
    if not tail or tail[0].sequence > 1:
        return  # a segment that told of queues alone was collected: what it told lives on in the checkpoint
    if sim.scenario.features.clock_jumps_back:
        return  # a scheduled message may have been due by one clock and not by the next
    short = rebuilt(sim, twin)
    for name in names:
        if name.startswith("checkpoint/"):
            twin.remove(name)
    whole = rebuilt(sim, twin)
    if short is None or whole is None:
        return
    require(
        sorted(short.queues) == sorted(whole.queues),
        f"{sorted(short.queues)} from a checkpoint, {sorted(whole.queues)}",
    )
    time = max(sim.latest, sim.clock)
    for name, queue in short.queues.items():
        views = checks.core_view(queue, time), checks.core_view(whole.queues[name], time)
        if queue.keyed is not None:
            checks.ignore_lines(*views)
        difference = checks.differs(*views)
        require(not difference, f"L4: queue {name!r} from a checkpoint differs from all records: {difference}")
    require(short.compacter.history == whole.compacter.history, "L4: the compacter's history differs")


def rebuilt(sim: Simulation, disk: SimulatedDisk) -> Core | None:
    """A core made of a disk's files, before it resumes."""
    broker = sim.scenario.broker

    def facts_of(offset: int) -> MessageFacts | None:
        message = sim.model.messages.get(offset)
        return None if message is None else MessageFacts(message.id, len(message.body))

    core = Core(
        Snowflakes(WORKER),
        compacter=Compacter(broker.compact),
        default_options=broker.queue_defaults,
        facts_of=facts_of,
    )
    log, found = Log.open(disk.clone(), LogOptions(segment_bytes=broker.segment_bytes))
    if found.snapshot is not None:
        snapshot.load(core, found.snapshot)
    for record in found.records:
        core.replay(record)
    if found.report.state_lost or found.report.damages:
        return None
    core.learn_facts()
    log.close()
    return core


def check_reader(sim: Simulation) -> None:
    """L1, L8: a spectator reads every message and every event as they happened; only what was collected is missing."""
    reader = Reader(sim.disk)
    offset = 0
    for record in reader.messages():
        for row, message in enumerate(record.messages):
            require(record.first + row >= offset, f"L8: the reader went back to offset {record.first + row}")
            require(sim.collected or sim.damaged or record.first + row == offset, f"L8: the reader skipped {offset}")
            offset = record.first + row + 1
            check_message(record.first + row, message, sim.model)
    position = 0
    for events in reader.events():
        for at, event in enumerate(events.rows, events.first):
            require(sim.collected or sim.damaged or at == position, f"L8: the reader skipped event {position}")
            position = at + 1
            if sim.events.get(at) != (events.time, event):
                raise Violation(f"L8: the reader has {events.time, event} at {at}, not {sim.events.get(at)}")
    require(reader.end() == (sim.model.next_offset, sim.model.next_position), f"L8: the reader ends at {reader.end()}")
