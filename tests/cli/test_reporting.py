"""`remuda report` where there is nothing for Spark to do, or no Spark to do it."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

import remuda as package
from remuda import open_broker
from remuda.spark.session import missing_pyspark
from tests.cli.kit import Remuda, start

ROOT = Path(__file__).resolve().parents[2]


def test_an_empty_log_gives_figures_all_the_same(remuda: Remuda, folder: Path) -> None:
    open_broker("data").close()
    told = remuda("report", "data", "--json").value
    assert (told["messages"], told["queues"], told["first"]) == (0, [], None)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "say what to report on"),
        (["nowhere"], "there is no directory 'nowhere'"),
        (["data", "--window", "soon"], "'soon' is not a window; write it like '1 minute' or 30s"),
        (["data", "--since", "soon"], "--since: 'soon' is not a time"),
        (["data", "--output", "no/report.html"], "; create it, or choose another place"),
        (
            ["--lake", "lake"],
            "there is no table of lives in 'lake'; make it: remuda pipeline run lifecycle DIR --lake lake",
        ),
    ],
)
def test_what_cannot_be_reported_is_told_in_one_line(
    remuda: Remuda, data: str, arguments: list[str], words: str
) -> None:
    told = remuda("report", *arguments, code=1)
    assert words in told.err
    assert told.err.count("\n") == 1
    assert told.out == ""


def test_u3_a_report_needs_neither_spark_nor_java(
    remuda: Remuda, data: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(missing_pyspark, "find_spec", lambda name: None if name == "pyspark" else name)
    told = remuda("report", data, "--json", "--output", "page.html").value
    assert (told["messages"], told["figures"]["succeeded"], told["inRetry"]) == (5, 1, 1)
    assert "<svg" in Path("page.html").read_text()
    monkeypatch.setattr(missing_pyspark, "find_spec", lambda name: None)
    assert "pip install 'remuda[report]'" in remuda("report", data, code=1).err


def test_without_java_the_answer_is_one_line(data: str, folder: Path) -> None:
    process = start(folder, "pipeline", "run", "archive", data, JAVA_HOME=str(folder))
    told, _ = process.communicate(timeout=100)
    assert process.returncode == 1
    assert told.startswith("error: JAVA_HOME")
    assert told.count("\n") == 1


def test_without_arrow_the_shop_leaves_its_report_out(data: str, folder: Path) -> None:
    """One line says so, and no empty page stays."""
    code = (
        "import sys; sys.modules['numpy'] = None; from remuda.spark.session import missing_pyspark\n"
        "missing_pyspark.find_spec = lambda name: None\n"
        "from pathlib import Path; from examples.shop import figures, report\n"
        "page = Path('page.html'); page.touch()\n"
        f"figures.show({data!r}, page, report.console())\n"
        "sys.exit(page.exists())"
    )
    path = os.pathsep.join((str(Path(package.__file__).parent.parent), str(ROOT)))
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path}, cwd=folder,
        capture_output=True, text=True, timeout=100, check=True,
    )  # fmt: skip
    assert " ".join(done.stdout.split()).startswith("The report was skipped: the report needs NumPy")


def test_progress_is_shown_on_a_terminal_only(folder: Path) -> None:
    open_broker("data").close()
    ours, theirs = pty.openpty()
    source = str(Path(package.__file__).parent.parent)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "remuda.cli", "report", "data"],
            env={**os.environ, "PYTHONPATH": source, "TERM": "xterm"},
            stdout=subprocess.PIPE, stderr=theirs, text=True, timeout=100, check=True,
        )  # fmt: skip
        assert b"reading the log" in os.read(ours, 1 << 16)
        assert done.stdout == "data: there are no messages to report on\n"
    finally:
        os.close(ours)
        os.close(theirs)
