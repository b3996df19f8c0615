"""`remuda cap`: work with .NET services that use CAP on RabbitMQ."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer(help="Work with .NET services that use CAP on RabbitMQ or `remuda serve`.", no_args_is_help=True)


@app.callback()
def options() -> None:
    """Work with .NET services that use CAP on RabbitMQ."""


@app.command("bind")
def bind(
    url: Annotated[str, typer.Argument(metavar="URL", help="amqp://user:password@host/vhost")],
    group: Annotated[str, typer.Argument(metavar="GROUP", help="The consumer group; its queue is GROUP.VERSION.")],
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC…", help="Message names; * and # as in AMQP.")],
    version: Annotated[str, typer.Option(help="The service's CAP version.")] = "v1",
    queue_type: Annotated[
        str | None, typer.Option(metavar="TYPE", help="quorum or classic, if the .NET service names one.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Create exchange, queue and bindings as CAP would, and route a bus's messages under these topics to them.

    A queue that already exists is left as it is.
    """
    from remuda.amqp import cap
    from remuda.amqp.client.connection import Connection
    from remuda.broker.rabbitmq.shared_state.rabbit_topology import CHANNELS, TOPICS
    from remuda.broker.rabbitmq.support import QueueKind
    from remuda.broker.rabbitmq.url_settings import RabbitSettings
    from remuda.cli import output
    from remuda.model.values.option_reading import read_enum
    from remuda.model.values.texts import read_name

    read_name("GROUP", group)
    for topic in topics:
        read_name("TOPIC", topic)
    kind = None if queue_type is None else read_enum("--queue-type", queue_type, QueueKind).value
    connection = Connection(RabbitSettings.read(url).connection)
    connection.open(20)
    try:
        channel = connection.channel()
        queue = cap.bind(channel, group, topics, version=version, queue_type=kind)
        exchange = cap.exchange_name(version)
        if str(connection.server_properties.get("platform", "")).startswith("Remuda"):
            for topic in topics:
                channel.bind_queue(queue, TOPICS, topic)
        else:
            channel.declare_exchange(CHANNELS, "topic")
            for topic in topics:
                channel.bind_exchange(exchange, CHANNELS, topic)
    finally:
        connection.close()
    text = f"queue {queue} receives {', '.join(topics)} from exchange {exchange}, including what a bus publishes"
    output.done(text, as_json, queue=queue, exchange=exchange, topics=topics)
