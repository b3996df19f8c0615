"""A queue's messages at a remote broker: only those that ended without success can be listed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import typer

from remuda.broker.opening import open_broker
from remuda.cli.viewing.directory_view import PARKED_KINDS, Placement, Row
from remuda.model.errors import InvalidOption, NotFound
from remuda.model.operations.filters import MessageFilter
from remuda.model.values.urls import parse_url

_LISTED = tuple(PARKED_KINDS.values())
_WHY = "a broker shows waiting and running messages only to their consumers"


def ended_rows(place: str, queue: str, kind: str | None, limit: int) -> Iterator[Row]:
    """Dead letters of a queue, the newest first. Prints a note if there are other messages, which cannot be listed."""
    states = frozenset(state for state, name in PARKED_KINDS.items() if kind in (None, name))
    if not states:
        raise InvalidOption(
            f"--state {kind} needs a directory: {_WHY}. At {parse_url(place)} the states {', '.join(_LISTED)} can be "
            "listed, and `remuda queues` counts the others"
        )
    with open_broker(place) as broker:
        info = broker.queue(queue)
        if kind is None and (others := info.waiting + info.delayed + info.in_flight):
            typer.echo(f"{others} more are waiting or running and are not listed: {_WHY}", err=True)
        for parked in broker.parked(queue, MessageFilter(states=states), limit):
            with suppress(NotFound):  # it was reprocessed or forgotten meanwhile
                found = broker.message(parked.offset)
                view = next((one for one in found.queues if one.queue == queue), None)
                attempts = 0 if view is None else view.attempts
                where = Placement(
                    PARKED_KINDS[parked.state], parked.offset, 1, attempts, parked.reason, None, parked.time
                )
                yield Row(parked.offset, where, found.message)
