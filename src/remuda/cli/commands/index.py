"""`remuda index`: build, follow, inspect and drop a directory's search index."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from remuda.index import Follower, LogSource, Reached, SearchIndex

Directory = Annotated[str, typer.Argument(metavar="DIR|APP", help="The directory, or the app that uses it.")]
Place = Annotated[
    str | None,
    typer.Option(
        "--index", metavar="PATH|URL", help="The index: a folder, or opensearch://host:port/name; DIR/index by default."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]

app = typer.Typer(help="Build, follow and drop the search index, a projection of the log.", no_args_is_help=True)


@contextlib.contextmanager
def opened(directory: str, place: str | None) -> Iterator[tuple[SearchIndex, LogSource, Follower]]:
    """A directory's index, its log, and the follower that connects them."""
    from remuda.cli.target import directory_of
    from remuda.index import Follower, LogSource, open_index
    from remuda.index.opening import default_place
    from remuda.log.disk import DirectoryDisk

    path = directory_of(directory)
    log = LogSource(DirectoryDisk.of_log(path))
    index = open_index(default_place(path) if place is None else place)
    try:
        yield index, log, Follower(index, log)
    finally:
        index.close()


@app.command()
def build(
    directory: Directory,
    place: Place = None,
    start: Annotated[int, typer.Option("--from", min=0, help="Begin at this offset; 0 is the oldest.")] = 0,
    since: Annotated[str | None, typer.Option(help="Begin at this time; 10m means ten minutes ago.")] = None,
    as_json: Json = False,
) -> None:
    """Rebuild the index from the log. The old one answers until the new one is complete."""
    from remuda.cli import output
    from remuda.cli.progress import reading
    from remuda.cli.times import point
    from remuda.index import rebuild
    from remuda.model.errors import InvalidOption

    if start and since is not None:
        raise InvalidOption("--from and --since both say where to begin; give one of them")
    began = time.monotonic()
    with opened(directory, place) as (index, log, _):
        first = start if since is None else log.offset_at(point(since, "--since"))
        with reading(log.end()[0], quiet=as_json) as progress:
            reached = rebuild(index, log, start=first, progress=progress)
        seconds = time.monotonic() - began
        text = f"{index.describe()} holds the log up to message {reached.offset:,}, built in {seconds:.1f} s"
        output.done(text, as_json, index=index.describe(), **_numbers(reached), seconds=round(seconds, 3))


@app.command()
def follow(directory: Directory, place: Place = None, as_json: Json = False) -> None:
    """Keep the index up to date with the log until stopped. One process per index is enough."""
    from remuda.cli import output

    stop = threading.Event()
    with opened(directory, place) as (index, _, follower), until_stopped(stop):
        printed = 0.0

        def report(reached: Reached) -> None:
            nonlocal printed
            if time.monotonic() - printed >= 1:
                printed = time.monotonic()
                if as_json:
                    output.json(_numbers(reached))
                else:
                    typer.echo(f"at message {reached.offset:,}, event {reached.position:,}")

        if not as_json:
            typer.echo(output.safe(f"following the log into {index.describe()}; Ctrl-C stops it"))
        follower.follow(stop, report)
        reached = index.reached()
        if reached is not None:
            if as_json:
                output.json(_numbers(reached))
            else:
                typer.echo(
                    f"stopped at message {reached.offset:,}, event {reached.position:,}; run it again to continue"
                )


@app.command()
def status(directory: Directory, place: Place = None, as_json: Json = False) -> None:
    """Show how far the index is, how far behind, and what it holds by queue and state."""
    from remuda.cli import output
    from remuda.model.errors import NotFound
    from remuda.model.state import WORDS

    with opened(directory, place) as (index, _, follower):
        reached = index.reached()
        if reached is None:
            raise NotFound(f"there is no search index in {index.describe()}; build it: remuda index build {directory}")
        behind, counts = follower.lag(), index.counts()
        if as_json:
            plain = {queue: {state.value: count for state, count in states.items()} for queue, states in counts.items()}
            output.json({"index": index.describe(), **_numbers(reached), "behind": behind, "queues": plain})
            return
        typer.echo(output.safe(f"index     {index.describe()}"))
        typer.echo(f"reached   message {reached.offset:,}, event {reached.position:,}")
        late = f", {behind.seconds:.1f} s" if behind.seconds else ""
        typer.echo(f"behind    {behind.messages:,} messages, {behind.events:,} events{late}")
    rows: list[list[Any]] = [
        [queue or "(no queue)", WORDS[state], f"{count:,}"]
        for queue, states in counts.items()
        for state, count in states.items()
    ]
    output.table(["queue", "state", "messages"], rows, right=["messages"])


@app.command()
def drop(
    directory: Directory,
    place: Place = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    as_json: Json = False,
) -> None:
    """Remove the index. It can be rebuilt from the log at any time."""
    from remuda.cli import output

    with opened(directory, place) as (index, _, _follower):
        output.confirm(f"Remove the search index {index.describe()}?", yes)
        index.drop()
        output.done(f"removed {index.describe()}", as_json, dropped=index.describe())


def _numbers(reached: Reached) -> dict[str, int]:
    return {"offset": reached.offset, "position": reached.position}


@contextlib.contextmanager
def until_stopped(stop: threading.Event) -> Iterator[None]:
    """Within this context, Ctrl-C and SIGTERM set `stop`, which ends the work between two batches."""
    old = {number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
