"""The shop's messages in figures: `remuda report` on its log."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

from rich.console import Console

from remuda.model.errors import RemudaError
from remuda.report import ReportRequest, make_report, print_report, write_page


def show(directory: str, page: Path, console: Console) -> None:
    """Print the short form and write the page, or print one line that says why not."""
    try:
        with console.status("counting") if console.is_terminal else nullcontext():
            report = make_report(ReportRequest(url=directory))
        write_page(page, report)
    except RemudaError as error:
        page.unlink(missing_ok=True)
        console.print(f"The report was skipped: {error}", markup=False)
        return
    print_report(report, console, short=True)
    console.print(f"With charts: {page}", markup=False)
