"""Directories written by earlier versions are opened, and hold exactly what was put in."""

from __future__ import annotations

import base64
import json
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest

from remuda import open_broker
from remuda.broker.threads import EmbeddedBroker
from remuda.log.disk import DirectoryDisk
from remuda.log.readers.reader import Reader
from remuda.model.errors import UnsupportedFormat

FIXTURES = Path(__file__).parents[1] / "fixtures"
BEFORE_RELEASE = "format-1"
FORMATS = sorted({path.name.removesuffix(".tar.xz") for path in FIXTURES.glob("*.tar.xz")} - {BEFORE_RELEASE})
TIMES = ("created", "timestamp", "expires", "due", "time")


def unpacked(name: str, folder: Path) -> tuple[Path, dict[str, Any]]:
    with tarfile.open(FIXTURES / f"{name}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder / "directory", json.loads((folder / "told.json").read_text())


def micros(row: dict[str, Any]) -> dict[str, Any]:
    return {
        name: round(value.timestamp() * 1_000_000) if name in TIMES and value is not None else value
        for name, value in row.items()
    }


def taken(broker: EmbeddedBroker, queue: str) -> dict[str, tuple[bytes, int]]:
    """Everything that waits in a queue, by id: the body and which attempt this is."""
    found: dict[str, tuple[bytes, int]] = {}
    if broker.queue(queue).options.type == "pull":
        while (delivery := broker.pull(queue, 500)) is not None:
            found |= {
                message.id: (message.body, attempt)
                for message, attempt in zip(delivery, delivery.attempts, strict=True)
            }
        return found
    with broker.subscribe(queue, batch=500) as subscription:
        while broker.queue(queue).waiting + broker.queue(queue).in_flight:
            if (delivery := subscription.receive("5s")) is None:
                break
            found |= {
                message.id: (message.body, attempt)
                for message, attempt in zip(delivery, delivery.attempts, strict=True)
            }
            delivery.ack()
    return found


@pytest.fixture(params=FORMATS)
def earlier(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    return unpacked(request.param, tmp_path)


def test_there_is_a_fixture() -> None:
    assert "format-2" in FORMATS


def test_l8_a_spectator_reads_every_message_and_event(earlier: tuple[Path, dict[str, Any]]) -> None:
    path, told = earlier
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    reader = Reader(DirectoryDisk(path, create=False))
    messages = [row for batch in reader.message_batches() for row in batch.to_pylist()]
    assert len(messages) == len(told["messages"])
    for row, expected in zip(messages, told["messages"], strict=True):
        found = micros(row)
        for name, value in expected.items():
            if name == "body":
                assert len(found["body"]) == value
            elif name == "digest":
                assert (found["digest"] and found["digest"].hex()) == value
            else:
                assert json.loads(json.dumps(found[name])) == value, name
    events = [micros(row) for batch in reader.event_batches() for row in batch.to_pylist()]
    assert [{name: row[name] for name in told["events"][0]} for row in events] == told["events"]
    assert not reader.gaps
    assert {file: file.read_bytes() for file in path.rglob("*") if file.is_file()} == before


def test_l2_the_queues_hold_what_was_put_in(earlier: tuple[Path, dict[str, Any]]) -> None:
    path, told = earlier
    put: dict[str, dict[str, Any]] = told["put"]

    def of(place: str) -> dict[str, bytes]:
        return {own: base64.b64decode(row["body"]) for own, row in put.items() if row["place"] == place}

    with open_broker(path, clock=lambda: told["now"], worker=8, sync="os") as broker:
        assert broker.recovery.clean, broker.recovery.describe()
        deadline = time.monotonic() + 60
        while any(path.glob("spool/etl.*")):
            assert time.monotonic() < deadline, "the spool was not taken in"
            time.sleep(0.02)
        assert {info.name: info.status.value for info in broker.queues()} == {
            name: queue["status"] for name, queue in told["queues"].items()
        }
        assert broker.queue("orders").options.message_limit == 1000
        assert broker.queue("limited").options.unique_ids
        assert broker.queue("scratch").size == 0  # a memory queue
        parked = broker.parked("jobs")
        bodies = {own: base64.b64decode(row["body"]) for own, row in put.items()}
        documents = [broker.message(entry.offset) for entry in parked]
        assert {one.message.id: one.message.body for one in documents} == of("dead") | of("invalid") | of(
            "not-interested"
        )
        assert {entry.reason for entry in parked} == {"ValueError: no such order", "not JSON", "not for us"}
        assert {view.detail for one in documents for view in one.queues} == {"Traceback …\n", None}
        assert (broker.queue("jobs").delayed, broker.queue("limited").delayed) == (1, 1)

        held = of("in flight jobs")
        jobs = taken(broker, "jobs")
        assert jobs == {own: (body, 2) for own, body in held.items()}
        orders = taken(broker, "orders")
        waiting = of("waiting orders audit")
        assert {own: body for own, (body, _) in orders.items() if own in put} == waiting
        others = sorted(body for own, (body, _) in orders.items() if own not in put)
        assert others == sorted([b"by a router", *(b"row %d" % n for n in range(10))])
        audit = {own: body for own, (body, _) in taken(broker, "audit").items()}
        assert {own: body for own, body in audit.items() if own in put} == waiting
        assert len(audit) == len(waiting) + 10
        assert {own: body for own, (body, _) in taken(broker, "fill").items()} == of("waiting fill")
        assert {own: body for own, (body, _) in taken(broker, "limited").items()} == of("waiting limited")
        broker.set_status("paused", "running")
        delivery = broker.pull("paused", 10)
        assert delivery is not None
        for message in delivery:
            expected = put[message.id]
            assert message.body == bodies[message.id]
            for name in ("priority", "name", "object", "key", "timestamp", "mime_type", "expires", "due"):
                assert getattr(message, name) == expected[name]
            assert list(message.topics) == expected["topics"]
            assert dict(message.headers) == expected["headers"]
        assert len(delivery) == 2
    with open_broker(path, clock=lambda: told["now"], worker=8, sync="os") as broker:
        assert broker.recovery.clean, broker.recovery.describe()
        assert broker.queue("orders").size == 0


def test_l7_a_log_from_before_the_first_release_is_refused_in_one_line(tmp_path: Path) -> None:
    path, _ = unpacked(BEFORE_RELEASE, tmp_path)
    before = {file: file.read_bytes() for file in path.rglob("*/*") if file.is_file()}
    for _ in range(2):  # it was let go, too
        with pytest.raises(UnsupportedFormat, match="before the first release") as refusal:
            open_broker(path, sync="os")
        assert "\n" not in str(refusal.value)
    assert {file: file.read_bytes() for file in before} == before
    with pytest.raises(UnsupportedFormat):
        list(Reader(DirectoryDisk(path, create=False)).messages())
