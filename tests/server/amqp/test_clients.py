"""Clients as they are, unchanged, against the server (S2)."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import threading
from pathlib import Path
from typing import Any

import aio_pika
import dramatiq
import kombu as typed_kombu
import pytest
from dramatiq.brokers.rabbitmq import RabbitmqBroker
from faststream.rabbit import RabbitBroker

from tests.server.amqp.kit import eventually, fresh
from tests.servers.amqpd import RunningServer

kombu: Any = typed_kombu
_MODULES = Path(__file__).parents[3] / "tools" / "servers" / "node_modules"


def test_aio_pika(server: RunningServer) -> None:
    """S2."""
    asyncio.run(asyncio.wait_for(_aio_pika(server.url), 100))


async def _aio_pika(url: str) -> None:
    connection = await aio_pika.connect_robust(url)
    async with connection:
        channel = await connection.channel(publisher_confirms=True, on_return_raises=True)
        await channel.set_qos(prefetch_count=20)
        exchange = await channel.declare_exchange(fresh("x"), aio_pika.ExchangeType.TOPIC, durable=True)
        queue = await channel.declare_queue(fresh(), durable=True)
        await queue.bind(exchange, "a.*")
        bodies = [b"%d" % number for number in range(200)]
        await asyncio.gather(
            *(exchange.publish(aio_pika.Message(body, headers={"n": n}), "a.b") for n, body in enumerate(bodies))
        )
        with pytest.raises(aio_pika.exceptions.DeliveryError):
            await exchange.publish(aio_pika.Message(b"lost"), "nowhere", mandatory=True)
        got = []
        async with queue.iterator() as messages:
            async for message in messages:
                async with message.process():
                    got.append(message.body)
                if len(got) == len(bodies):
                    break
        assert sorted(got) == sorted(bodies)
        await queue.delete(if_unused=False, if_empty=False)
        with pytest.raises(aio_pika.exceptions.ChannelNotFoundEntity):
            await (await connection.channel()).get_queue("nope")
        rpc = await aio_pika.patterns.RPC.create(await connection.channel())

        async def double(*, n: int) -> int:
            return n * 2

        name = fresh("rpc")
        await rpc.register(name, double, auto_delete=True)
        assert await rpc.call(name, {"n": 21}) == 42
        await rpc.close()


def test_kombu_limits_a_worker_across_its_queues(server: RunningServer) -> None:
    """S2: as Celery with `-c 1` and `acks_late` does, on a server of the name and version that kombu looks for."""
    queues = [kombu.Queue(fresh(), durable=True) for _ in range(3)]
    got: list[Any] = []
    with kombu.Connection(server.url) as connection:
        with connection.Producer() as producer:
            for queue in queues:
                producer.publish("task", routing_key=queue.name, declare=[queue])
        consumer = connection.Consumer(
            queues, callbacks=[lambda body, message: got.append(message)], auto_declare=False
        )
        consumer.qos(prefetch_count=1, apply_global=not connection.qos_semantics_matches_spec)
        consumer.consume()

        def held() -> int:
            return sum(server.broker.queue(queue.name).in_flight for queue in queues)

        eventually(held)
        connection.default_channel.queue_declare(queues[0].name, passive=True)  # all was handed out that may be
        assert held() == 1
        for count in (1, 2, 3):
            while len(got) < count:
                connection.drain_events(timeout=60)
            got[-1].ack()
        eventually(lambda: not held())


def test_kombu(server: RunningServer) -> None:
    """S2."""
    exchange = kombu.Exchange(fresh("x"), "direct", durable=True)
    queue = kombu.Queue(fresh(), exchange, routing_key="k", max_priority=5)
    got: list[Any] = []
    with kombu.Connection(server.url, transport_options={"confirm_publish": True}) as connection:
        with connection.Producer(serializer="json") as producer:
            for number in range(10):
                producer.publish(
                    {"n": number}, exchange=exchange, routing_key="k", declare=[queue], priority=number % 5
                )

        def take(body: Any, message: Any) -> None:
            got.append(body["n"])
            message.ack()

        with connection.Consumer(queue, callbacks=[take], prefetch_count=100):
            while len(got) < 10:
                connection.drain_events(timeout=60)
        assert got[:2] == [4, 9]
        with connection.SimpleQueue(fresh()) as simple:
            simple.put("hello")
            message = simple.get(timeout=60)
            assert message.payload == "hello"
            message.ack()


def test_faststream(server: RunningServer) -> None:
    """S2."""
    asyncio.run(asyncio.wait_for(_faststream(server.url), 100))


async def _faststream(url: str) -> None:
    broker = RabbitBroker(url)
    name, results = fresh(), asyncio.Queue[str]()

    @broker.subscriber(name)
    async def handle(body: dict[str, str]) -> str:
        return f"hello {body['name']}"

    @broker.subscriber(f"{name}-results")
    async def collect(body: str) -> None:
        await results.put(body)

    async with broker:
        await broker.start()
        await broker.publish({"name": "Ann"}, name, reply_to=f"{name}-results")
        assert await asyncio.wait_for(results.get(), 60) == "hello Ann"
        reply = await broker.request({"name": "Bob"}, name, timeout=60)
        assert await reply.decode() == "hello Bob"


def test_dramatiq(server: RunningServer) -> None:
    """S2: retries and delays use its own queues beside the main one."""
    broker = RabbitmqBroker(url=server.url, confirm_delivery=True)
    seen: list[int] = []
    done = threading.Event()

    @dramatiq.actor(broker=broker, queue_name=fresh("dramatiq"), max_retries=3, min_backoff=10, max_backoff=20)
    def work(number: int) -> None:
        seen.append(number)
        if seen.count(7) < 3 and number == 7:
            raise ValueError("again")
        if len(set(seen)) == 20 and seen.count(7) >= 3:
            done.set()

    worker = dramatiq.Worker(broker, worker_timeout=100, worker_threads=2)
    worker.start()
    try:
        for number in range(20):
            work.send_with_options(args=(number,), delay=10 if number == 3 else None)
        assert done.wait(60), seen
        assert sorted(set(seen)) == list(range(20))
    finally:
        worker.stop()
        broker.close()


_NODE = """
const amqp = require('amqplib');
(async () => {
  const connection = await amqp.connect(process.argv[2]);
  const channel = await connection.createConfirmChannel();
  const name = process.argv[3];
  await channel.assertExchange(name + '-x', 'topic', {durable: true});
  await channel.assertQueue(name, {durable: true, arguments: {'x-max-priority': 3}});
  await channel.bindQueue(name, name + '-x', 'a.#');
  for (let n = 0; n < 300; n++)
    channel.publish(name + '-x', 'a.b', Buffer.from(String(n)), {headers: {n, deep: {list: [1, 'x', true]}}});
  await channel.waitForConfirms();
  let returned = 0;
  channel.on('return', () => returned++);
  channel.publish(name + '-x', 'nowhere', Buffer.from('x'), {mandatory: true});
  await channel.waitForConfirms();
  await channel.prefetch(50);
  const got = [];
  await new Promise((done) => channel.consume(name, (message) => {
    got.push(Number(message.content.toString()));
    if (message.properties.headers.deep.list[1] !== 'x') throw new Error('headers');
    channel.ack(message);
    if (got.length === 300) done();
  }));
  let code = 0;
  const other = await connection.createChannel();
  other.on('error', (error) => { code = error.code; });
  await other.checkQueue('nope').catch(() => {});
  const left = (await channel.checkQueue(name)).messageCount;
  await connection.close();
  console.log(JSON.stringify({inOrder: got.every((n, at) => n === at), returned, code, left}));
})().catch((error) => { console.error(error); process.exit(1); });
"""


_NODE_STREAM = """
const amqp = require('amqplib');
(async () => {
  const connection = await amqp.connect(process.argv[2]);
  const channel = await connection.createConfirmChannel();
  const name = process.argv[3];
  await channel.assertQueue(name, {durable: true, arguments: {'x-queue-type': 'stream', 'x-max-age': '1h'}});
  for (let n = 0; n < 50; n++) channel.sendToQueue(name, Buffer.from(String(n)));
  await channel.waitForConfirms();
  await channel.prefetch(20);
  const read = (start, count) => new Promise((done) => {
    const got = [];
    channel.consume(name, (message) => {
      got.push([message.properties.headers['x-stream-offset'], Number(message.content.toString())]);
      channel.ack(message);
      if (got.length === count) channel.cancel(message.fields.consumerTag).then(() => done(got));
    }, {arguments: {'x-stream-offset': start}});
  });
  const all = await read('first', 50);
  const again = await read(all[40][0], 10);
  await connection.close();
  console.log(JSON.stringify({numbers: all.map((one) => one[1]), again: again.map((one) => one[1])}));
})().catch((error) => { console.error(error); process.exit(1); });
"""


def _in_node(program: str, server: RunningServer, folder: Path) -> Any:
    """What a program of node's amqplib prints."""
    modules = Path(os.environ.get("REMUDA_NODE_MODULES", _MODULES))
    node = shutil.which("node")
    if node is None or not (modules / "amqplib").is_dir():
        if os.environ.get("CI") == "true":
            pytest.fail("CI skips nothing: tools/setup.sh installs node's amqplib")
        pytest.skip("there is no node with amqplib here; tools/setup.sh installs it")
    script = folder / "client.js"
    script.write_text(program)
    done = subprocess.run(
        [node, str(script), server.url, fresh("node")], env={**os.environ, "NODE_PATH": str(modules)},
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_node_amqplib(server: RunningServer, tmp_path: Path) -> None:
    """S2."""
    assert _in_node(_NODE, server, tmp_path) == {"inOrder": True, "returned": 1, "code": 404, "left": 0}


def test_node_amqplib_reads_a_stream(server: RunningServer, tmp_path: Path) -> None:
    """S1, S2: as often as it likes, from an offset it has seen."""
    found = _in_node(_NODE_STREAM, server, tmp_path)
    assert found == {"numbers": [*range(50)], "again": [*range(40, 50)]}


def test_many_clients_share_one_queue(server: RunningServer) -> None:
    """S2, Q1: everybody gets some, and nobody gets what another has."""
    name, got, lock = fresh(), [], threading.Lock()

    def work() -> None:
        with kombu.Connection(server.url) as connection:

            def take(body: Any, message: Any) -> None:
                with lock:
                    got.append(body)
                message.ack()

            with connection.Consumer(kombu.Queue(name), callbacks=[take], prefetch_count=5):
                while len(got) < 300:
                    try:
                        connection.drain_events(timeout=0.5)
                    except OSError:
                        continue

    threads = [threading.Thread(target=work, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    with kombu.Connection(server.url) as connection, connection.Producer(serializer="json") as producer:
        for number in range(300):
            producer.publish(number, routing_key=name, declare=[kombu.Queue(name)])
    eventually(lambda: len(got) >= 300)
    for thread in threads:
        thread.join(60)
    assert sorted(got) == list(range(300))
