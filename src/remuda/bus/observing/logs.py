"""Log output as text for people, or as JSON for programs: one object per line, with extra fields."""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime
from typing import Any, Final, TextIO

import msgspec

_STANDARD: Final = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}
_LINE: Final = "%(asctime)s %(levelname)-7s {worker}%(message)s"


class JsonFormatter(logging.Formatter):
    """A record as one JSON object: time, level, logger, message, whatever `extra` holds, and the traceback."""

    def __init__(self, worker: str = "") -> None:
        super().__init__()
        self._worker = {"worker": worker} if worker else {}

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **self._worker,
        }
        for name, value in record.__dict__.items():
            if name not in _STANDARD and name not in entry:
                entry[name] = value
        if record.exc_info:
            entry["exception"] = record.exc_text or self.formatException(record.exc_info)
        return msgspec.json.encode(entry, enc_hook=_plain).decode()


def _plain(value: Any) -> Any:
    return int(value) if isinstance(value, int) else str(value)


def log_error(
    logger: logging.Logger,
    level: int,
    message: str,
    *args: object,
    error: BaseException | None,
    traceback: str | None,
    extra: dict[str, Any],
) -> None:
    """Like `logger.log` with `exc_info`, for an error whose traceback has already been formatted.

    Log handlers then use that text. Formatting it again reads source files, and would cost more than everything else
    about a failure.
    """
    caller = sys._getframe(1)
    code = caller.f_code
    raised = None if error is None else (type(error), error, error.__traceback__)
    record = logger.makeRecord(
        logger.name, level, code.co_filename, caller.f_lineno, message, args, raised, code.co_name, extra
    )
    if raised is not None and traceback is not None:
        record.exc_text = traceback.removesuffix("\n")
    logger.handle(record)


def configure(
    *, as_json: bool = False, level: int = logging.INFO, stream: TextIO | None = None, worker: str = ""
) -> None:
    """Send the logs of `remuda.*` to stderr. Text logs are left to the application if it has set up logging itself.
    `worker` is the name of this process among others that log to the same place."""
    logger = logging.getLogger("remuda")
    if logger.level == logging.NOTSET:
        logger.setLevel(level)
    if logging.getLogger().handlers and not as_json:
        return
    line = _LINE.format(worker=f"{worker.replace('%', '%%')}: " if worker else "")
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter(worker) if as_json else logging.Formatter(line, "%H:%M:%S"))
    logger.handlers[:] = [handler]
    logger.propagate = False


def configure_if_unset() -> None:
    """As `configure`, for a program that has set up no logging at all: it says what it runs, and how it stops."""
    if not logging.getLogger("remuda").hasHandlers():
        configure()
