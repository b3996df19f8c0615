"""What the command line shows of a directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from remuda import Bus, open_broker
from tests.cli.kit import Remuda, start, wait_for
from tests.server.site import until


def test_queues_are_listed_with_their_numbers(remuda: Remuda, data: str) -> None:
    shown = {row["queue"]: row for row in remuda("queues", data, "--json").value}
    ship = shown["ship"]
    assert (ship["waiting"], ship["delayed"], ship["invalid"], ship["done"], ship["inFlight"]) == (1, 1, 1, 1, 0)
    assert shown["remuda.unrouted"]["dead"] == 1
    table = remuda("queues", data).out
    assert "ship" in table
    assert "running" not in table, "files do not tell whether anybody consumes a queue"
    remuda("pause", data, "ship", "--refuse")
    assert "paused, refusing" in remuda("queues", data).out


def test_looking_works_beside_the_owner_and_shows_what_it_holds(remuda: Remuda, data: str) -> None:
    with open_broker(data) as broker:
        delivery = broker.pull("ship", consumer="worker-1")
        assert delivery is not None
        (ship,) = (row for row in remuda("queues", data, "--json").value if row["queue"] == "ship")
        assert (ship["waiting"], ship["inFlight"], ship["consumers"]) == (0, 1, ["worker-1"])
        held = remuda("messages", data, "ship", "--state", "in-flight", "--json").value
        assert [row["id"] for row in held] == ["order-5"]
        delivery.ack()
        assert remuda("messages", data, "ship", "--state", "in-flight", "--json").value == []


def test_looking_changes_nothing(remuda: Remuda, data: str, folder: Path) -> None:
    def files() -> dict[str, tuple[int, int]]:
        return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in (folder / "data").rglob("*")}

    before = files()
    remuda("queues", data)
    remuda("messages", data, "ship")
    remuda("message", data, "order-1")
    remuda("log", "tail", data, "--events")
    assert files() == before


def test_messages_tell_where_and_why(remuda: Remuda, data: str) -> None:
    rows = {row["id"]: row for row in remuda("messages", data, "ship", "--json").value}
    assert rows["order-5"]["state"] == "waiting"
    assert (rows["order-2"]["state"], rows["order-2"]["reason"]) == ("delayed", "ValueError: no stock")
    assert rows["order-2"]["due"] is not None
    assert (rows["order-3"]["state"], rows["order-3"]["reason"]) == ("invalid", "no such order")
    assert rows["order-2"]["body"] == {"id": 2}
    assert len(remuda("messages", data, "ship", "--limit", "1", "--json").value) == 1
    assert "no such order" in remuda("messages", data, "ship", "--state", "invalid").out


def test_many_messages_are_read_in_parts(remuda: Remuda, folder: Path) -> None:
    with Bus("data") as bus:
        bus.publish_many("much", range(1200))
    rows = remuda("messages", "data", "remuda.unrouted", "--limit", "1100", "--json").value
    assert [row["body"] for row in rows] == list(range(1100))


def test_a_message_is_a_command_that_publishes_it_again(remuda: Remuda, data: str) -> None:
    """U3"""
    assert remuda("message", data, "order-1", "--as-command").out == "remuda publish data order.placed '{\"id\":1}'\n"
    with Bus(data, encoding="msgpack") as bus:
        bus.publish("order.packed", {"id": b"\xff"}, id="packed", headers={"a=b": "c"})
    told = remuda("message", data, "packed")
    assert "body, MessagePack:\n{\n  \"id\": h'ff'\n}\n" in told.out
    told = remuda("message", data, "packed", "--as-command")
    assert told.out.startswith("printf %s gaJpZMQB/w== | base64 -d | remuda publish --mime-type=application/msgpack ")
    assert "not in the line: the headers 'a=b'" in told.err
    with Bus(data) as bus:
        bus.publish("order.large", b"x" * 100_000, id="large")
    assert "too long for a line" in remuda("message", data, "large", "--as-command", code=1).err


def test_a_message_tells_its_whole_life(remuda: Remuda, data: str) -> None:
    told = remuda("message", data, "order-2").out
    assert "attempt 1 begins" in told
    assert "ValueError: no stock; next at" in told
    assert "Traceback" in told
    timeline = remuda("message", data, "order-1", "--json").value["timeline"]
    assert [entry["state"] for entry in timeline] == ["L", "Q", "F", "S", "X"]
    assert remuda("message", data, "0", "--offset", "--json").value["id"] == "order-1"


def test_the_log_from_the_end_an_offset_or_a_time(remuda: Remuda, data: str) -> None:
    everything = remuda("log", "tail", data, "--from", "0", "--json").values
    assert [row["id"] for row in everything] == ["order-1", "order-2", "order-3", "lost", "order-5"]
    assert [row["id"] for row in remuda("log", "tail", data, "-n", "2", "--json").values] == ["lost", "order-5"]
    assert len(remuda("log", "tail", data, "--since", "1h", "--json").values) == 5
    assert remuda("log", "tail", data, "--since", "2999-01-01").out == ""
    assert "→ ship" in remuda("log", "tail", data).out


def test_events_tell_what_happened(remuda: Remuda, data: str) -> None:
    events = remuda("log", "tail", data, "--events", "--from", "0", "--json").values
    assert {"queue": "ship", "state": "I", "reason": "no such order"}.items() <= next(
        event for event in events if event["state"] == "I"
    ).items()
    assert "retry: ValueError: no stock; next at" in remuda("log", "tail", data, "--events", "-n", "99").out


def test_b15_q14_who_changed_a_queue_is_told(remuda: Remuda, data: str) -> None:
    for words in (("forget", data, "ship"), ("pause", data, "ship"), ("resume", data, "ship")):
        remuda(*words, "--who", "ann", *(["--yes"] if words[0] == "forget" else []))
    with Bus(data) as bus:
        bus.broker.configure_queue("ship", who="ben", message_limit=9)
        bus.broker.create_queue("old")
        bus.broker.remove_queue("old", who="cat")
    told = remuda("log", "tail", data, "--events", "--from", "0").out
    for line in (
        "ship  dead letter forgotten by ann", "ship  status set to only-publish by ann",
        "ship  status set to running by ann",
        "ship  options changed by ben", "old  removed by cat",
    ):  # fmt: skip
        assert line in told
    entries = remuda("log", "tail", data, "--events", "-n", "1", "--json").values
    assert [entry["who"] for entry in entries if "change" in entry][-1] == "cat"
    assert remuda("log", "tail", data, "--events", "--since", "2999-01-01").out == ""
    assert "forgotten (by ann)" in remuda("message", data, "order-3").out
    assert "forgotten" not in remuda("message", data, "order-1").out


def test_an_app_stands_for_its_directory(remuda: Remuda, data: str) -> None:
    assert remuda("queues", "app:bus", "--json").value == remuda("queues", data, "--json").value


def test_bodies_that_are_no_text_are_shown_by_their_size(remuda: Remuda, folder: Path) -> None:
    with Bus("data") as bus:
        bus.publish("picture", b"\xff\xd8\xff")
    assert "3 bytes" in remuda("messages", "data", "remuda.unrouted").out
    assert remuda("log", "tail", "data", "--json").value["body"] == {"base64": "/9j/"}


def test_a_message_that_failed_over_is_not_called_dead(remuda: Remuda, folder: Path) -> None:
    """B7: it moved, and its state is that of the queue which has it."""
    bus = Bus("data")

    @bus.subscribe("x", queue="first", retry="never", failover="second")
    def first(body: int) -> None:
        raise ValueError("no")

    @bus.subscribe("unused", queue="second")
    def second(body: int) -> None: ...

    with bus:
        message = bus.publish("x", 1)
        bus.run(until_idle=True)
    told = remuda("message", "data", message).out
    assert "moved to second: ValueError: no" in told
    assert "moved from first: ValueError: no" in told
    assert "dead" not in told
    assert remuda("message", "data", message, "--json").value["state"] == "completed"
    assert "dead" not in remuda("log", "tail", "data", "--events").out
    found = remuda("search", "data", "queue:first").out
    assert ("moved" in found, "dead" in found) == (True, False)


def test_u4_workers_and_what_they_run(folder: Path, remuda: Remuda) -> None:
    """U4: listed, paused, resumed and stopped from another process."""
    with open_broker("data"):
        assert remuda("workers", "data", "--json").value == []
    assert remuda("workers", "data", "--json").value == []
    process = start(folder, "run", "app:bus", "--no-dashboard", HOLD="300")
    try:
        remuda("publish", "data", "order.placed", '{"id": 4}', "--id", "four", "--create")
        wait_for(process, "holding")

        def call() -> Any:
            found = remuda("running", "data", "--json").value
            return next((one for one in found if one["queue"] == "ship"), None)

        one = until(call, "the call")
        assert (one["id"], one["queue"], one["handler"], one["timeout"]) == ("four", "ship", "app.ship", 30_000_000)
        assert "four" in remuda("running", "data").out
        (worker,) = remuda("workers", "data", "--json").value
        assert (worker["process"], worker["name"], worker["intake"]) == (process.pid, "app:bus", "open")
        said = remuda("workers", "data", "--pause", str(process.pid)).out
        assert said == f"worker {worker['id']} will take no more messages\n"
        until(lambda: remuda("workers", "data", "--json").value[0]["intake"] == "paused", "the pause")
        assert "paused" in remuda("workers", "app:bus").out
        said = remuda("workers", "data", "--stop", "nobody", code=1).err
        assert said == f"error: there is no worker 'nobody'; nothing was done. The workers: {worker['id']}\n"
        (folder / "go").touch()
        assert remuda("workers", "data", "--stop", "all", "--json").value["order"] == "stop"
        assert process.wait(60) == 0
        assert remuda("workers", "data", "--json").value == []
    finally:
        process.kill()
        process.communicate(timeout=60)
