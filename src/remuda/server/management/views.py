"""What the management API shows, in the shapes that RabbitMQ 3 gives it."""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import socket
import sys
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final, TypeVar
from urllib.parse import quote
from zlib import crc32

from remuda.model.errors import RemudaError
from remuda.model.operations.results import QueueInfo
from remuda.model.queues.routing import Binding
from remuda.server.amqp.amqp_server import AmqpServer
from remuda.server.amqp.client_socket import ClientSocket
from remuda.server.amqp.declarations.exchanges import TYPES, ExchangeDeclaration
from remuda.server.amqp.declarations.policies import Policy
from remuda.server.amqp.declarations.queues import QueueDeclaration
from remuda.server.amqp.messages.consumers import AmqpConsumer
from remuda.server.amqp.protocol.channels import Channel
from remuda.server.amqp.protocol.login import EXTERNAL, MECHANISMS
from remuda.server.amqp.protocol.vhosts import DEAD_LETTERS, DEFAULT_EXCHANGE, VHost, split_name, vhost_name
from remuda.server.certificates import Certificates
from remuda.server.management.rates import Rates, add, counts_of

_FREE: Final = 50 << 20
"""Below this much free disk, RabbitMQ would raise an alarm."""
_CHURN: Final = (
    "connection_created", "connection_closed", "channel_created", "channel_closed", "queue_declared", "queue_created",
    "queue_deleted",
)  # fmt: skip
NODE: Final = f"remuda@{socket.gethostname()}"
_TURN: Final = 50
"""How many of thousands of queues are looked at before clients get their turn: everything runs on their loop."""
T = TypeVar("T")


class Views:
    """Everything as it is now."""

    def __init__(self, server: AmqpServer) -> None:
        self._server = server
        self._rates = Rates()
        self._idle: dict[str, tuple[dict[str, int], str]] = {}
        """By queue, what had happened in it at the last look, and since when nothing else has."""
        self._totals: dict[str, dict[str, int]] = {}
        """What ever happened in all queues of a vhost, and in all there are under the empty name."""
        self._began = time.time()
        self.ports: list[tuple[str, str, int]] = []
        """What is listened for: protocol, host and port."""
        self.certificates: Certificates | None = None
        """With which TLS is offered, if it is."""

    # Queues

    async def infos(self) -> list[QueueInfo]:
        """All queues but those through which dead letters pass."""
        found = [
            info for info in await self._server.broker.queues()
            if not split_name(info.name)[1].startswith(DEAD_LETTERS)
        ]  # fmt: skip
        counts: dict[str, dict[str, int]] = {}
        totals: dict[str, dict[str, int]] = {"": self._happened()}
        async for info in _in_turns(found):
            counted = counts[info.name] = self._count(info)
            for whole in ("", f"vhost {vhost_name(info.name)}"):
                add(totals.setdefault(whole, {}), counted)
        for name in [name for name in self._idle if name not in counts]:
            del self._idle[name]
        self._totals = totals
        self._rates.look({**counts, **totals})
        return found

    def _count(self, info: QueueInfo) -> dict[str, int]:
        """What ever happened in a queue; since when nothing has is remembered."""
        counts = counts_of(info)
        if self._idle.get(info.name, ({}, ""))[0] != counts:
            self._idle[info.name] = counts, datetime.now(UTC).isoformat(timespec="milliseconds")
        return counts

    def _happened(self) -> dict[str, int]:
        """What only the whole server counts, of its own clients and since its start."""
        churn = self._server.churn
        return {
            "confirm": churn["confirmed"], "return_unroutable": churn["returned"], "drop_unroutable": churn["dropped"],
            "deliver_no_ack": churn["deliver_no_ack"], "get": churn["get"], "get_no_ack": churn["get_no_ack"],
            "get_empty": churn["get_empty"],
        }  # fmt: skip

    def totals(self) -> dict[str, int]:
        """What ever happened in all queues together, as `infos` found it."""
        return self._totals.get("", {})

    async def queues(self, vhosts: Iterable[VHost]) -> list[dict[str, Any]]:
        wanted = {vhost.prefix: vhost for vhost in vhosts}
        return [
            self._queue(wanted[prefix], info)
            async for info in _in_turns(await self.infos())
            if (prefix := split_name(info.name)[0]) in wanted
        ]

    async def queue(self, vhost: VHost, full: str) -> dict[str, Any] | None:
        info = await self._server.topology.find(full)
        if info is None:
            return None
        shown = self._queue(vhost, info)
        shown["consumer_details"] = [
            one for one in self.consumers([vhost]) if one["queue"]["name"] == vhost.short(full)
        ]
        return {**shown, "deliveries": [], "incoming": []}

    def _queue(self, vhost: VHost, info: QueueInfo) -> dict[str, Any]:
        topology = self._server.topology
        declaration = topology.queues.get(info.name)
        policy = None if declaration is None else topology.policy_of_queue(info.name, declaration)
        shown = declaration or QueueDeclaration(durable=info.options.persistence.value == "persistent")
        counts, consumers = self._count(info), self._server.consumer_count(info)
        waiting = info.waiting + info.delayed
        numbers: dict[str, Any] = {}
        for name, value in (
            ("messages", waiting + info.in_flight), ("messages_ready", waiting),
            ("messages_unacknowledged", info.in_flight),
        ):  # fmt: skip
            numbers |= {name: value, f"{name}_details": {"rate": 0.0}, f"{name}_ram": value}
        del numbers["messages_ram"]
        return {
            "arguments": shown.arguments, "auto_delete": shown.auto_delete, "consumers": consumers,
            "consumer_capacity": 1.0 if consumers else 0, "consumer_utilisation": 1.0 if consumers else 0,
            "durable": shown.durable, "effective_policy_definition": {} if policy is None else policy.definition,
            "exclusive": shown.exclusive, "idle_since": self._idle[info.name][1],
            "head_message_timestamp": None, "memory": 0, "message_bytes": 0,
            "message_stats": self._rates.of(info.name, counts), **numbers, "messages_dead": info.dead,
            "messages_persistent": waiting + info.in_flight if shown.durable else 0, "messages_ram": 0,
            "name": vhost.short(info.name), "node": NODE, "operator_policy": None,
            "policy": None if policy is None else policy.name, "reductions": 0, "single_active_consumer_tag": None,
            "state": "running" if info.status.value == "running" else info.status.value,
            "type": shown.type, "vhost": vhost.name,
        }  # fmt: skip

    # Exchanges and bindings

    def exchanges(self, vhosts: Iterable[VHost]) -> list[dict[str, Any]]:
        wanted = {vhost.prefix: vhost for vhost in vhosts}
        return [
            self.exchange(wanted[prefix], full, declaration)
            for full, declaration in sorted(self._server.topology.exchanges.items())
            if (prefix := split_name(full)[0]) in wanted
        ]

    def exchange(self, vhost: VHost, full: str, declaration: ExchangeDeclaration) -> dict[str, Any]:
        policy = self._server.topology.policy_of_exchange(full)
        short = vhost.short(full)
        return {
            "arguments": declaration.arguments, "auto_delete": declaration.auto_delete, "durable": declaration.durable,
            "internal": declaration.internal, "name": "" if short == DEFAULT_EXCHANGE else short,
            "policy": None if policy is None else policy.name, "type": declaration.type,
            "user_who_performed_action": "rmq-internal" if short.startswith("amq.") else "", "vhost": vhost.name,
        }  # fmt: skip

    async def bindings(self, vhosts: Iterable[VHost]) -> list[dict[str, Any]]:
        wanted = {vhost.prefix: vhost for vhost in vhosts}
        found: list[dict[str, Any]] = []
        for full, (_, bindings) in (await self._server.broker.routers()).items():
            prefix, short = split_name(full)
            if prefix in wanted:
                vhost = wanted[prefix]
                source = "" if short == DEFAULT_EXCHANGE else short
                found += [shown for one in bindings if (shown := _binding(vhost, source, full, one)) is not None]
        return found

    # Connections, channels and consumers

    def clients(self) -> list[ClientSocket]:
        return [client for client in self._server.clients if client.session.entered]

    def connections(self) -> list[dict[str, Any]]:
        return [self.connection(client) for client in self.clients()]

    def connection(self, client: ClientSocket) -> dict[str, Any]:
        session, protocol = client.session, client.session.protocol
        return {
            "auth_mechanism": client.mechanism, "channel_max": protocol.channel_max, "channels": len(session.channels),
            "client_properties": protocol.client_properties, "connected_at": client.connected_at,
            "frame_max": protocol.frame_max, "host": client.local[0], "name": client.name, "node": NODE,
            "peer_host": client.remote[0], "peer_port": client.remote[1], "port": client.local[1],
            "protocol": "AMQP 0-9-1", "recv_cnt": client.received_count, "recv_oct": client.received,
            "recv_oct_details": {"rate": 0.0}, "reductions": 0, "send_cnt": client.sent_count,
            "send_oct": client.sent, "send_oct_details": {"rate": 0.0}, "send_pend": 0, "ssl": client.encrypted,
            "peer_cert_subject": client.certificate_name, "state": client.state, "timeout": protocol.heartbeat,
            "type": "network", "user": session.user.name, "user_provided_name": _provided_name(client),
            "user_who_performed_action": session.user.name, "vhost": session.vhost.name,
        }  # fmt: skip

    def channels(self) -> list[dict[str, Any]]:
        return [
            self.channel(client, channel) for client in self.clients() for channel in client.session.channels.values()
        ]

    def channel(self, client: ClientSocket, channel: Channel) -> dict[str, Any]:
        session = client.session
        host, port = client.remote
        transaction = channel.transaction
        return {
            "acks_uncommitted": 0 if transaction is None else len(transaction.answers),
            "confirm": channel.confirms is not None, "connection_details": {
                "name": client.name, "peer_host": host, "peer_port": port,
            },
            "consumer_count": len(channel.consumers), "global_prefetch_count": channel.shared_prefetch,
            "messages_unacknowledged": channel.unanswered.count, "messages_uncommitted": (
                0 if transaction is None else sum(len(one.bodies) for one in transaction.publications)
            ),
            "messages_unconfirmed": 0 if channel.confirms is None else channel.confirms.unconfirmed,
            "name": f"{client.name} ({channel.number})", "node": NODE, "number": channel.number,
            "prefetch_count": channel.prefetch, "state": client.state, "transactional": transaction is not None,
            "user": session.user.name, "user_who_performed_action": session.user.name, "vhost": session.vhost.name,
        }  # fmt: skip

    def consumers(self, vhosts: Iterable[VHost]) -> list[dict[str, Any]]:
        wanted = {vhost.name for vhost in vhosts}
        return [
            self._consumer(client, channel, consumer)
            for client in self.clients()
            if client.session.vhost.name in wanted
            for channel in client.session.channels.values()
            for consumer in channel.consumers.values()
        ]

    def _consumer(self, client: ClientSocket, channel: Channel, consumer: AmqpConsumer) -> dict[str, Any]:
        vhost = client.session.vhost
        host, port = client.remote
        return {
            "arguments": consumer.arguments, "ack_required": not consumer.no_ack, "active": True,
            "activity_status": "up",
            "channel_details": {
                "connection_name": client.name, "name": f"{client.name} ({channel.number})", "node": NODE,
                "number": channel.number, "peer_host": host, "peer_port": port, "user": client.session.user.name,
            },
            "consumer_tag": consumer.tag, "exclusive": consumer.exclusive, "prefetch_count": consumer.prefetch,
            "queue": {"name": vhost.short(consumer.queue), "vhost": vhost.name},
        }  # fmt: skip

    # The server

    async def overview(self) -> dict[str, Any]:
        infos = await self.infos()
        limits = self._server.limits
        waiting = sum(info.waiting + info.delayed for info in infos)
        held = sum(info.in_flight for info in infos)
        clients = self.clients()
        totals: dict[str, Any] = {}
        for name, value in (
            ("messages", waiting + held), ("messages_ready", waiting), ("messages_unacknowledged", held),
        ):  # fmt: skip
            totals |= {name: value, f"{name}_details": {"rate": 0.0}}
        return {
            "management_version": limits.product_version, "rates_mode": "basic",
            "exchange_types": _exchange_types(), "product_name": "Remuda", "product_version": _version(),
            "rabbitmq_version": limits.product_version, "cluster_name": NODE, "erlang_version": "",
            "erlang_full_version": f"Python {sys.version.split()[0]}",
            "message_stats": self._rates.of("", self.totals()),
            "churn_rates": {
                name: value
                for counter in _CHURN
                for number in [self._server.churn[counter]]
                for name, value in ((counter, number), (f"{counter}_details", {"rate": 0.0}))
            },
            "queue_totals": totals, "object_totals": {
                "channels": sum(len(client.session.channels) for client in clients), "connections": len(clients),
                "consumers": sum(map(self._server.consumer_count, infos)),
                "exchanges": len(self._server.topology.exchanges), "queues": len(infos),
            },
            "statistics_db_event_queue": 0, "node": NODE, "listeners": self.listeners(), "contexts": self._contexts(),
            "disable_stats": False, "enable_queue_totals": False,
        }  # fmt: skip

    def listeners(self) -> list[dict[str, Any]]:
        return [
            {"node": NODE, "protocol": protocol, "ip_address": host, "port": port}
            for protocol, host, port in self.ports
        ]

    def _contexts(self) -> list[dict[str, Any]]:
        """Where this interface itself is listened for."""
        return [
            {
                "description": "RabbitMQ Management",
                "path": "/",
                "ip": host,
                "port": port,
                "protocol": protocol,
                "node": NODE,
            }
            for protocol, host, port in self.ports
            if protocol.startswith("http")
        ]

    def node(self) -> dict[str, Any]:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return {
            "name": NODE, "type": "disc", "running": True, "mem_used": _memory(),
            "mem_alarm": self._server.intake.low_on("memory"),
            "mem_limit": self._server.limits.memory_bytes, "mem_used_details": {"rate": 0.0},
            "disk_free": self.disk_free(), "disk_free_limit": _FREE,
            "disk_free_alarm": self._server.intake.low_on("disk"),
            "fd_used": _files(), "fd_total": soft, "sockets_used": len(self._server.clients),
            "sockets_total": self._server.limits.connection_max, "proc_used": 0, "proc_total": 0, "run_queue": 0,
            "exchange_types": _exchange_types(), "contexts": self._contexts(), "auth_mechanisms": [
                {"name": name, "description": "", "enabled": True} for name in (*MECHANISMS.decode().split(), EXTERNAL)
            ],
            "processors": os.cpu_count() or 1, "uptime": round((time.time() - self._began) * 1000),
            "os_pid": str(os.getpid()), "rates_mode": "basic", "being_drained": False, "partitions": [],
            "applications": [{"name": "remuda", "description": "Remuda", "version": _version()}],
            "enabled_plugins": ["rabbitmq_management"], "db_dir": self._path(), "config_files": [], "log_files": [],
        }  # fmt: skip

    def _path(self) -> str:
        return str(getattr(getattr(self._server.broker, "runtime", None), "path", ""))

    def disk_free(self) -> int:
        try:
            return shutil.disk_usage(self._path() or ".").free
        except OSError:
            return 0

    async def vhosts(self, vhosts: Iterable[VHost]) -> list[dict[str, Any]]:
        infos = await self.infos()
        shown = []
        for vhost in vhosts:
            own = [info for info in infos if vhost_name(info.name) == vhost.name]
            ready = sum(info.waiting + info.delayed for info in own)
            held = sum(info.in_flight for info in own)
            shown.append(
                {
                    "name": vhost.name, "tracing": False, "description": "", "tags": [],
                    "metadata": {"description": "", "tags": []}, "default_queue_type": "classic",
                    "cluster_state": {NODE: "running"}, "messages": ready + held, "messages_ready": ready,
                    "messages_unacknowledged": held, "message_stats": self._rates.of(
                        f"vhost {vhost.name}", self._totals.get(f"vhost {vhost.name}", {})
                    ),
                }
            )  # fmt: skip
        return shown


async def _in_turns(items: Sequence[T]) -> AsyncIterator[T]:
    for number, item in enumerate(items, 1):
        yield item
        if number % _TURN == 0:
            await asyncio.sleep(0)


def policy_view(vhost: str, policy: Policy) -> dict[str, Any]:
    return {
        "vhost": vhost, "name": policy.name, "pattern": policy.pattern, "apply-to": policy.apply_to,
        "definition": policy.definition, "priority": policy.priority,
    }  # fmt: skip


def properties_key(key: str, arguments: dict[str, Any]) -> str:
    """What tells apart several bindings between the same two: the routing key, and a hash of the arguments."""
    if not arguments:
        return quote(key, safe="") or "~"
    return f"{quote(key, safe='')}~{crc32(repr(sorted(arguments.items())).encode()):08X}"


def _binding(vhost: VHost, source: str, full: str, binding: Binding) -> dict[str, Any] | None:
    """A binding as clients know it; None for one that only describes its exchange."""
    target = binding.queue or binding.exchange
    if target is None or binding.exchange == full or vhost.short(target).startswith(DEAD_LETTERS):
        return None
    arguments = {name: value for name, value in binding.arguments.items() if not name.startswith("x-remuda-")}
    return {
        "source": source, "vhost": vhost.name, "destination": vhost.short(target),
        "destination_type": "queue" if binding.queue is not None else "exchange", "routing_key": binding.key,
        "arguments": arguments, "properties_key": properties_key(binding.key, arguments),
    }  # fmt: skip


def _provided_name(client: ClientSocket) -> str:
    return str(client.session.protocol.client_properties.get("connection_name", ""))


def _exchange_types() -> list[dict[str, Any]]:
    return [{"name": name, "description": text, "enabled": True} for name, text in TYPES.items()]


def _version() -> str:
    from remuda import __version__

    return __version__


def _memory() -> int:
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _files() -> int:
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return 0


def readable(error: RemudaError) -> str:
    """An error's text without the reply code that AMQP's clients see."""
    text = str(error)
    code, dash, rest = text.partition(" - ")
    return rest if dash and code.isupper() and code.replace("_", "").isalpha() else text
