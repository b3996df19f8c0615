"""Three RabbitMQ nodes on loopback that are one cluster: one cookie, one epmd, ports and directories of their own."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers.rabbitmq import RabbitNode, missing

TICK = 8
"""Seconds after which a node that does not answer is taken for down."""


class ClusterNode(RabbitNode):
    """A node that looks for the others when it first starts."""

    def join(self, nodes: list[ClusterNode], cookie: str) -> None:
        """Called before the start."""
        self._epmd_port = nodes[0]._epmd_port
        self._schedulers += f" -kernel net_ticktime {TICK}"
        path = self.directory / "home" / ".erlang.cookie"
        path.write_text(cookie)
        path.chmod(0o400)
        lines = [f"cluster_formation.classic_config.nodes.{at} = {node.name}" for at, node in enumerate(nodes, 1)]
        with (self.directory / "rabbitmq.conf").open("a") as conf:
            conf.write("cluster_formation.peer_discovery_backend = classic_config\n" + "\n".join(lines) + "\n")
            conf.write("cluster_formation.randomized_startup_delay_range.min = 0\n")
            conf.write("cluster_formation.randomized_startup_delay_range.max = 1\n")
            conf.write("cluster_partition_handling = pause_minority\n")

    def pause(self) -> None:
        """Stop the process where it is: its sockets stay open, and nothing answers."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):
            os.kill(self.pid, signal.SIGCONT)


class Cluster:
    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="remuda-cluster-"))
        self.nodes: list[ClusterNode] = []
        for name in ("one", "two", "three"):
            (self.directory / name).mkdir()
            self.nodes.append(ClusterNode(self.directory / name, name))

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)
        return f"amqp://guest:guest@{hosts}/?heartbeat=4s&backoff_max=1s"

    def start(self) -> None:
        cookie = secrets.token_hex(16)
        for node in self.nodes:
            node.join(self.nodes, cookie)
        self._together([node.start for node in self.nodes])
        assert self.settles(), "the nodes do not find one another"

    def settles(self, within: float = 120.0) -> bool:
        """Whether every node comes to see all the others, as one that was paused may not for a while."""
        whole = f"{{{len(self.nodes)},[]}}"
        deadline = time.monotonic() + within
        for node in self.nodes:
            while self._seen_by(node) != whole:
                if time.monotonic() > deadline:
                    return False
                time.sleep(0.2)
        return True

    @staticmethod
    def _seen_by(node: ClusterNode) -> str:
        try:
            return node.evaluate("{length(rabbit_nodes:all_running()), rabbit_node_monitor:partitions()}")
        except (AssertionError, subprocess.TimeoutExpired):
            return ""

    def close(self) -> None:
        for node in self.nodes:
            node.resume()
        self._together([node.kill for node in self.nodes])
        for node in self.nodes:
            node.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    def leader(self, queue: str) -> ClusterNode:
        """The node that leads a queue, once all nodes have their part of it: a queue whose leader ends before that may
        stay without one. While one is being chosen, as after a node came back, there is none."""
        deadline = time.monotonic() + 120
        while True:
            told = self._evaluate(
                f"{{ok, Q}} = {_lookup(queue)}, I = rabbit_quorum_queue:info(Q, [leader, online]), "
                "{length(proplists:get_value(online, I)), proplists:get_value(leader, I)}"
            )
            for node in self.nodes:
                if node.name in told and told.startswith(f"{{{sum(one.running for one in self.nodes)},"):
                    return node
            assert time.monotonic() < deadline, f"nobody leads {queue}: {told}"
            time.sleep(0.2)

    def move_leader(self, queue: str) -> ClusterNode:
        """Give the lead of a queue to another node, and name it."""
        before = self.leader(queue)
        target = next(node for node in self.nodes if node is not before)
        deadline = time.monotonic() + 120
        while self.leader(queue) is not target:
            assert time.monotonic() < deadline, f"{target.name} does not come to lead {queue}"
            self._evaluate(f"{{ok, Q}} = {_lookup(queue)}, rabbit_quorum_queue:transfer_leadership(Q, '{target.name}')")
        return target

    def _evaluate(self, expression: str) -> str:
        """An expression on whichever node answers: one that takes itself for a minority is paused for a while."""
        refusal: Exception = AssertionError("no node runs")
        for node in self.nodes:
            if node.running:
                try:
                    return node.evaluate(expression)
                except (AssertionError, subprocess.TimeoutExpired) as error:
                    refusal = error
        raise refusal

    @staticmethod
    def _together(calls: list[object]) -> None:
        failures: list[BaseException] = []

        def run(call: object) -> None:
            try:
                call()  # type: ignore[operator]
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=run, args=[call], daemon=True) for call in calls]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(250)
        if failures:
            raise failures[0]


def _lookup(queue: str) -> str:
    return f'rabbit_amqqueue:lookup(rabbit_misc:r(<<"/">>, queue, <<"{queue}">>))'


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A running cluster. A test that ends or stops a node brings it back."""
    missing()
    made = Cluster()
    try:
        made.start()
        yield made
    finally:
        made.close()
