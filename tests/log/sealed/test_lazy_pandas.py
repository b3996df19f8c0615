"""Arrow does without pandas until somebody loads it, and then knows it as if it had been there from the start."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
from remuda.log.sealed.arrow import pa
pa.array([1, 2]); pa.scalar("x"); pa.table({"a": [1]})
print("pandas" in sys.modules)
"""
LATER = """
import importlib.resources
import pandas as pd
print(pa.array(pd.Series(["a", "b"], dtype="category")).type)
print(pa.array(pd.Series([1.0, None])).null_count)
print(type(pd.__spec__.loader).__name__, importlib.resources.files("pandas").is_dir())
"""


def run(program: str) -> list[str]:
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=100, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()


def test_pandas_is_loaded_by_those_who_want_it_alone() -> None:
    told = run(PROGRAM + LATER)
    assert told == ["False", "dictionary<values=string, indices=int8, ordered=0>", "1", "SourceFileLoader True"]


def test_arrow_itself_loads_pandas_when_it_is_asked_for_it() -> None:
    again = "print(pa.array(pa.array(['a']).dictionary_encode().to_pandas()).type.index_type)"
    assert run(PROGRAM + again) == ["False", "int8"]
