"""A process that serves a directory: `python -m benchmarks.http.served DIR` prints its address. With `--bare` there is
nothing but an endpoint that stores what it gets, on the same server."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import msgspec
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

from remuda.bus.bus import Bus
from remuda.model.message import Message
from remuda.server.http.app import create_app
from remuda.server.http.serving import Listen, Server

if TYPE_CHECKING:
    from starlette.requests import Request


class _New(msgspec.Struct):
    topic: str
    body: msgspec.Raw
    key: str | None = None


def bare(bus: Bus) -> Starlette:
    """No login, no checks, no description, no page: it reads a message, stores it, and says its id."""
    broker = bus.broker.aio

    async def publish(request: Request) -> Response:
        given = msgspec.json.decode(await request.body(), type=_New)
        message = Message(given.topic, bytes(given.body), key=given.key, mime_type="application/json")
        receipt = await broker.publish(message, queue=request.query_params["queue"])
        return Response(msgspec.json.encode({"ids": receipt.ids}), 201, media_type="application/json")

    return Starlette(routes=[Route("/api/v1/messages", publish, methods=["POST"])])


def main(directory: str, *options: str) -> None:
    with Bus(directory) as bus:
        server = Server(bare(bus) if "--bare" in options else create_app(bus), Listen("127.0.0.1", 0))
        bus.broker.create_queue("order", type="pull")
        print(server.address, flush=True)
        server.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
