"""`remuda workflows`: runs by name and state; and one run with its steps, to cancel it or to let it go on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from remuda.cli.commands.operations import AsJson, Directory, Who

if TYPE_CHECKING:
    from remuda.bus.workflows.spans import Span
    from remuda.bus.workflows.workflows import Workflows, WorkflowStatus

_RUNS: Final = ("run", "workflow", "version", "state", "steps", "started", "ended", "note")
_STEPS: Final = ("step", "name", "kind", "try", "waited", "took", "value")


def workflows(
    directory: Directory,
    run: Annotated[str | None, typer.Argument(metavar="[RUN]", help="The id of a run, to show its steps.")] = None,
    workflow: Annotated[str | None, typer.Option(help="Only runs of this workflow.")] = None,
    state: Annotated[
        str | None, typer.Option(help="Only waiting, running, sleeping, done, failed or cancelled ones.")
    ] = None,
    ended: Annotated[bool, typer.Option("--ended", help="Also those that are done; reads the whole log.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="List at most so many, the newest first.")] = 100,
    start: Annotated[str | None, typer.Option(metavar="WORKFLOW", help="Start a run; RUN is its id.")] = None,
    body: Annotated[str | None, typer.Option(metavar="JSON", help="With --start: what the run is given.")] = None,
    cancel: Annotated[bool, typer.Option("--cancel", help="Cancel the run, and undo what it has done.")] = False,
    no_undo: Annotated[bool, typer.Option("--no-undo", help="With --cancel: leave what it has done.")] = False,
    restart: Annotated[bool, typer.Option("--restart", help="Let a run that failed go on.")] = False,
    step: Annotated[
        str | None,
        typer.Option(help="With --restart: from this step, by name or number; else from the one that failed."),
    ] = None,
    who: Who = None,
    as_json: AsJson = False,
) -> None:
    """List runs of workflows, or show one with its steps. Changes nothing without --start, --cancel or --restart."""
    from remuda.cli.commands.operations import login_name, open_bus

    _check(run, start, body, cancel, no_undo, restart, step)
    by = who or login_name()
    with open_bus(directory) as bus:
        flows = bus.workflows
        if start is not None:
            _start(flows, start, body, run, as_json)
        elif run is None:
            _list(flows.runs(workflow, state=state, limit=limit, ended=ended), as_json)
        elif cancel:
            _cancel(flows, run, not no_undo, by, as_json)
        elif restart:
            flows.restart(run, step=int(step) if step is not None and step.isdecimal() else step, who=by)
            _done(f"{run} goes on", as_json, run, flows)
        else:
            _show(flows, run, as_json)


def _check(
    run: str | None, start: str | None, body: str | None, cancel: bool, no_undo: bool, restart: bool, step: str | None
) -> None:
    if (start is not None) + cancel + restart > 1:
        raise typer.BadParameter("give one of --start, --cancel and --restart")
    if (cancel or restart) and run is None:
        raise typer.BadParameter("name the run: remuda workflows DIR RUN --cancel")
    for given, name, needs, stands in (
        (body is not None, "--body", "--start", start is not None),
        (no_undo, "--no-undo", "--cancel", cancel),
        (step is not None, "--step", "--restart", restart),
    ):
        if given and not stands:
            raise typer.BadParameter(f"{name} needs {needs}")


def _start(flows: Workflows, name: str, body: str | None, id: str | None, as_json: bool) -> None:
    import msgspec

    from remuda.cli import output

    try:
        value = None if body is None else msgspec.json.decode(body)
    except msgspec.DecodeError as error:
        raise typer.BadParameter(f"--body is no JSON: {error}") from None
    started = flows.start(name, value, id=id)
    output.done(f"started {started}", as_json, id=started)


def _cancel(flows: Workflows, run: str, undo: bool, who: str, as_json: bool) -> None:
    if flows.cancel(run, undo=undo, who=who):
        _done(f"{run} ends at its next step", as_json, run, flows)
        return
    _done(f"{run} was not cancelled: it has ended, or was cancelled before", as_json, run, flows)
    raise typer.Exit(1)


def _done(text: str, as_json: bool, run: str, flows: Workflows) -> None:
    from remuda.cli import output

    output.done(text, as_json, id=run, state=flows.status(run).state)


def _list(found: list[WorkflowStatus], as_json: bool) -> None:
    from remuda.cli import output

    if as_json:
        output.json([_plain(one) for one in found])
        return
    output.table(_RUNS, (_run_row(one) for one in found), right=("version", "steps"))


def _show(flows: Workflows, run: str, as_json: bool) -> None:
    import msgspec

    from remuda.cli import output

    status, steps, tree = flows.status(run), flows.steps(run), flows.tree(run)
    values = {one.offset: one.body.decode("utf-8", "replace") for one in steps}
    if as_json:
        lines = [{**msgspec.to_builtins(one), "value": values.get(one.offset)} for one in tree]
        output.json({**_plain(status), "tree": lines})
        return
    output.table(_RUNS, [_run_row(status)], right=("version", "steps"))
    output.table(_STEPS, (_step_row(one, values) for one in tree), right=("try", "waited", "took"))


def _plain(one: WorkflowStatus) -> dict[str, object]:
    return {
        "id": one.id, "workflow": one.workflow, "version": one.version, "state": one.state, "reason": one.reason,
        "created": one.created, "ended": one.ended, "queue": one.queue, "steps": len(one.steps),
    }  # fmt: skip


def _run_row(one: WorkflowStatus) -> list[object]:
    from remuda.cli import output

    return [
        one.id, one.workflow, one.version, one.state, len(one.steps), output.iso(one.created), output.iso(one.ended),
        one.reason,
    ]  # fmt: skip


def _step_row(one: Span, values: dict[int, str]) -> list[object]:
    from remuda.cli import output

    took = "goes on" if one.end is None else _seconds(one.end - one.start)
    number = "" if one.step is None or one.depth else one.step
    name = f"{'  ' * one.depth}{one.name or one.kind}{'' if one.row is None else f' {one.row}'}"
    told = one.error or output.clipped(values.get(one.offset, ""), 60)
    return [number, name, one.kind, one.attempt if one.attempt > 1 else "", _seconds(one.waited), took, told]


def _seconds(micros: int) -> str:
    return f"{micros / 1e6:.3f} s" if micros else ""
