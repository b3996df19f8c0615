"""P1, P3: the notebook does what it says, cell by cell."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOTEBOOK = Path(__file__).parents[2] / "examples" / "spark.ipynb"


def test_the_notebook_runs(spark: SparkSession) -> None:
    found: dict[str, Any] = {}
    for cell in json.loads(NOTEBOOK.read_text())["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), found)
    shutil.rmtree(found["here"])
    assert found["states"] == {"E": 10, "X": 80, "Q": 10}
    assert found["total"] == sum(number + 0.5 for number in range(100))
    assert found["seen"] == [40, 40, 20]
    assert (found["succeeded"], found["dead"], found["waiting"]) == (80, 10, 20)
