"""P1: a session that Remuda did not start, from a virtual environment that is not activated."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from remuda.spark.session.java import JavaMissing, find_java, write_shim
from tests.spark.samples import half_sealed
from tests.spark.servers import quick_java

PROGRAM = """
import sys
from pyspark.sql import SparkSession
import remuda.spark

builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
builder = builder.config("spark.driver.extraJavaOptions", sys.argv[2]).config("spark.log.level", "ERROR")
spark = builder.config("spark.driver.memory", "512m").getOrCreate()
print("read", remuda.spark.read(spark, sys.argv[1]).count())
print("source", spark.read.format("remuda").load(sys.argv[1]).count())
spark.stop()
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_p1_any_python_on_the_path_does(tmp_path: Path) -> None:
    """Where `python3` is another one, which has no Remuda, or there is none at all."""
    try:
        java = find_java()
    except JavaMissing as missing:
        pytest.skip(str(missing))
    half_sealed(tmp_path / "data", 300)
    environment = {name: value for name, value in os.environ.items() if name not in ("PYSPARK_PYTHON", "VIRTUAL_ENV")}
    other = tmp_path / "bin"
    other.mkdir()
    # Spark's own scripts ask it where Spark is; of Remuda it knows nothing.
    told = f'#!/bin/sh\ncase "$1" in *find_spark_home.py) exec {sys.executable} "$@";; esac\nexit 1\n'
    (other / "python3").write_text(told)
    (other / "python3").chmod(0o755)
    environment |= {
        "PATH": f"{other}:/usr/bin:/bin",
        "JAVA_HOME": str(write_shim(tmp_path / "java", java)),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "data"), quick_java()],
        env=environment, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=500,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert ran.stdout.splitlines()[-2:] == ["read 400", "source 400"]
