"""G4: runs of workflows and their steps as tables."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from remuda import Bus, Run
from remuda import spark as remuda_spark
from remuda.model.errors import InvalidOption

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def _fails(text: str) -> str:
    raise ValueError(text)


def test_g4_runs_and_steps_are_tables(spark: SparkSession, tmp_path: Path) -> None:
    """G4: they say what the bus says."""
    bus = Bus(tmp_path / "data")

    @bus.workflow(name="order", waits_for="paid", retry=["1m"])
    def order(run: Run, body: str) -> str:
        first: str = run.step(str.upper, body, name="shout", undo=len)
        if body == "fails":
            run.step(_fails, "no truck", name="ship")
        if body == "waits":
            run.wait_for("paid", key=body)
        return first

    with bus.testing(tmp_path / "data") as test:
        for id in ("works", "fails", "waits", "stops", "again"):
            bus.workflows.start("order", "waits" if id in ("stops", "again") else id, id=id)
        test.run()
        bus.workflows.cancel("stops")
        bus.workflows.cancel("again")
        test.advance("2m")
        bus.workflows.restart("again")
        test.run()
        test.publish("paid", 1, key="nobody")
        test.run()
        expected = {id: bus.workflows.status(id) for id in ("works", "fails", "waits", "stops", "again")}
        recorded = {id: len(bus.workflows.steps(id)) for id in expected}
        bus.broker.spectate()  # which has everything written
        found = {row.run: row for row in remuda_spark.read(spark, tmp_path / "data", "workflows").collect()}
        steps = remuda_spark.read(spark, tmp_path / "data", "steps")
        counts = {row.run_offset: row["count"] for row in steps.groupBy("run_offset").count().collect()}
        retried = steps.where("kind = 'attempt' and error = 'ValueError' and step = 'ship'").count()
    assert found.keys() == expected.keys()
    for id, status in expected.items():
        row = found[id]
        assert (row.workflow, row.state, row.version, row.steps) == (
            "order", status.state, status.version, len(status.steps)
        )  # fmt: skip
        assert counts[row.offset] == recorded[id]
    assert {id: row.state for id, row in found.items()} == {
        "works": "done", "fails": "failed", "waits": "sleeping", "stops": "cancelled", "again": "sleeping"
    }  # fmt: skip
    assert [found[id].undone for id in ("works", "fails", "stops", "again")] == [False, True, True, False]
    assert retried == 1
    with pytest.raises(InvalidOption, match="takes no selection"):
        remuda_spark.read(spark, tmp_path / "data", "steps", fromOffset=3)
