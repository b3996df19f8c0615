"""Prometheus metrics under the names that RabbitMQ's plug-in and its Grafana dashboards use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from remuda.model.operations.results import QueueInfo
from remuda.server.amqp.amqp_server import AmqpServer
from remuda.server.amqp.protocol.vhosts import split_name, vhost_name
from remuda.server.management.views import NODE, Views

_Sample = tuple[str, float]
_CLASSIC: Final = 'queue_type="rabbit_classic_queue"'
_OF_CLIENTS: Final = {
    "received": "received", "received_confirm": "received_confirm", "confirmed": "confirmed",
    "unroutable_dropped": "dropped", "unroutable_returned": "returned",
}  # fmt: skip
"""Counters by what they are called in the metrics: those that do not depend on a queue."""
_OF_CONSUMERS: Final = {"redelivered": "redeliver", "acknowledged": "acknowledged", "get_empty": "get_empty"}
_DELIVERED: Final = {
    "delivered_consume_manual_ack": "deliver", "delivered_consume_auto_ack": "deliver_no_ack",
    "delivered_get_manual_ack": "get", "delivered_get_auto_ack": "get_no_ack",
}  # fmt: skip


async def exposed(server: AmqpServer, views: Views, *, each: bool = False) -> str:
    """All metrics, in Prometheus' text format. Those of queues are sums and, with the prefix `detailed`, of each queue;
    with `each`, they have no sums and no prefix."""
    infos = await views.infos()
    node, clients, churn = views.node(), views.clients(), server.churn
    ready = sum(info.waiting + info.delayed for info in infos)
    held = sum(info.in_flight for info in infos)
    consumers = sum(map(server.consumer_count, infos))
    product, version = server.limits.product, server.limits.product_version
    identity = f'rabbitmq_node="{NODE}",rabbitmq_cluster="{NODE}",rabbitmq_cluster_permanent_id="{NODE}"'
    build = f'rabbitmq_version="{version}",prometheus_client_version="",prometheus_plugin_version="{version}"'
    protocol = 'protocol="amqp091"'
    families: list[tuple[str, str, list[_Sample]]] = [
        ("rabbitmq_identity_info", "gauge", [(identity, 1)]),
        ("rabbitmq_build_info", "gauge", [(f'{build},product_name="{product}",product_version="{version}"', 1)]),
        ("rabbitmq_connections", "gauge", [("", len(clients))]),
        ("rabbitmq_channels", "gauge", [("", sum(len(client.session.channels) for client in clients))]),
        ("rabbitmq_consumers", "gauge", [("", consumers)]),
        ("rabbitmq_queues", "gauge", [("", len(infos))]),
        ("rabbitmq_queue_messages_published_total", "counter", [("", churn["received"])]),
        ("rabbitmq_connections_opened_total", "counter", [("", churn["connection_created"])]),
        ("rabbitmq_connections_closed_total", "counter", [("", churn["connection_closed"])]),
        ("rabbitmq_channels_opened_total", "counter", [("", churn["channel_created"])]),
        ("rabbitmq_channels_closed_total", "counter", [("", churn["channel_closed"])]),
        ("rabbitmq_queues_declared_total", "counter", [("", churn["queue_declared"])]),
        ("rabbitmq_queues_created_total", "counter", [("", churn["queue_created"])]),
        ("rabbitmq_queues_deleted_total", "counter", [("", churn["queue_deleted"])]),
        ("rabbitmq_process_open_fds", "gauge", [("", node["fd_used"])]),
        ("rabbitmq_process_max_fds", "gauge", [("", node["fd_total"])]),
        ("rabbitmq_process_open_tcp_sockets", "gauge", [("", node["sockets_used"])]),
        ("rabbitmq_process_max_tcp_sockets", "gauge", [("", node["sockets_total"])]),
        ("rabbitmq_process_resident_memory_bytes", "gauge", [("", node["mem_used"])]),
        ("rabbitmq_resident_memory_limit_bytes", "gauge", [("", node["mem_limit"])]),
        ("rabbitmq_disk_space_available_bytes", "gauge", [("", node["disk_free"])]),
        ("rabbitmq_disk_space_available_limit_bytes", "gauge", [("", node["disk_free_limit"])]),
        ("rabbitmq_erlang_uptime_seconds", "gauge", [("", node["uptime"] / 1000)]),
        ("rabbitmq_alarms_free_disk_space_watermark", "gauge", [("", float(node["disk_free_alarm"]))]),
        ("rabbitmq_alarms_memory_used_watermark", "gauge", [("", float(node["mem_alarm"]))]),
        ("rabbitmq_alarms_file_descriptor_limit", "gauge", [("", float(node["fd_used"] >= node["fd_total"]))]),
        ("rabbitmq_auth_attempts_total", "counter", [(protocol, churn["login"] + churn["login_failed"])]),
        ("rabbitmq_auth_attempts_succeeded_total", "counter", [(protocol, churn["login"])]),
        ("rabbitmq_auth_attempts_failed_total", "counter", [(protocol, churn["login_failed"])]),
        ("rabbitmq_global_publishers", "gauge", [(protocol, sum(client.session.publishes for client in clients))]),
        ("rabbitmq_global_consumers", "gauge", [(protocol, consumers)]),
    ]  # fmt: skip
    families += [
        (f"rabbitmq_global_messages_{name}_total", "counter", [(protocol, churn[counter])])
        for name, counter in _OF_CLIENTS.items()
    ]
    routed = churn["received"] - churn["dropped"] - churn["returned"]
    families.append(("rabbitmq_global_messages_routed_total", "counter", [(protocol, routed)]))
    delivered = sum(churn[counter] for counter in _DELIVERED.values())
    of_queues = {
        "delivered": delivered,
        **{name: churn[counter] for name, counter in (_OF_CONSUMERS | _DELIVERED).items()},
    }
    families += [
        (f"rabbitmq_global_messages_{name}_total", "counter", [(f"{protocol},{_CLASSIC}", number)])
        for name, number in of_queues.items()
    ]
    counted: tuple[tuple[str, int, Callable[[QueueInfo], int]], ...] = (
        ("messages", ready + held, lambda info: info.waiting + info.delayed + info.in_flight),
        ("messages_ready", ready, lambda info: info.waiting + info.delayed),
        ("messages_unacked", held, lambda info: info.in_flight),
        ("consumers", consumers, server.consumer_count),
    )
    for name, total, count in counted:
        of_each: list[_Sample] = [(_labels(info.name), count(info)) for info in infos]
        if each:
            families.append((f"rabbitmq_queue_{name}", "gauge", of_each))
        else:
            families.append((f"rabbitmq_queue_{name}", "gauge", [("", total)]))
            families.append((f"rabbitmq_detailed_queue_{name}", "gauge", of_each))
    return "".join(_lines(families))


def _labels(full: str) -> str:
    return f'vhost="{_escaped(vhost_name(full))}",queue="{_escaped(split_name(full)[1])}"'


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _lines(families: Iterable[tuple[str, str, list[_Sample]]]) -> Iterator[str]:
    for name, kind, samples in families:
        yield f"# TYPE {name} {kind}\n"
        for labels, value in samples:
            yield f"{name}{{{labels}}} {value}\n" if labels else f"{name} {value}\n"
