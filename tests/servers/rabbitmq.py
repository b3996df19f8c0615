"""A private RabbitMQ node on loopback, with its own cookie, epmd and directories."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Final

import pytest

from remuda.amqp.codec.frames import method_frame
from remuda.amqp.codec.methods import QueueDelete
from remuda.broker.options import BrokerOptions
from remuda.broker.rabbitmq.publishing.delays import LEVELS, exchange_of
from remuda.broker.rabbitmq.rabbit_runtime import Runtime
from remuda.broker.rabbitmq.record_sinks import NoRecords
from remuda.broker.rabbitmq.shared_state.queue_definitions import REMOVED, ROUTER_REMOVED, change
from remuda.broker.rabbitmq.shared_state.rabbit_topology import TOPICS
from remuda.broker.rabbitmq.support import DEAD
from remuda.log.streams.stream_numbers import STREAM
from tests.servers.ports import free_port

_SERVER: Final = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
_START: Final = 200.0


class RabbitNode:
    """One node. It can be stopped and started again with what it stored."""

    def __init__(self, directory: Path, name: str = "remuda", *, one_scheduler: bool = True) -> None:
        self.directory = directory
        self._schedulers = " +S 1:1" if one_scheduler else ""
        self.name = f"{name}{os.getpid()}@localhost"
        self.port, self.tls_port, self._epmd_port, self._dist_port = (free_port() for _ in range(4))
        self.certificate = directory / "certificate.pem"
        self._epmd: subprocess.Popen[bytes] | None = None
        self._server: subprocess.Popen[bytes] | None = None
        (directory / "home").mkdir()
        (directory / "rabbitmq.conf").write_text("loopback_users = none\nlog.console = false\n" + self._tls())
        (directory / "enabled_plugins").write_text("[].")

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/"

    def _tls(self) -> str:
        """Lines that make the node listen with TLS too, with a certificate for localhost of its own."""
        key = self.directory / "key.pem"
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
             "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", str(key),
             "-out", str(self.certificate)],
            capture_output=True, check=True,
        )  # fmt: skip
        return (
            f"listeners.ssl.1 = 127.0.0.1:{self.tls_port}\nssl_options.certfile = {self.certificate}\n"
            f"ssl_options.keyfile = {key}\nssl_options.cacertfile = {self.certificate}\n"
            "ssl_options.verify = verify_none\nssl_options.fail_if_no_peer_cert = false\n"
        )

    @property
    def running(self) -> bool:
        return self._server is not None

    @property
    def pid(self) -> int:
        return int((self.directory / "pid").read_text())

    def start(self) -> None:
        if self._epmd is None:
            self._epmd = subprocess.Popen(
                ["epmd", "-address", "127.0.0.1", "-port", str(self._epmd_port)],
                env=self._environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
            self._await(self._epmd, self._epmd_port, "")
        log = (self.directory / "output").open("ab")
        with log:
            self._server = subprocess.Popen(
                [str(_SERVER)], env=self._environment(), stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                start_new_session=True, cwd=self.directory,
            )  # fmt: skip
        self._await(self._server, self.port, "AMQP\x00\x00\x09\x01")

    def stop(self) -> None:
        """An orderly stop."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """As if the machine lost power."""
        self._end(signal.SIGKILL)

    def close(self) -> None:
        """For good: nobody needs what it stored, and an orderly stop takes a while."""
        self._end(signal.SIGKILL)
        if self._epmd is not None:
            self._epmd.kill()
            self._epmd.wait()
            self._epmd = None

    def evaluate(self, expression: str) -> str:
        """What an Erlang expression comes to on this node, as text. `rabbitmqctl` would take seconds for it."""
        done = subprocess.run(
            ["erl_call", "-sname", self.name, "-e"],
            input=f'lists:flatten(io_lib:format("~0p", [begin {expression} end])).\n',
            env=self._environment(), capture_output=True, text=True, timeout=100, check=False,
        )  # fmt: skip
        said = done.stdout.strip()
        assert done.returncode == 0, said + done.stderr
        assert said.startswith('{ok, "'), said
        return said[len('{ok, "') : -2].replace('\\"', '"')

    def arguments_of(self, queue: str) -> str:
        """With which arguments a queue was made."""
        lookup = f'rabbit_amqqueue:lookup(rabbit_misc:r(<<"/">>, queue, <<"{queue}">>))'
        return self.evaluate(f"{{ok, Q}} = {lookup}, amqqueue:get_arguments(Q)")

    def close_connections(self, reason: str) -> None:
        """As an operator closes them all."""
        self.evaluate(f'rabbit_networking:close_connections(rabbit_networking:connections(), "{reason}")')

    def limit_memory(self, share: float) -> None:
        """From how much of the memory on the node takes nothing in; it is 0.4 of it by default."""
        self.evaluate(f"vm_memory_monitor:set_vm_memory_high_watermark({share:.6f})")

    def _end(self, number: signal.Signals) -> None:
        if self._server is None:
            return
        pid_file = self.directory / "pid"
        if pid_file.exists():
            with contextlib.suppress(ProcessLookupError, ValueError):
                os.kill(self.pid, number)
        try:
            self._server.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(self._server.pid, signal.SIGKILL)
            self._server.wait()
        pid_file.unlink(missing_ok=True)
        self._server = None

    def _await(self, server: subprocess.Popen[bytes], port: int, hello: str) -> None:
        """Until it takes connections, and answers where something is said to it.

        Nodes of a cluster share an epmd: those that were started besides end when they find it.
        """
        deadline = time.monotonic() + _START
        while time.monotonic() < deadline:
            ended = server.poll() is not None
            try:
                with socket.create_connection(("127.0.0.1", port), timeout=20) as probe:
                    probe.sendall(hello.encode())
                    if not hello or probe.recv(1) == b"\x01":
                        return
            except OSError:
                pass
            if ended:
                output = self.directory / "output"
                raise AssertionError(output.read_text()[-3000:] if output.exists() else f"{server.args!r} ended")
            time.sleep(0.1)
        raise AssertionError(f"{server.args!r} did not start within {_START:.0f} s")

    def _environment(self) -> dict[str, str]:
        folder = self.directory
        return {
            **os.environ,
            "HOME": str(folder / "home"),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(self._epmd_port),
            "RABBITMQ_DIST_PORT": str(self._dist_port),
            "RABBITMQ_NODENAME": self.name,
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_PID_FILE": str(folder / "pid"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}" + self._schedulers,
        }


def missing() -> None:
    """Skip where RabbitMQ is not installed, and say so (an error where CI promises to skip nothing)."""
    if not _SERVER.exists() or shutil.which("erl_call") is None or shutil.which("openssl") is None:
        said = "RabbitMQ is not installed; run tools/setup.sh as root, or: apt-get install rabbitmq-server openssl"
        if os.environ.get("CI") == "true":
            pytest.fail(said)
        pytest.skip(said)


def start_node(name: str = "remuda") -> RabbitNode:
    """A running node, or a skip that says what is missing."""
    missing()
    node = RabbitNode(Path(tempfile.mkdtemp(prefix="remuda-rabbit-")), name)
    try:
        node.start()
    except BaseException:
        end_node(node)
        raise
    return node


def end_node(node: RabbitNode) -> None:
    node.close()
    shutil.rmtree(node.directory, ignore_errors=True)


class Janitor:
    """Removes what brokers of ours have made in a virtual host, so that the next test finds nothing."""

    def __init__(self, url: str) -> None:
        self._runtime = Runtime(url, BrokerOptions(worker=1023), records=NoRecords()).open()

    def wipe(self, *, used: bool = True) -> None:
        """Wipe all away; unless it was `used`, only if there is something."""
        runtime = self._runtime
        channel = runtime.topology.channel
        runtime.definitions.propose(change("nothing", "", 0))  # then all that was made before is known
        queues, routers = list(runtime.definitions.queues), list(runtime.definitions.catalog.routing.exchanges)
        if not used and not queues and not routers:
            return
        gone = [change(REMOVED, queue, 0) for queue in queues]
        gone += [change(ROUTER_REMOVED, router, 0) for router in routers]
        if gone:
            runtime.definitions.propose_all(gone)
        gone_queues = [name for queue in queues for name in (queue, queue + DEAD)] + [*map(exchange_of, LEVELS), STREAM]
        connection = runtime.consuming_connection
        with connection.changed:  # one round trip for all of them
            for name in gone_queues:
                connection.put(method_frame(channel.number, QueueDelete(0, name, no_wait=True)))
        channel.declare_exchange(TOPICS, "topic")

    def close(self) -> None:
        self._runtime.close()
