"""P6: the log as a view of SQL."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from remuda.broker.embedded.intake import Intake
from tests.spark.samples import broker_at, half_sealed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_p6_a_view_is_read_and_rows_are_inserted(spark: SparkSession, tmp_path: Path) -> None:
    half_sealed(tmp_path, 300)
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW remuda_log USING remuda OPTIONS (path '{tmp_path}')")
    assert spark.sql("SELECT count(*), max(offset) FROM remuda_log").collect()[0][:] == (400, 399)
    spark.sql("INSERT INTO remuda_log (name, body) VALUES ('sql', cast('one' as binary))")
    spark.sql("INSERT INTO remuda_log (topics, body) VALUES (array('sql.x'), cast('two' as binary))")
    with broker_at(tmp_path) as broker:
        Intake(broker.runtime).run()
        records = list(broker.spectate().messages(400))
    found = [bytes(body) for record in records for body in record.messages.bodies]
    assert sorted(found) == [b"one", b"two"]
