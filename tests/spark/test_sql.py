"""P6: the log as a view of SQL."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import AnalysisException, PySparkException

from tests.spark.samples import broker_at, half_sealed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_p6_a_view_is_read_and_rows_are_inserted(spark: SparkSession, tmp_path: Path) -> None:
    half_sealed(tmp_path, 300)
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW remuda_log USING remuda OPTIONS (path '{tmp_path}')")
    assert spark.sql("SELECT count(*), max(offset) FROM remuda_log").collect()[0][:] == (400, 399)
    spark.sql("INSERT INTO remuda_log (name, body) VALUES ('sql', cast('one' as binary))")
    spark.sql("INSERT INTO remuda_log (topics, body) VALUES (array('sql.x'), cast('two' as binary))")
    with pytest.raises(PySparkException, match=r"the body is null in 1 of these rows.*; nothing was published"):
        spark.sql("INSERT INTO remuda_log (name) VALUES ('sql')")
    with broker_at(tmp_path) as broker:
        broker.runtime.upkeep.take_in()
        records = list(broker.spectate().messages(400))
    found = [bytes(body) for record in records for body in record.messages.bodies]
    assert found == [b"one", b"two"]


def test_p6_a_view_that_names_its_table_takes_messages_only(spark: SparkSession, tmp_path: Path) -> None:
    half_sealed(tmp_path, 300)
    for table in ("messages", "events"):
        view = f"CREATE OR REPLACE TEMPORARY VIEW remuda_named_{table} USING remuda"
        spark.sql(f"{view} OPTIONS (path '{tmp_path}', table '{table}')")
    spark.sql("INSERT INTO remuda_named_messages (name, body) VALUES ('sql', cast('one' as binary))")
    with pytest.raises(AnalysisException, match="rows become messages; only the broker writes the table 'events'"):
        spark.sql("INSERT INTO remuda_named_events (state) VALUES ('Q')")
    with broker_at(tmp_path) as broker:
        broker.runtime.upkeep.take_in()
        (record,) = broker.spectate().messages(400)
    assert list(record.messages.bodies) == [b"one"]


def test_p6_a_table_of_the_catalog_is_told_with_each_query_where_the_log_is(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spark keeps the columns of such a table, but passes none of its options on; a view over it keeps them."""
    half_sealed(tmp_path / "data", 300)
    where = f"path = '{tmp_path / 'data'}'"
    try:
        spark.sql(f"CREATE TABLE remuda_messages USING remuda OPTIONS (path '{tmp_path / 'data'}')")
        assert spark.sql(f"SELECT count(*) FROM remuda_messages WITH ({where}, toOffset = 7)").collect()[0][0] == 7
        with pytest.raises(AnalysisException, match=r"passes no options on: SELECT .* WITH \(path = '/srv/data'\)"):
            spark.sql("SELECT count(*) FROM remuda_messages").collect()
        spark.sql(f"CREATE VIEW remuda_view AS SELECT * FROM remuda_messages WITH ({where})")
        assert spark.sql("SELECT count(*) FROM remuda_view").collect()[0][0] == 400
        spark.sql(f"INSERT INTO remuda_messages WITH ({where}) (name, body) VALUES ('sql', cast('one' as binary))")
    finally:
        spark.sql("DROP VIEW IF EXISTS remuda_view")
        spark.sql("DROP TABLE IF EXISTS remuda_messages")
    with broker_at(tmp_path / "data") as broker:
        broker.runtime.upkeep.take_in()
        (record,) = broker.spectate().messages(400)
    assert list(record.messages.bodies) == [b"one"]
    assert (tmp_path / "data" / "remuda.json").exists(), "a table that is dropped takes no file of the log with it"
