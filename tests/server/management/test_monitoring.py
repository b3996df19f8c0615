"""What `docker compose --profile monitoring up` shows is what the server tells (S7); seen without Docker."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from remuda import Bus
from tests.server.amqp.kit import Client, fresh
from tests.server.management.kit import managed
from tests.server.site import serving

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


OVERVIEW = """
    alarms_file_descriptor_limit alarms_free_disk_space_watermark alarms_memory_used_watermark build_info channels
    channels_closed_total channels_opened_total connections connections_closed_total connections_opened_total consumers
    disk_space_available_bytes disk_space_available_limit_bytes global_consumers global_messages_acknowledged_total
    global_messages_confirmed_total global_messages_delivered_consume_auto_ack_total
    global_messages_delivered_consume_manual_ack_total global_messages_delivered_get_auto_ack_total
    global_messages_delivered_get_manual_ack_total global_messages_delivered_total global_messages_get_empty_total
    global_messages_received_confirm_total global_messages_received_total global_messages_redelivered_total
    global_messages_routed_total global_messages_unroutable_dropped_total global_messages_unroutable_returned_total
    global_publishers identity_info process_max_fds process_max_tcp_sockets process_open_fds process_open_tcp_sockets
    process_resident_memory_bytes queue_messages_ready queue_messages_unacked queues queues_created_total
    queues_declared_total queues_deleted_total resident_memory_limit_bytes
""".split()  # fmt: skip


@pytest.mark.parametrize("name", OVERVIEW)
def test_s7_rabbitmqs_own_dashboard_finds_its_metrics(name: str, told: str) -> None:
    assert re.search(rf"^rabbitmq_{name}(\{{.*\}})? \S+$", told, re.MULTILINE)


def test_s7_what_clients_do_is_counted_and_stays_counted() -> None:
    """The counters of a queue that is deleted go with it: those of all messages must not fall."""
    with managed() as site, Client(site.amqp()) as client:
        channel = client.channel
        channel.queue_declare(queue := fresh())
        client.publish(queue, *[b"x"] * 5)
        client.open(confirms=False).basic_publish("", "nowhere", b"dropped")
        for auto in (True, False):
            channel.basic_get(queue, auto_ack=auto)
        method, _, _ = next(channel.consume(queue))
        channel.basic_nack(method.delivery_tag)
        channel.cancel()
        method, _, _ = next(channel.consume(queue, auto_ack=False))
        assert method.redelivered
        channel.basic_ack(method.delivery_tag)
        channel.cancel()
        channel.queue_delete(queue)
        channel.queue_declare(empty := fresh())
        channel.basic_get(empty)

        def told(name: str) -> float:
            text = httpx.get(f"{site.address}/metrics", auth=("guest", "guest"), timeout=60).text
            found = re.search(rf"^rabbitmq_global_messages_{name}_total\{{.*\}} (\S+)$", text, re.MULTILINE)
            assert found is not None, name
            return float(found[1])

        expected = {
            "received": 6, "received_confirm": 5, "confirmed": 5, "routed": 5, "unroutable_dropped": 1,
            "delivered_get_auto_ack": 1, "delivered_get_manual_ack": 1, "get_empty": 1, "acknowledged": 1,
        }  # fmt: skip
        assert {name: told(name) for name in expected} == expected
        assert told("redelivered") >= 1
        assert told("delivered") == told("delivered_consume_manual_ack") + 2
        assert site.get("overview")["message_stats"]["confirm"] == 5


def test_u4_rules_and_dashboard_ask_for_what_a_page_tells_prometheus() -> None:
    """U4: by names and labels, with a message in each state that they ask for."""
    board = json.loads((ROOT / "docker/grafana/dashboards/remuda-queues.json").read_text())
    asked = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    rules = re.findall(r"^ +expr: (.*)$", (ROOT / "docker/prometheus-rules.yml").read_text(), re.MULTILINE)
    assert (len(asked), len(rules)) == (7, 6)
    with Bus() as bus:
        bus.broker.create_queue("q", type="pull", patterns=["q"])
        for _ in range(3):
            bus.publish("q", 1)
        for outcome in ("ack", "dead"):
            delivery = bus.broker.pull("q")
            assert delivery is not None
            getattr(delivery, outcome)()
        with serving(bus) as site:
            told = site.client.get("/metrics").text
        for query in (*asked, *rules):
            for name, labels in re.findall(r"(remuda_[a-z_]+)(?:{([^}]*)})?", query):
                states = [word for word in re.findall(r'state=~?"([^"]+)"', labels) for word in word.split("|")]
                for state in states or [""]:
                    wanted = rf'^{name}\{{queue="q",state="{state}"\}} ' if state else rf"^(# TYPE )?{name}\b"
                    assert re.search(wanted, told, re.MULTILINE), (name, state)
    assert float(re.findall(r'remuda_queue_oldest_seconds{queue="q"} (\S+)', told)[0]) > 0


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
