"""What `import remuda` loads: nothing heavy before it is needed."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import sys, tempfile
import remuda
with remuda.open_broker(tempfile.mkdtemp()) as broker:
    broker.publish(remuda.Message("orders", b"x"))
    delivery = broker.pull("orders")
    delivery.ack()
print(" ".join(name for name in ("pyarrow", "asyncio", "numpy", "typer", "pyspark") if name in sys.modules))
"""


def test_arrow_and_asyncio_are_loaded_when_they_are_needed() -> None:
    ran = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, timeout=100)
    assert ran.stdout.strip() == ""
