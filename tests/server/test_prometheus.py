"""U4 U2: the rules and the dashboard of the repository, asked of a real Prometheus that scrapes ours."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import yaml

from remuda.bus.bus import Bus
from tests.server.site import serving, until
from tests.servers.browser import missing

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "docker/prometheus-rules.yml"
BOARD = json.loads((ROOT / "docker/grafana/dashboards/remuda-queues.json").read_text())


def program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        missing(f"{name} is not installed; on Debian: apt-get install prometheus")
    return found


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


class Prometheus:
    def __init__(self, client: httpx.Client) -> None:
        self._client = client

    def ask(self, query: str) -> list[dict[str, Any]]:
        answer = self._client.get("/api/v1/query", params={"query": query}).json()
        assert answer["status"] == "success", (query, answer)
        found: list[dict[str, Any]] = answer["data"]["result"]
        return found

    def firing(self) -> set[str]:
        alerts = self._client.get("/api/v1/alerts").json()["data"]["alerts"]
        return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}


@contextmanager
def started(folder: Path, target: str) -> Iterator[Prometheus]:
    """Prometheus, which scrapes a target twice a second, with our rules; what must last is not waited for."""
    rules = yaml.safe_load(RULES.read_text())
    for rule in rules["groups"][0]["rules"]:
        rule.pop("for", None)
    (folder / "rules.yml").write_text(yaml.safe_dump(rules))
    every = {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "500ms"}
    config = {
        "global": every, "rule_files": ["rules.yml"],
        "scrape_configs": [{"job_name": "remuda", "static_configs": [{"targets": [target]}]}],
    }  # fmt: skip
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    port = free_port()
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [program("prometheus"), f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/tsdb",
             f"--web.listen-address=127.0.0.1:{port}"],
            stdout=subprocess.DEVNULL, stderr=log,
        )  # fmt: skip
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:

            def ready() -> bool:
                assert process.poll() is None, (folder / "log").read_text()
                try:
                    return client.get("/-/ready").status_code == 200
                except httpx.TransportError:
                    return False

            until(ready, "Prometheus")
            yield Prometheus(client)
    finally:
        process.kill()
        process.wait()


def test_u4_the_rules_are_prometheus_rules() -> None:
    """U4"""
    checked = subprocess.run(
        [program("promtool"), "check", "rules", str(RULES)], capture_output=True, text=True, check=False
    )
    assert (checked.returncode, "6 rules found" in checked.stdout) == (0, True), checked.stderr


def test_u4_prometheus_scrapes_answers_and_raises_alarms(tmp_path: Path) -> None:
    """U4: also for the first dead letters of a queue, which all come between two looks."""
    queries = [target["expr"] for panel in BOARD["panels"] for target in panel["targets"]]
    rules = re.findall(r"^ +expr: (.*)$", RULES.read_text(), re.MULTILINE)
    with Bus() as bus:
        bus.broker.create_queue("q", type="pull", patterns=["q"], acknowledge="just-request")
        with serving(bus) as site, started(tmp_path, site.address.removeprefix("http://")) as prometheus:
            until(lambda: prometheus.ask("remuda_up == 1"), "the first scrape")
            assert prometheus.firing() == set()
            bus.publish_many("q", list(range(20)))
            for number, outcome in ((1, "ack"), (10, "dead")):
                taken = bus.broker.pull("q", number)
                assert taken is not None
                getattr(taken, outcome)()
            until(lambda: {"RemudaDeadLetters", "RemudaNoConsumer"} <= prometheus.firing(), "the alarms")
            assert prometheus.firing() == {"RemudaDeadLetters", "RemudaNoConsumer"}
            for query in rules:
                prometheus.ask(query)
            for query in queries:
                until(partial(prometheus.ask, query.replace("$queue", ".*")), query)
