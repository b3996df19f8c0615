"""U4 U3: history and errors on the command line."""

from __future__ import annotations

from tests.cli.kit import Remuda


def test_u4_history_is_counted_from_a_directory(remuda: Remuda, data: str) -> None:
    """U4: without a process that has it open, again after more happened, and for one queue."""
    for _ in range(2):
        found = {one["queue"]: one for one in remuda("history", data, "--over", "1h", "--json").value["queues"]}
        assert (found["ship"]["published"], found["ship"]["done"], found["ship"]["dead"]) == (4, 1, 1)
    only = remuda("history", data, "--queue", "ship", "--json").value
    assert [one["queue"] for one in only["queues"]] == ["ship"]
    assert sum(point["published"] for point in only["points"]) == 4
    assert "handling p95" in remuda("history", data).out
    assert "a span is one of 1h, 24h, 30d" in remuda("history", data, "--over", "1w", code=1).err


def test_u4_errors_are_listed_muted_retried_and_forgotten(remuda: Remuda, data: str) -> None:
    """U4"""
    groups = {one["exception"]: one for one in remuda("errors", data, "--json").value}
    assert groups["ValueError"]["failures"] == 1
    (dead,) = [one for one in groups.values() if "ship" in one["dead"]]
    assert dead["dead"] == {"ship": 1}
    assert "muted" in remuda("errors", data, "--mute", dead["key"]).out
    assert dead["key"] not in remuda("errors", data).out
    assert dead["key"] in remuda("errors", data, "--all").out
    assert remuda("errors", data, "--retry", dead["key"], "--json").value["count"] == 1
    assert "no dead letters of group" in remuda("errors", data, "--forget", dead["key"], "--yes", code=1).err
