"""What a host keeps of each guest: no longer than it is needed, and let go whatever the disk does (S5, S6)."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from remuda.broker import checks
from remuda.broker.embedded.delivering.attempts import FormerGuests
from remuda.broker.embedded.runtime import Runtime
from remuda.broker.options import BrokerOptions
from remuda.broker.shared.guest import open_state
from remuda.broker.shared.guest.open_state import OpenState
from remuda.broker.shared.host import guest_session
from remuda.broker.shared.host.guest_requests import RequestHandler
from remuda.broker.shared.host.guest_session import GuestSession
from remuda.broker.shared.wire import wire_frames
from remuda.broker.shared.wire.command_checks import checked
from remuda.broker.shared.wire.wire_frames import Carried
from remuda.core.effects import Dispatch
from remuda.model.errors import DiskFull
from remuda.model.message import Message
from remuda.model.operations.commands import Clear, DeclareQueue, Pull, Settle, Subscribe
from remuda.model.queues.options import read_options
from remuda.model.settlement import Outcome, Settlement
from tests.conformance.kit import eventually
from tests.faults.disks import FailingDisk


@pytest.fixture
def disk(tmp_path: Path) -> FailingDisk:
    return FailingDisk(tmp_path / "broker")


@pytest.fixture
def runtime(disk: FailingDisk) -> Iterator[Runtime]:
    runtime = Runtime(disk, BrokerOptions())
    for name, kind in (("jobs", "round-robin"), ("pulled", "pull")):
        runtime.wait(runtime.submit(DeclareQueue(name, read_options({"type": kind}))).ticket)
    yield runtime
    runtime.close()


def publish(runtime: Runtime, count: int) -> None:
    for _ in range(count):
        pending = runtime.submit(checks.publish(Message("pulled", b"body"), None, None, None, None, None))
        runtime.wait(pending.ticket)


def pull(runtime: Runtime, guest: GuestSession, count: int = 1) -> Dispatch:
    command, _ = guest.pull(Pull("pulled", "far", 1, count))
    found: Dispatch = runtime.submit(command).result
    guest.hold(found, pulled=True)
    return found


def test_s5_l7_a_guest_that_ends_while_the_disk_is_full_is_no_consumer_afterwards(
    disk: FailingDisk, runtime: Runtime
) -> None:
    guest = GuestSession(runtime, "guest", lambda session: None)
    subscribed = guest.subscribe(Subscribe("jobs", "worker", 1))
    assert subscribed is not None
    command, inbox = subscribed
    runtime.submit(command, inbox)
    guest.subscribed(command, 1)
    publish(runtime, 1)
    pull(runtime, guest)
    disk.write_error = DiskFull("no room on the disk")
    with pytest.raises(DiskFull):
        publish(runtime, 1)
    guest.end(None)
    disk.write_error = None
    eventually(lambda: runtime.info("jobs").consumers == ())
    eventually(lambda: runtime.info("pulled").in_flight == 0)


def test_s6_what_a_guest_began_with_is_forgotten_with_its_last_answer(runtime: Runtime) -> None:
    guest = GuestSession(runtime, "guest", lambda session: None)
    publish(runtime, 2)
    found = pull(runtime, guest, 2)
    assert found.lease is not None
    ack = Settlement(Outcome.ACK, consumer="far")
    for offset in (0, 1):
        assert (found.lease in guest._held, found.lease in guest._begun) == (True, bool(offset))
        guest.begun(found.lease, offset)
        answer = Settle("pulled", found.lease, ack, [(offset, 1)])
        guest.settled(answer, runtime.submit(answer).result)
    assert not guest._held
    assert not guest._begun


def test_s6_what_a_guest_began_with_is_forgotten_when_its_time_was_up(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guest_session, "_LEASES", 3)
    guest = GuestSession(runtime, "guest", lambda session: None)
    publish(runtime, 10)
    for offset in range(10):
        found = pull(runtime, guest)
        assert found.lease is not None
        guest.begun(found.lease, offset)
        runtime.submit(Settle("pulled", found.lease, Settlement(Outcome.ACK, consumer="far")))  # heard of elsewhere
    assert len(guest._held) <= 4
    assert guest._begun.keys() <= guest._held.keys()


def test_s6_many_deliveries_in_one_guests_hands_are_not_gone_through_for_every_further_one(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guest_session, "_LEASES", 5)
    guest = GuestSession(runtime, "guest", lambda session: None)
    looks = []
    look = guest._forget_over

    def counted() -> None:
        looks.append(1)
        look()

    monkeypatch.setattr(guest, "_forget_over", counted)
    publish(runtime, 100)
    for _ in range(100):
        pull(runtime, guest)
    assert len(guest._held) == 100
    assert len(looks) < 8


def test_s6_nor_are_they_by_the_guest_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_state, "_HELD", 5)
    looks = []

    def clock() -> int:
        looks.append(1)
        return 0

    own = OpenState(clock)
    for number in range(100):
        own.hold(Carried("pulled", "far", 1, number, [(number, 1)], [1], 10), pulled=True)
    assert len(own.held) == 100
    assert len(looks) < 8


class Peer:
    """A connection that keeps what is sent over it."""

    closed = False
    local = True

    def __init__(self) -> None:
        self.buffer = wire_frames.Buffer()
        self.kinds: list[int] = []

    def send(self, data: bytes) -> int:
        self.kinds += [kind for kind, _ in self.buffer.feed(data)]
        return 0


def test_s5_l7_an_answer_that_is_kept_is_told_so_whatever_comes_of_those_after_it(
    disk: FailingDisk, runtime: Runtime
) -> None:
    guest, peer = GuestSession(runtime, "guest", lambda session: None), Peer()
    handler = RequestHandler(runtime, lambda work: work(), lambda connection, data: None)
    publish(runtime, 1)
    found = pull(runtime, guest)
    assert found.lease is not None
    answer = Settle("pulled", found.lease, Settlement(Outcome.ACK, consumer="far"))
    frame = wire_frames.command_frame(1, answer, waits=False)
    ((kind, payload),) = wire_frames.Buffer().feed(frame)
    (declaring,) = wire_frames.Buffer().feed(wire_frames.command_frame(2, DeclareQueue("more", None)))
    handler.carry_out(peer, guest, kind, payload)  # type: ignore[arg-type]
    handler.carry_out(peer, guest, *declaring)  # type: ignore[arg-type]
    runtime.flush()
    disk.write_error = DiskFull("no room on the disk")
    handler.publish(peer, guest, checks.publish(Message("pulled", b"body"), None, None, None, None, None))  # type: ignore[arg-type]
    handler.commit()
    disk.write_error = None
    assert sorted(peer.kinds) == sorted([wire_frames.RESULT, wire_frames.RESULT, wire_frames.FAILED])


def test_s5_l7_what_nobody_reclaims_is_put_back_once_the_disk_has_room(tmp_path: Path) -> None:
    disk = FailingDisk(tmp_path / "broker")
    runtime = Runtime(disk)
    runtime.wait(runtime.submit(DeclareQueue("pulled", read_options({"type": "pull"}))).ticket)
    publish(runtime, 1)
    runtime.wait(runtime.submit(Pull("pulled", "far", runtime.new_tag())).ticket)
    shutil.copytree(tmp_path / "broker", tmp_path / "copy", ignore=shutil.ignore_patterns("lock"))
    runtime.close()
    disk = FailingDisk(tmp_path / "copy")
    runtime = Runtime(disk, survey=lambda: FormerGuests(frozenset({"guest"}), ()))
    try:
        disk.full = True
        with pytest.raises(DiskFull):
            runtime.release_unclaimed()
        disk.full = False
        runtime.release_unclaimed()
        assert (runtime.info("pulled").in_flight, runtime.info("pulled").waiting) == (0, 1)
    finally:
        runtime.close()


def test_s6_a_message_that_another_machine_names_twice_is_meant_once() -> None:
    runs = [(5, 2), (5, 1), (6, 1)]
    assert checked(Settle("pulled", 1, Settlement(Outcome.ACK, consumer="far"), runs)).runs == [(5, 2)]
    assert checked(Clear("pulled", "all", tuple(runs))).offsets == ((5, 2),)
