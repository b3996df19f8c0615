"""`remuda relay`: send what was committed to an outbox, in its own process."""

from __future__ import annotations

from typing import Annotated

import typer


def relay(
    app: Annotated[str, typer.Argument(metavar="APP", help="module:variable; its bus must have an Outbox.")],
    drain: Annotated[bool, typer.Option("--drain", help="Send everything committed so far, then exit.")] = False,
    log_json: Annotated[bool, typer.Option("--log-json", help="Log as JSON, one object per line.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Send an app's outbox to its broker. Runs until Ctrl-C or SIGTERM; any number of relays share the work."""
    import signal
    import threading

    from remuda.bus.observing.logs import configure
    from remuda.cli import output
    from remuda.cli.target import load_bus
    from remuda.model.errors import InvalidOption
    from remuda.outbox import Outbox
    from remuda.signals import wait_for_event

    bus = load_bus(app)
    outbox = bus.outbox
    if not isinstance(outbox, Outbox):
        raise InvalidOption(f"{app} has no outbox; attach one in the application: Outbox(bus, 'postgresql://…')")
    configure(as_json=log_json)
    try:
        if drain:
            sent = outbox.relay.pump()
            output.done(f"{output.count(sent, 'message')} sent", as_json, sent=sent)
            return
        ended = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: ended.set())
        outbox.relay.start()
        output.done(f"relaying for {app} as {outbox.relay.name}", as_json, app=app, relay=outbox.relay.name)
        wait_for_event(ended)
        bus.ask_to_stop()  # so that a relay does not go on waiting for the broker's connection
        outbox.relay.stop(10)
        output.done(f"{output.count(outbox.relay.sent, 'message')} sent", as_json, sent=outbox.relay.sent)
    finally:
        bus.close()
