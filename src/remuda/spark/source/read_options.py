"""The options of the data source, checked where they are written."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

import msgspec

from remuda.model.errors import InvalidOption
from remuda.model.state import State
from remuda.model.values.option_reading import unknown
from remuda.spark.source.selection import Selection, parse_time
from remuda.spark.source.spark_log import anchored
from remuda.spark.source.tables import EVENTS, LIFECYCLE, MESSAGES, check_table

READ_OPTIONS: Final = (
    "path", "table", "queues", "states", "topics", "fromOffset", "toOffset", "since", "until",
    "maxRowsPerTrigger", "maxBytesPerTrigger", "rowsPerPartition", "failOnDataLoss", "startingOffsets",
)  # fmt: skip
STREAM_OPTIONS: Final = ("maxRowsPerTrigger", "maxBytesPerTrigger", "startingOffsets")
"""Those that are for streams only."""
EARLIEST: Final = "earliest"
LATEST: Final = "latest"
OF_SPARK: Final = {"header", "inferschema", "checkpointlocation", "queryname", "owner", "provider", "location"}
"""What Spark adds to the options, the last three of them where a table is created."""
NO_PATH: Final = (
    "A table of Spark's catalog passes no options on: SELECT … FROM t WITH (path = '/srv/data'), or make a view of that"
)


class ReadOptions(msgspec.Struct, frozen=True, kw_only=True):
    url: str
    table: str = MESSAGES
    selection: Selection = Selection()
    max_rows: int | None = None
    """Rows of a micro-batch, at most."""
    max_bytes: int | None = None
    """Bytes of bodies in a micro-batch, about and at most."""
    partition_rows: int | None = None
    """Numbers per task; without it, as many as suit the table."""
    fail_on_loss: bool = True
    """Stop where rows are missing, instead of counting them."""
    starting: str | int = EARLIEST
    """Where a stream without a checkpoint begins: at one of the ends, or at a time."""

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> ReadOptions:
        given = check_names(options, READ_OPTIONS, besides=OF_SPARK)
        url = given.get("path")
        if not url:
            raise InvalidOption(f'say where the log is: .load("data/") or .option("path", "data/"). {NO_PATH}')
        table = check_table(given.get("table", MESSAGES))
        if "states" in given and table == MESSAGES:
            raise InvalidOption(f"messages have no states of their own; read the table {EVENTS} or {LIFECYCLE}")
        if "topics" in given and table == EVENTS:
            raise InvalidOption(f"events carry no topics; read the table {MESSAGES} or {LIFECYCLE}")
        selection = Selection(
            start=_limit(given, "fromOffset") or 0,
            stop=_LAST if (stop := _limit(given, "toOffset")) is None else stop,
            since=_time(given, "since"),
            until=_time(given, "until"),
            queues=_texts(given, "queues"),
            states=_states(given),
            topics=None if (topics := _texts(given, "topics")) is None else tuple(sorted(topics)),
        )
        return cls(
            url=anchored(url),
            table=table,
            selection=selection,
            max_rows=_limit(given, "maxRowsPerTrigger", least=1),
            max_bytes=_limit(given, "maxBytesPerTrigger", least=1),
            fail_on_loss=truth(given, "failOnDataLoss", default=True),
            starting=_starting(given),
            partition_rows=_limit(given, "rowsPerPartition", least=1),
        )


_LAST: Final = Selection().stop
_SMALLEST_TIME: Final = 10**15
"""In microseconds, of 2001."""


def refuse_stream_options(options: Collection[str]) -> None:
    """Raise where a batch read is given options that are for streams."""
    given = {name.lower() for name in options}
    for name in STREAM_OPTIONS:
        if name.lower() in given:
            raise InvalidOption(f"{name} is for streams: use spark.readStream.format('remuda')")


def truth(given: Mapping[str, str], name: str, *, default: bool) -> bool:
    """The value of an option that is true or false."""
    value = given.get(name, str(default)).strip().lower()
    if value not in ("true", "false"):
        raise InvalidOption(f"{name} must be true or false, not {given[name]!r}")
    return value == "true"


def choice(given: Mapping[str, str], name: str, *values: str) -> str:
    """The value of an option that has a few; the first by default."""
    value = given.get(name, values[0])
    if value not in values:
        raise InvalidOption(f"{name} must be {' or '.join(values)}, not {value!r}")
    return value


def _starting(given: Mapping[str, str]) -> str | int:
    text = given.get("startingOffsets", EARLIEST).strip()
    if text.lower() in (EARLIEST, LATEST):
        return text.lower()
    for other in ("fromOffset", "since"):
        if other in given:
            raise InvalidOption(f"startingOffsets and {other} both say where to begin; give one of them")
    try:
        # A bare number so small is not a time, but an offset, or Kafka's -1 and -2 for its ends.
        if text.lstrip("+-").isdigit() and int(text) < _SMALLEST_TIME:
            raise ValueError
        return parse_time(text)
    except ValueError:
        raise InvalidOption(
            f"startingOffsets must be {EARLIEST}, {LATEST} or a time such as 2026-01-31T12:00, not {text!r}; an offset "
            "is given as fromOffset"
        ) from None


def check_names(options: Mapping[str, str], known: tuple[str, ...], *, besides: Collection[str] = ()) -> dict[str, str]:
    """The options under their proper names; raises for one that is unknown. Those named `besides` are ignored."""
    proper = {name.lower(): name for name in known}
    given: dict[str, str] = {}
    for name, value in options.items():
        if name.lower() in proper:
            given[proper[name.lower()]] = value
        elif name.lower() not in besides and not (besides and name.startswith("option.")):
            raise unknown("option", name, [*known])
    return given


def whole_number(given: Mapping[str, str], name: str, least: int = 0, most: int | None = None) -> int | None:
    """The value of an option; None where it is not given."""
    if name not in given:
        return None
    try:
        value = int(given[name])
    except ValueError:
        value = least - 1
    if value < least:
        raise InvalidOption(f"{name} must be a whole number from {least} on, not {given[name]!r}")
    if most is not None and value > most:
        raise InvalidOption(f"{name} must be a whole number up to {most}, not {given[name]!r}")
    return value


def _limit(given: Mapping[str, str], name: str, least: int = 0) -> int | None:
    value = whole_number(given, name, least)
    return None if value is None else min(value, _LAST)  # beyond which there is no number, and no limit either


def _time(given: Mapping[str, str], name: str) -> int | None:
    if name not in given:
        return None
    try:
        return parse_time(given[name])
    except ValueError:
        raise InvalidOption(
            f"{name} must be a time such as 2026-01-31T12:00, or microseconds since 1970, not {given[name]!r}"
        ) from None


def _texts(given: Mapping[str, str], name: str) -> frozenset[str] | None:
    """Names separated by commas; or a list in JSON, for those that have commas or spaces at their ends."""
    if name not in given:
        return None
    if given[name].lstrip().startswith("["):
        try:
            return frozenset(msgspec.json.decode(given[name], type=list[str]))
        except msgspec.DecodeError:
            raise InvalidOption(
                f'{name} must be names separated by commas, or a JSON list such as ["a,b", "[c]"], not {given[name]!r}'
            ) from None
    return frozenset(text for part in given[name].split(",") if (text := part.strip()))


def _states(given: Mapping[str, str]) -> frozenset[str] | None:
    states = _texts(given, "states")
    unknown = sorted((states or frozenset()) - {state.value for state in State})
    if unknown:
        letters = ", ".join(f"{state.value} ({state.name.lower()})" for state in State)
        raise InvalidOption(f"there is no state {unknown[0]!r}; the states are {letters}")
    return states
