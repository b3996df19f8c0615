"""P5: over Spark Connect everything is as in a local session."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from remuda.model.errors import Conflict, InvalidOption
from remuda.spark import session
from remuda.spark.session import starting
from remuda.spark.session.missing_pyspark import SparkMissing
from remuda.spark.session.starting import SparkUnreachable
from tests.spark.servers import connect_server
from tests.spark.survey import check_elsewhere

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_connect_server_gives_what_a_local_session_gives(spark: SparkSession, tmp_path: Path) -> None:
    """By the source, `read`, the sink, a stream and a pipeline."""

    def beside_a_local_session(url: str) -> None:
        with pytest.raises(Conflict, match="already runs a Spark session of its own"):
            session(remote=url)

    check_elsewhere(spark, tmp_path, connect_server, beside_a_local_session)


def test_a_server_that_does_not_answer_is_named_at_once() -> None:
    with pytest.raises(SparkUnreachable, match=r"^no Spark answers at sc://127.0.0.1:9 .*is this its address\?$"):
        session(remote="sc://127.0.0.1:9")


@pytest.mark.parametrize("remote", ["spark://127.0.0.1:9", "sc://", "127.0.0.1:9"])
def test_an_address_that_is_none_is_refused(remote: str) -> None:
    with pytest.raises(InvalidOption, match="a Spark Connect server is given as sc://host:port"):
        session(remote=remote)


def test_without_the_extra_the_answer_is_the_line_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starting, "find_spec", lambda name: None)
    with pytest.raises(SparkMissing, match=r"^Spark Connect is an extra: pip install 'remuda\[connect\]'$"):
        session(remote="sc://127.0.0.1:9")
