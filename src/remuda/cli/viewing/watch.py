"""`remuda watch`: alarms by rule, told on stdout, to a webhook and by mail."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from remuda.cli.commands.operations import AsJson, Directory

if TYPE_CHECKING:
    from remuda.server.alerts.rules import Change, Rule, Watch
    from remuda.server.http.service import MessagingService


def watch(
    target: Directory,
    rule: Annotated[
        list[str] | None,
        typer.Option(metavar="RULE", help="Such as 'orders*: waiting > 1000 for 5m'. May be repeated."),
    ] = None,
    rules: Annotated[
        str | None, typer.Option(metavar="FILE", help="A file of rules, one on each line; DIR/alerts.txt by default.")
    ] = None,
    webhook: Annotated[
        list[str] | None, typer.Option(metavar="URL", help="POST alarms there. May be repeated.")
    ] = None,
    allow_private: Annotated[
        list[str] | None, typer.Option(metavar="NETWORK", help="Private networks that webhooks may be in: 10.0.0.0/8.")
    ] = None,
    mail: Annotated[str | None, typer.Option(metavar="ADDRESS", help="Mail alarms to this address.")] = None,
    smtp: Annotated[str, typer.Option(metavar="HOST:PORT", help="The mail server.")] = "localhost:25",
    sender: Annotated[
        str, typer.Option("--from", metavar="ADDRESS", help="Who the mail is from.")
    ] = "remuda@localhost",
    every: Annotated[str, typer.Option(help="How often to look.")] = "5s",
    once: Annotated[bool, typer.Option("--once", help="Look once; exit with 1 if there is an alarm.")] = False,
    as_json: AsJson = False,
) -> None:
    """Watch queues by rules: depth, age, dead letters, queues that nobody consumes. Tells of alarms until stopped."""
    from remuda.cli import output
    from remuda.cli.commands.index import until_stopped
    from remuda.cli.commands.operations import open_bus
    from remuda.model.values.durations import SECOND, micros
    from remuda.server.alerts import telling
    from remuda.server.alerts.rules import Watch
    from remuda.server.http.service import MessagingService

    pause = max(micros(every), SECOND // 10) / SECOND
    ways = {f"webhook {url}": telling.webhook(url, allow_private or ()) for url in webhook or ()}
    if mail is not None:
        ways[f"mail to {mail}"] = telling.mail(mail, smtp, sender)
    watched, teller = Watch(_rules(target, rule, rules)), telling.Teller(ways)
    stop = threading.Event()
    with open_bus(target) as bus:
        service = MessagingService(bus)
        try:
            with until_stopped(stop):
                while not stop.is_set():
                    changes = _look(service, watched)
                    for change in changes:
                        _print(change, as_json)
                    for trouble in teller.tell(changes):
                        print(output.safe(trouble), file=sys.stderr, flush=True)
                    if once:
                        break
                    stop.wait(pause)
        finally:
            service.close()
    if once and watched.alarms:
        raise typer.Exit(1)


def _look(service: MessagingService, watched: Watch) -> list[Change]:
    service.refresh()
    return watched.judge(service.queues(), service.broker.history.dead_since, service.bus.now())


def _rules(target: str, given: list[str] | None, file: str | None) -> list[Rule]:
    from remuda.cli.target import is_elsewhere, place_of
    from remuda.model.errors import InvalidOption
    from remuda.server.alerts.rules import FILE, read_rules, rules_of

    place = place_of(target)
    found = read_rules(given or (), "--rule")
    own = None if is_elsewhere(place) else Path(place) / FILE
    if file is not None:
        found += rules_of(Path(file))
    elif own is not None and own.exists() and not given:
        found += rules_of(own)
    if not found:
        raise InvalidOption(
            "there are no rules; give --rule 'QUEUES: waiting > 1000', --rules FILE, or write them to alerts.txt in "
            "the directory, one on each line"
        )
    return found


def _print(change: Change, as_json: bool) -> None:
    from remuda.cli import output
    from remuda.server.alerts.telling import words

    if as_json:
        import msgspec

        output.json({"began": change.began, **msgspec.to_builtins(change.alarm)})
    else:
        print(output.safe(words(change)), flush=True)
