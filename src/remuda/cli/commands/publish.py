"""`remuda publish`: one message from the command line."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from remuda.bus.bus import Bus


def publish(
    target: Annotated[str, typer.Argument(metavar="DIR|URL|APP", help="A directory, a URL, or an app.")],
    topic: Annotated[str, typer.Argument(help="The topic, such as order.placed.")],
    body: Annotated[str, typer.Argument(help="JSON, or else plain text; - reads standard input unchanged.")] = "null",
    header: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="A header. May be repeated.")] = None,
    callback: Annotated[str | None, typer.Option(help="The topic to publish the handler's return value to.")] = None,
    delay: Annotated[str | None, typer.Option(help="Delay before delivery, such as 30s or 4h.")] = None,
    expires: Annotated[str | None, typer.Option(help="Time after which the message expires.")] = None,
    id: Annotated[str | None, typer.Option(help="Your own message id.")] = None,
    object: Annotated[str | None, typer.Option(help="The kind of object the message is about.")] = None,
    key: Annotated[str | None, typer.Option(help="The key of that object.")] = None,
    priority: Annotated[
        str | None, typer.Option(help="0 to 31, normal (0) or high (10); higher priorities go first.")
    ] = None,
    high: Annotated[bool, typer.Option("--high", help="The same as --priority high.")] = False,
    topics: Annotated[
        list[str] | None,
        typer.Option(metavar="TOPIC", help="All topics it goes under, if not TOPIC alone. May be repeated."),
    ] = None,
    mime_type: Annotated[
        str | None, typer.Option(metavar="TYPE", help="What the body is, such as application/msgpack.")
    ] = None,
    timestamp: Annotated[str | None, typer.Option(help="The producer's time, such as 2026-05-01T10:30.")] = None,
    user: Annotated[str | None, typer.Option(help="The user who causes the message.")] = None,
    create: Annotated[bool, typer.Option("--create", help="Create the directory if it does not exist.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Publish one message and print its id once it is stored."""
    from remuda.cli import output
    from remuda.cli.times import point
    from remuda.model.errors import InvalidOption

    if id == "":
        raise InvalidOption("--id is empty; leave it out to have one generated. Nothing was published")
    if high and priority is not None:
        raise InvalidOption("give --high or --priority, not both; nothing was published")
    headers = _headers(header or [])
    value = _standard_input() if body == "-" else _value(body)
    bus = _bus(target, create)
    try:
        number = bus.publish(
            topic, value, headers=headers, callback=callback, delay=delay, expires=expires, id=id or "", user=user,
            object=object, key=key, mime_type=mime_type, priority="high" if high else _priority(priority or "normal"),
            topics=topics or (), timestamp=None if timestamp is None else point(timestamp, "--timestamp"),
        )  # fmt: skip
    finally:
        bus.close()
    output.done(number, as_json, id=number)


def _bus(target: str, create: bool) -> Bus:
    from remuda.bus.bus import Bus
    from remuda.cli.target import check_exists, is_app, load_bus
    from remuda.model.errors import InvalidOption

    bus = load_bus(target) if is_app(target) else Bus(target)
    if str(bus.url).startswith("memory:"):
        raise InvalidOption(
            f"{target} keeps messages in memory, so a message published here would be lost when this command ends"
        )
    if not create:
        check_exists(target, "nothing was published")
    return bus


def _priority(text: str) -> int | str:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 4 else text


def _standard_input() -> bytes:
    from remuda.model.errors import InvalidOption

    if sys.stdin is None:
        raise InvalidOption("standard input is closed; nothing was published")
    return sys.stdin.buffer.read()


def _headers(given: list[str]) -> dict[str, str]:
    from remuda.model.errors import InvalidOption

    headers = {}
    for entry in given:
        name, separator, value = entry.partition("=")
        if not separator or not name:
            raise InvalidOption(f"--header takes NAME=VALUE, not {entry!r}")
        headers[name] = value
    return headers


def _value(body: str) -> Any:
    import msgspec

    try:
        return msgspec.json.decode(body)
    except msgspec.DecodeError:
        return body
