"""P7: a batch that is played again, after its driver died at any step of it and the log was collected meanwhile."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from remuda.spark.lake.table import LakeTable
from remuda.spark.pipelines.jobs import JOBS
from remuda.spark.pipelines.streaming_queries import Place
from tests.spark.kills import compare, one_round
from tests.spark.samples import broker_at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Died(Exception):
    pass


@pytest.mark.parametrize("when", ["before", "after"])
def test_p7_a_batch_is_played_again_after_the_log_was_collected(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """It died before or after its commit, of which Spark then knows nothing."""
    data, lake = tmp_path / "data", str(tmp_path / "lake")
    published = {"done": 0, "waits": 0}
    place = Place(url=str(data), lake=lake, options={"maxRows": "200"})

    def run() -> None:
        for name in ("archive", "lifecycle"):
            JOBS[name](spark, place)

    with broker_at(data, success_retention="1ms", collect_after_archive=lake) as broker:
        one_round(broker, published)
        run()
        assert broker.collect().messages
        one_round(broker, published)
        one_round(broker, published)
        add, died = LakeTable._add, set()

        def dies(table: LakeTable, *step: Any) -> bool:
            died.add(table.name)
            if when == "after":
                add(table, *step)
            raise Died

        with monkeypatch.context() as patched:
            for name in ("archive", "lifecycle"):
                patched.setattr(LakeTable, "_add", dies)
                with contextlib.suppress(PySparkException, Died):
                    JOBS[name](spark, place)
        assert died == {"messages", "events", "lifecycle"}
        assert bool(broker.collect().messages) == (when == "after")
        run()
        assert broker.collect().messages
    compare(data, lake, published, ["archive", "lifecycle"], collecting=True)
