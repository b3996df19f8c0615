"""The blocks of the docs that need a RabbitMQ, marked `python on-rabbitmq`, run on a real one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

import remuda
from remuda.amqp.client.connection import Connection

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```python on-rabbitmq\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = {
    f"{page.name}:{match.start()}": match["code"]
    for page in sorted((ROOT / "docs").glob("*.md"))
    for match in BLOCK.finditer(page.read_text())
}


@pytest.mark.parametrize("name", BLOCKS)
def test_block_runs_on_rabbitmq(name: str, clean_url: str, tmp_path: Path) -> None:
    log = f"log-{uuid.uuid4().hex[:8]}"
    code = BLOCKS[name].replace("amqp://host/vhost", f"{clean_url}?log={log}")
    assert code != BLOCKS[name]
    (tmp_path / "app.py").write_text(code)
    try:
        done = subprocess.run(
            [sys.executable, "app.py"], cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False,
            env={**os.environ, "PYTHONPATH": str(Path(remuda.__file__).parent.parent)},
        )  # fmt: skip
    finally:
        with Connection(clean_url) as connection:
            connection.channel().delete_queue(log)
    assert done.returncode == 0, done.stderr
    expected = re.findall(r"#> (.*)$", BLOCKS[name], re.MULTILINE)
    assert expected
    for line in expected:
        assert line in done.stdout
