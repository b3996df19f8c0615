"""`remuda backup`: a consistent copy of a directory, even while a broker writes it."""

from __future__ import annotations

from typing import Annotated

import typer


def backup(
    directory: Annotated[str, typer.Argument(metavar="DIR|APP", help="The directory, or the app that uses it.")],
    target: Annotated[str, typer.Argument(metavar="TARGET", help="A new or empty directory.")],
    copy: Annotated[bool, typer.Option("--copy", help="Copy sealed files instead of linking them.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Make a consistent copy of a directory. Works beside a running broker. To restore, open the copy."""
    from remuda.cli import output
    from remuda.cli.progress import spinner
    from remuda.cli.target import directory_of
    from remuda.log.repair.backup import backup as copy_directory

    with spinner("copying, then checking the copy", quiet=as_json):
        made = copy_directory(directory_of(directory), target, link=not copy)
    report = made.report
    if as_json:
        output.json(
            {
                "path": str(made.path), "files": made.files, "bytes": made.bytes, "linked": made.linked,
                "messages": report.messages, "events": report.events, "next_offset": report.next_offset,
                "whole": report.clean, "findings": report.findings,
            }
        )  # fmt: skip
    else:
        typer.echo(
            f"{output.count(made.files, 'file')}, {made.bytes} bytes copied to {made.path}, up to offset "
            f"{report.next_offset}; {made.linked} of them are links"
        )
        for finding in report.findings:
            typer.echo(output.safe(f"{finding.file}: {finding.text}"))
        typer.echo("the copy is whole" if report.clean else "the directory is damaged, and so is its copy")
    if not report.clean:
        raise typer.Exit(1)
