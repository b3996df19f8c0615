"""Every example runs by itself, as a reader would run it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

import remuda

ROOT = Path(__file__).resolve().parents[2]
ELSEWHERE = {"__init__.py", "worker.py"}  # the worker needs RabbitMQ and runs in tests/worker
EXAMPLES = sorted(path.name for path in (ROOT / "examples").glob("*.py") if path.name not in ELSEWHERE)

SHOWS = {
    "answers.py": "heavy delivered at attempt 2",
    "async_handlers.py": "ten pages of 0.2 s took",
    "batches.py": "400 readings in one call",
    "call_and_send.py": "called, answered by a worker: 60",
    "callbacks.py": "not paid: the apple goes back, 1 left",
    "classes.py": "queues: Warehouse.put, Warehouse.take",
    "dead_letters.py": "invoice 3 printed",
    "delayed.py": "tea is ready\nstill to come: 1\nthe late one: expired",
    "django_outbox.py": "order 1 shipped\norders in the table: 1",
    "failover.py": "parcel 7 goes by van",
    "fastapi_outbox.py": "POST /orders/1: 201\nPOST /orders/13: 409\norder 1 shipped\n",
    "groups_and_wildcards.py": "audit     order.cancelled\naudit     order.placed\n",
    "hello.py": "Hello, world!",
    "mailer.py": "199 tenants got their mail out within 10 s\nthe noisy one was turned away 2 times",
    "metrics.py": 'remuda_handled_total{outcome="success",queue="ship"} 8.0',
    "middleware.py": "middleware.greet gave 'good morning, customer 7'; the message was signed by shop",
    "processes.py": "broken.png: the process crashed with exit code 11",
    "queues.py": "waiting 1, delayed 1, in flight 0",
    "retries.py": "attempt 3: mail to ada@example.org\nsent",
    "settings.py": "ship: 4 threads, 3 retries",
    "spectators.py": "dead ValueError: no address",
    "testing_your_app.py": "an hour passed at once, and the test holds",
    "timeouts.py": "timed out after 200ms",
    "tracing.py": "handle order.shipped",
}


ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{Path(remuda.__file__).parent.parent}{os.pathsep}{ROOT}"}
PYTHON = (sys.executable, "-W", "error::ResourceWarning")


def run(*arguments: str) -> str:
    done = subprocess.run(
        [*PYTHON, *arguments], cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=250, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Exception ignored" not in done.stderr
    return done.stdout


def run_shop(directory: str) -> str:
    """As `make run KEEP=1 DIR=…`: Ctrl-C once the dashboard that stays up was looked at."""
    arguments = [*PYTHON, "-u", "-m", "examples.shop", "--keep", directory]
    told = ""
    with subprocess.Popen(arguments, cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True) as shop:
        try:
            assert shop.stdout is not None
            for line in shop.stdout:
                told += line
                if kept := re.match(r"The dashboard stays up at (\S+)", line):
                    with urllib.request.urlopen(kept[1], timeout=60) as page:
                        told += page.read().decode()
                    shop.send_signal(signal.SIGINT)
            assert shop.wait(60) == 0
        finally:
            shop.kill()
    return told


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[str]]]:
    """What each example prints. They mostly wait, so several run at a time; the shop, the longest, comes first."""
    shop = str(tmp_path_factory.mktemp("shop") / "data")
    with ThreadPoolExecutor(4) as pool:
        yield {
            "shop": pool.submit(run_shop, shop),
            **{name: pool.submit(run, f"examples/{name}") for name in EXAMPLES},
        }


def test_every_example_is_known() -> None:
    assert set(EXAMPLES) == set(SHOWS)


@pytest.mark.parametrize("example", EXAMPLES)
def test_example(example: str, shown: dict[str, Future[str]]) -> None:
    assert SHOWS[example] in shown[example].result()


def test_the_shop(shown: dict[str, Future[str]]) -> None:
    told = shown["shop"].result()
    assert "With charts: " in told
    assert "<title>" in told
    for heading in ("Publishing", "Retries", "A timeout", "A failover", "A compensation", "Dead letters"):
        assert f"\n{heading}\n" in told
    assert "failed: timed out after 500ms; next attempt in 500ms" in told
    assert "pianos in stock: 1" in told
    assert "reprocessed by ada" in told
    assert "2 are kept, with their reason" in told
    assert "The dashboard is at http://127.0.0.1:" in told
    assert "remuda pipeline run lifecycle: " in told
    assert "Where each order's time went" in told
    assert "Bank.charge (" in told
    assert "Look around: remuda queues" in told
