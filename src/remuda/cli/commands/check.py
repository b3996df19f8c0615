"""`remuda check`: what is missing or damaged in a directory. Changes nothing."""

from __future__ import annotations

from typing import Annotated

import typer


def check(
    directory: Annotated[str, typer.Argument(metavar="DIR|APP", help="The directory, or the app that uses it.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check every file of a directory. Reports what is missing or damaged, and exits with 1 if anything is."""
    from remuda.cli import output
    from remuda.cli.progress import spinner
    from remuda.cli.target import directory_of
    from remuda.cli.viewing.directory_view import DirectoryView
    from remuda.core.recovery import snapshot
    from remuda.log.disk import DirectoryDisk
    from remuda.log.repair.check import Finding
    from remuda.log.repair.check import check as check_files

    path = directory_of(directory)
    with spinner("checking every file", quiet=as_json) as tell:
        report = check_files(DirectoryDisk.of_log(path), snapshot.readable)
        tell("reading the queues")
        view = DirectoryView(path)
    for name, count in view.report.found.items():
        report.findings.append(
            Finding("tail", f"the creation of queue {name!r} is missing; {count} messages were found for it")
        )
    if view.report.state_lost:
        report.findings.append(Finding("checkpoint", "none can be read; queues are rebuilt from the sealed files"))
    for gap in view.report.uncovered:
        text = f"no file holds offsets {gap.start} to {gap.stop - 1}: they were collected, or their files were removed"
        report.findings.append(Finding("sealed", text, (gap.start, gap.stop - 1)))
    for queue, first, last in view.unreadable():
        text = f"queue {queue!r} holds messages {first} to {last}, which cannot be read"
        report.findings.append(Finding("sealed", text, (first, last)))
    if as_json:
        output.json({"whole": report.clean, **{name: getattr(report, name) for name in report.__struct_fields__}})
    else:
        typer.echo(output.safe(report.describe(), lines=True))
        typer.echo("the directory is whole" if report.clean else output.count(len(report.findings), "finding"))
    if not report.clean:
        raise typer.Exit(1)
