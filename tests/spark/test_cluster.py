"""P5: a standalone cluster gives what a local session gives."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from remuda.model.errors import Conflict, InvalidOption
from remuda.spark import session
from remuda.spark.session.starting import SparkUnreachable, check_master
from tests.spark.servers import standalone_cluster
from tests.spark.survey import check_elsewhere

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_executors_give_what_a_local_session_gives(spark: SparkSession, tmp_path: Path) -> None:
    """By the source, `read`, the sink, a stream and a pipeline; with relative paths."""

    def both_took_part(master: str) -> None:
        assert len(list((tmp_path / "served").glob("worker/app-*/[01]"))) == 2, "both executors took part"

    check_elsewhere(spark, tmp_path, standalone_cluster, both_took_part)


def test_a_master_that_does_not_answer_is_named_at_once() -> None:
    with pytest.raises(SparkUnreachable, match=r"^no Spark answers at spark://127.0.0.1:9 .*is this its address\?$"):
        check_master("spark://127.0.0.1:9")


def test_a_connect_server_is_no_master() -> None:
    with pytest.raises(InvalidOption, match="is a Spark Connect server, not a master: give it as remote"):
        check_master("sc://127.0.0.1:9")


def test_a_process_has_one_spark(spark: SparkSession) -> None:
    assert session(master="local[2]") is spark
    with pytest.raises(Conflict, match=r"runs a Spark session on local\[2\], and can have none on spark://far:7077"):
        session(master="spark://far:7077")
