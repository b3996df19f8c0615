"""`remuda workflows` (G4)."""

from __future__ import annotations

from pathlib import Path

import pytest

from remuda import Bus, Run
from tests.cli.kit import Remuda

TRIES: list[str] = []


def app(directory: Path) -> Bus:
    bus = Bus(directory)

    @bus.workflow(name="order", retry="never")
    def order(run: Run, body: str) -> str:
        run.step(lambda: f"paid {body}", name="charge", undo=TRIES.append)
        if body == "waits":
            run.sleep("1h")
        run.step(lambda: _ship(body), name="ship")
        return "all"

    return bus


def _ship(body: str) -> str:
    TRIES.append("ship")
    if body == "fails" and TRIES.count("ship") == 1:
        raise ValueError("no truck")
    return "sent"


def test_g4_runs_are_started_listed_shown_cancelled_and_restarted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, remuda: Remuda
) -> None:
    """G4"""
    TRIES.clear()
    monkeypatch.chdir(tmp_path)
    with app(tmp_path / "data").testing(tmp_path / "data") as test:
        test.run()
    for id, body in (("one", '"fails"'), ("two", '"waits"')):
        started = remuda("workflows", "data", id, "--start", "order", "--body", body, "--json")
        assert started.value == {"id": id}
    with app(tmp_path / "data").testing(tmp_path / "data") as test:
        test.run()
    listed = {one["id"]: one for one in remuda("workflows", "data", "--json").value}
    assert (listed["one"]["state"], listed["two"]["state"]) == ("failed", "sleeping")
    assert "ValueError: no truck" in listed["one"]["reason"]
    assert "sleeping" in remuda("workflows", "data", "--state", "sleeping").out
    assert remuda("workflows", "data", "--workflow", "none", "--json").value == []
    shown = remuda("workflows", "data", "one", "--json").value
    assert [(one["name"], one["kind"], one["depth"]) for one in shown["tree"]][:2] == [
        ("charge", "step", 0), ("undo charge", "undo", 1)
    ]  # fmt: skip
    assert "paid fails" in remuda("workflows", "data", "one").out
    assert "was undone" in remuda("workflows", "data", "one", "--restart", "--step", "ship", code=1).err
    remuda("workflows", "data", "one", "--restart", "--step", "charge")
    remuda("workflows", "data", "two", "--cancel", "--no-undo")
    with app(tmp_path / "data").testing(tmp_path / "data") as test:
        test.run()
    assert remuda("workflows", "data", "two", "--json").value["state"] == "cancelled"
    assert remuda("workflows", "data", "one", "--json").value["state"] == "done"
    assert [one["id"] for one in remuda("workflows", "data", "--state", "done", "--json").value] == ["one"]
    remuda("workflows", "data", "two", "--cancel", code=1)


@pytest.mark.parametrize(
    ("given", "said", "code"),
    [
        (("--cancel",), "name the run", 2),
        (("x", "--cancel", "--restart"), "give one of", 2),
        (("x", "--no-undo"), "--no-undo needs --cancel", 2),
        (("x", "--step", "a"), "--step needs --restart", 2),
        (("--state", "odd"), "state must be one of waiting", 1),
        (("none",), "none", 1),
        (("--start", "order", "--body", "{"), "--body is no JSON", 2),
    ],
)
def test_g4_what_makes_no_sense_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, remuda: Remuda, given: tuple[str, ...], said: str, code: int
) -> None:
    """G4"""
    monkeypatch.chdir(tmp_path)
    with app(tmp_path / "data").testing(tmp_path / "data") as test:
        test.run()
    result = remuda("workflows", "data", *given, code=code)
    assert said in " ".join(result.err.split())
