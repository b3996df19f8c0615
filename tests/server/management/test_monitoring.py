"""What `docker compose --profile monitoring up` shows is what the server tells (S7); seen without Docker."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.server.amqp.kit import Client, fresh
from tests.server.management.kit import managed

ROOT = Path(__file__).resolve().parents[3]
DASHBOARD = json.loads((ROOT / "docker/grafana/dashboards/remuda.json").read_text())
QUERIES = sorted({target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]})


@pytest.fixture(scope="module")
def told() -> Iterator[str]:
    with managed() as site, Client(site.amqp()) as client:
        client.channel.queue_declare(queue := fresh())
        client.publish(queue, b"1")
        yield httpx.get(f"{site.address}/metrics", auth=("guest", "guest"), timeout=60).text


@pytest.mark.parametrize("query", QUERIES)
def test_s7_the_dashboard_asks_for_metrics_that_are_told(query: str, told: str) -> None:
    names = re.findall(r"rabbitmq_\w+", query)
    assert names
    for name in names:
        assert re.search(rf"^{name}(\{{.*\}})? \S+$", told, re.MULTILINE), name


def test_s7_the_files_of_the_composition_are_there_and_agree() -> None:
    compose = (ROOT / "compose.yaml").read_text()
    mounted = re.findall(r"\./(docker/[\w./-]+):", compose)
    assert len(mounted) == 3
    for path in mounted:
        assert (ROOT / path).exists(), path
    scraped = (ROOT / "docker/prometheus.yml").read_text()
    assert '"remuda:15672"' in scraped
    assert "0.0.0.0:15672" in (ROOT / "Dockerfile").read_text()
    source = re.search(r"uid: (\w+)", (ROOT / "docker/grafana/provisioning/datasources/prometheus.yml").read_text())
    assert source is not None
    assert {panel["datasource"]["uid"] for panel in DASHBOARD["panels"]} == {source[1]}
