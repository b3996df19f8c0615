"""B3: settings from code, TOML, the environment and PaperTrail's property names."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from remuda import Bus
from remuda.bus.handlers.handler import ExecutorKind, HandlerOptions
from remuda.bus.settings.settings import Settings
from remuda.model.errors import InvalidOption
from remuda.model.values.durations import HOUR, MILLISECOND, MINUTE, SECOND
from tests.bus.kit import running

NOTHING = HandlerOptions()
DAY = 24 * HOUR


def toml(path: Path, text: str) -> Path:
    file = path / "remuda.toml"
    file.write_text(text)
    return file


def test_defaults_are_papertrails() -> None:
    """B3, B4"""
    chosen = Settings.load(environment={}).for_queue("q", NOTHING)
    assert chosen.retry.max_retries == 5
    assert chosen.retry.intervals == (MINUTE, HOUR, 4 * HOUR, DAY, DAY)
    assert chosen.retry.min_interval == 10 * SECOND
    assert (chosen.queue_size, chosen.threads, chosen.failover, chosen.timeout) == (500, 1, None, None)


def test_bare_numbers_have_papertrails_units() -> None:
    """B4: intervals, check interval and timeout in seconds, the minimum in milliseconds; a unit may be written."""
    settings = Settings.load(
        {
            "message.retry.intervals": "60,3600,250ms, 4h",
            "message.retry.min.interval": 10000,
            "message.retry.check.interval": 60,
            "message.timeout": "1.5",
        },
        environment={},
    )
    assert settings.get("message.retry.intervals").value == (MINUTE, HOUR, 250 * MILLISECOND, 4 * HOUR)
    assert settings.get("message.retry.min.interval").value == 10 * SECOND
    assert settings.get("message.retry.check.interval").value == MINUTE
    assert settings.get("message.timeout").value == 1500 * MILLISECOND
    assert Settings.load({"message.retry.min.interval": "3s"}).get("message.retry.min.interval").value == 3 * SECOND


@pytest.mark.parametrize(
    ("name", "value", "field", "wanted"),
    [
        ("message.retry.max", "7", "retry.max_retries", 7),
        ("message.retry.intervals", [1, "2m"], "retry.intervals", (SECOND, 2 * MINUTE)),
        ("message.queue.size", 9, "queue_size", 9),
        ("message.failover", "elsewhere", "failover", "elsewhere"),
        ("message.threads", "3", "threads", 3),
        ("message.timeout", 2, "timeout", 2 * SECOND),
        ("message.executor", "processes", "executor", ExecutorKind.PROCESSES),
    ],
)
def test_property_names_per_queue_and_for_all(name: str, value: Any, field: str, wanted: Any) -> None:
    """B3"""

    def read(settings: Settings, queue: str) -> Any:
        found: Any = settings.for_queue(queue, NOTHING)
        for part in field.split("."):
            found = getattr(found, part)
        return found

    own = Settings.load({f"{name}.Orders.ship": value}, environment={})
    assert read(own, "Orders.ship") == wanted
    assert read(own, "Orders.bill") == read(Settings(), "q")
    if name != "message.failover":
        assert read(Settings.load({name: value}, environment={}), "Orders.bill") == wanted


def test_the_more_specific_wins() -> None:
    """B3: a queue's own setting, then what its handler says, then what holds for all; each from any source."""
    said = HandlerOptions(threads=3)
    assert Settings.load({"message.threads": 2}, environment={}).for_queue("q", NOTHING).threads == 2
    assert Settings.load({"message.threads": 2}, environment={}).for_queue("q", said).threads == 3
    own = Settings.load({"message.threads.q": 4, "message.threads": 2}, environment={})
    assert own.for_queue("q", said).threads == 4
    mixed = Settings.load({"message.threads.q": 4}, environment={"REMUDA_MESSAGE_THREADS": "9"})
    assert mixed.for_queue("q", NOTHING).threads == 4


def test_later_sources_win(tmp_path: Path) -> None:
    """B3: a file, then code, then the environment."""
    file = toml(tmp_path, "message.threads = 2\nmessage.timeout = 5\nmessage.queue.size = 1\n")
    settings = Settings.load({"message.threads": 3, "message.timeout": 6}, file, {"REMUDA_MESSAGE_THREADS": "4"})
    assert [settings.get(name).value for name in ("message.threads", "message.timeout", "message.queue.size")] == [
        4, 6 * SECOND, 1,
    ]  # fmt: skip
    assert settings.get("message.threads").source == "REMUDA_MESSAGE_THREADS"
    assert settings.get("message.timeout").source == "code"
    assert settings.get("message.queue.size").source == f"{file}, line 3"


def test_toml_tables_and_quoted_names(tmp_path: Path) -> None:
    """B3"""
    file = toml(
        tmp_path,
        """
        "message.retry.max.Orders.ship" = 10

        [message.retry]
        max = 3
        intervals = [1, "5m"]

        [message.threads]
        "Orders.ship" = 4

        [message.failover]
        "Orders.ship" = "by-hand"
        """,
    )
    settings = Settings.load(None, file, {})
    ship, bill = settings.for_queue("Orders.ship", NOTHING), settings.for_queue("Orders.bill", NOTHING)
    assert (ship.retry.max_retries, ship.threads, ship.failover) == (10, 4, "by-hand")
    assert (bill.retry.max_retries, bill.retry.intervals, bill.threads) == (3, (SECOND, 5 * MINUTE), 1)


def test_the_file_of_the_working_directory_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """B3"""
    toml(tmp_path, "message.threads = 6")
    monkeypatch.chdir(tmp_path)
    assert Bus().settings.get("message.threads").value == 6


def test_a_byte_order_mark_is_no_part_of_the_file(tmp_path: Path) -> None:
    """B3: editors of Windows write one."""
    (tmp_path / "remuda.toml").write_text("[message.retry]\nmax = 9\n", "utf-8-sig")
    assert Settings.load(file=tmp_path / "remuda.toml").get("message.retry.max").value == 9


@pytest.mark.parametrize("queue", ["Orders.ship", "ORDERS_SHIP"])
def test_environment_names_a_queue_as_it_is_or_as_a_shell_can(queue: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """B3"""
    monkeypatch.setenv(f"REMUDA_MESSAGE_RETRY_MAX__{queue}", "2")
    settings = Bus().settings
    assert settings.for_queue("Orders.ship", NOTHING).retry.max_retries == 2
    assert settings.for_queue("Orders.bill", NOTHING).retry.max_retries == 5
    assert settings.unknown_queues(["Orders.ship"]) == set()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("message.retry.max", -1),
        ("message.retry.max", "many"),
        ("message.retry.max", 1.5),
        ("message.retry.max", True),
        ("message.retry.max", None),
        ("message.retry.max", 1 << 62),
        ("message.retry.intervals", ""),
        ("message.retry.intervals", "1,soon"),
        ("message.retry.intervals", -1),
        ("message.retry.min.interval", "x"),
        ("message.retry.check.interval", "x"),
        ("message.queue.size", -5),
        ("message.threads", 0),
        ("message.threads", 10_001),
        ("message.threads.q", "two"),
        ("message.timeout", 0),
        ("message.timeout", float("nan")),
        ("message.executor", "fibers"),
        ("message.failover.q", ""),
        ("message.failover", "q"),
        ("message.retry.min.interval.q", 5),
        ("message.retry.max.", 5),
        ("message.retries", 5),
        ("mesage.retry.max", 5),
        ("", 5),
    ],
)
def test_unknown_and_impossible_settings_are_refused_at_start_with_their_name(
    name: str, value: Any, tmp_path: Path
) -> None:
    """B3"""
    with pytest.raises(InvalidOption) as failure:
        Bus(settings={name: value})
    assert name in str(failure.value)
    assert "code" in str(failure.value)


def test_a_misspelt_name_is_answered_with_the_right_one() -> None:
    """B3"""
    with pytest.raises(InvalidOption, match=r"did you mean 'message.retry.max'"):
        Bus(settings={"mesage.retry.max": 5})
    with pytest.raises(InvalidOption, match="REMUDA_MESSAGE_RETRIES"):
        Settings.load(environment={"REMUDA_MESSAGE_RETRIES": "1"})


def test_a_bad_file_is_refused_with_its_name(tmp_path: Path) -> None:
    """B3"""
    with pytest.raises(InvalidOption, match=r"remuda\.toml.*not valid TOML"):
        Bus(config=toml(tmp_path, "message = = 3"))
    with pytest.raises(InvalidOption, match=r"remuda\.toml.*message\.thread"):
        Bus(config=toml(tmp_path, "message.threads = 'x'"))
    with pytest.raises(InvalidOption, match=r"missing\.toml cannot be read"):
        Bus(config=tmp_path / "missing.toml")


def test_impossible_together_is_refused_at_start() -> None:
    """B3: what no single setting shows, such as threads for a coroutine."""
    bus = Bus(settings={"message.executor.q": "threads"})

    @bus.subscribe("x", queue="q")
    async def handle(body: Any) -> None: ...

    with pytest.raises(InvalidOption, match=r"message\.executor\.q.*coroutine"):
        bus.start()
    bus.close()


def test_a_setting_for_a_queue_that_is_not_here_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """B3: it may belong to another process, or be a slip."""
    bus = Bus(settings={"message.threads.elsewhere": 2})
    with caplog.at_level(logging.WARNING, "remuda.bus"), running(bus):
        pass
    assert [record.getMessage() for record in caplog.records if "elsewhere" in record.getMessage()] == [
        "a setting names the queue elsewhere, which no handler here has"
    ]


def test_effective_settings_say_where_they_come_from() -> None:
    """B3"""
    settings = Settings.load(
        {"message.threads": 2, "message.retry.max.q": 1, "message.queue.size.q": 7}, environment={}
    )
    rows = {name: (value, source) for name, value, source in settings.effective({"q": HandlerOptions(timeout=SECOND)})}
    assert rows["message.threads"] == (2, "code")
    assert rows["message.queue.size"] == (500, "default")
    assert rows["message.queue.size.q"] == (7, "code")
    assert rows["message.timeout.q"] == (SECOND, "handler")
    assert rows["message.retry.q"][1] == "code"
    assert rows["message.retry.q"][0].max_retries == 1


def test_b3_a_queues_settings_say_where_each_was_set() -> None:
    """B3: for the queue, at its handler, for all queues, or nowhere."""
    settings = Settings.load({"message.threads": 2, "message.retry.max": 3, "message.queue.size.q": 7}, environment={})
    rows = {name: (value, source) for name, value, source in settings.of_queue("q", HandlerOptions(timeout=SECOND))}
    assert rows["message.threads"] == (2, "code")
    assert rows["message.queue.size"] == (7, "code")
    assert rows["message.timeout"] == (SECOND, "handler")
    assert rows["message.retry"][0].max_retries == 3
    assert rows["message.retry"][1] == "code"
    assert rows["message.failover"] == (None, "default")


def test_the_queue_is_declared_by_its_settings() -> None:
    """B3: and follows them when they change."""
    bus = Bus(settings={"message.queue.size.q": 7})
    bus.subscribe("x", queue="q")(lambda body: None)
    with bus.testing() as test:
        assert test.queue("q").options.queue_size == 7
        assert test.queue("q").options.patterns == ("x",)
        bus.subscribe("y", queue="q")(lambda body: None)
        assert test.queue("q").options.patterns == ("x", "y")


def test_a_queue_of_another_type_is_refused(tmp_path: Path) -> None:
    """B3"""
    with Bus(tmp_path / "data") as before:
        before.broker.create_queue("q", type="push")
    bus = Bus(tmp_path / "data")
    bus.subscribe("x", queue="q")(lambda body: None)
    with pytest.raises(InvalidOption, match="push queue"):
        bus.publish("x")


class TestOrder:
    @pytest.mark.parametrize("variable", ["REMUDA_MESSAGE_RETRY_MAX__SHIP", "REMUDA_MESSAGE_RETRY_MAX__ship"])
    def test_the_environment_wins_for_one_queue_too(self, tmp_path: Path, variable: str) -> None:
        """B3"""
        file = tmp_path / "remuda.toml"
        file.write_text('"message.retry.max.ship" = 1')
        settings = Settings.load({"message.retry.max.ship": 2}, file, {variable: "7"})
        assert settings.for_queue("ship", HandlerOptions(retry=3)).retry.max_retries == 7

    def test_code_wins_over_the_file_for_one_queue(self, tmp_path: Path) -> None:
        """B3"""
        file = tmp_path / "remuda.toml"
        file.write_text('"message.retry.max.SHIP" = 1')
        settings = Settings.load({"message.retry.max.ship": 2}, file, {})
        assert settings.for_queue("ship", HandlerOptions()).retry.max_retries == 2

    def test_a_number_of_retries_keeps_the_configured_intervals(self) -> None:
        """B4"""
        settings = Settings.load({"message.retry.intervals": ["20s", "30s"]}, None, {})
        retry = settings.for_queue("q", HandlerOptions(retry=2)).retry
        assert [retry.after(1), retry.after(2), retry.after(3)] == [20_000_000, 30_000_000, None]

    @pytest.mark.parametrize("empty", [[], (), ""])
    def test_no_intervals_at_all_are_refused(self, empty: object) -> None:
        """B4"""
        with pytest.raises(InvalidOption, match=r"message\.retry\.intervals must hold at least one"):
            Settings.load({"message.retry.intervals": empty}, None, {})

    def test_what_is_shown_is_what_will_happen(self) -> None:
        """B3: no wait is shorter than the shortest allowed."""
        settings = Settings.load({"message.retry.intervals": ["5s", "1m"]}, None, {})
        shown = {name: value for name, value, _ in settings.effective({})}
        assert shown["message.retry.intervals"] == (10_000_000, 60_000_000)


@pytest.mark.parametrize("retry", [None, 3, "cap"])
def test_b4_a_check_interval_of_zero_switches_retries_off(retry: Any) -> None:
    """As in PaperTrail, which then never looks for messages to retry."""
    bus = Bus("memory://", settings={"message.retry.check.interval": 0})
    tries: list[int] = []

    @bus.subscribe("x", queue="q", retry=retry)
    def fail(body: int) -> None:
        tries.append(body)
        raise ValueError("no")

    with bus.testing() as test:
        test.publish("x", 1)
        test.run()
        test.advance("2d")
        assert tries == [1]
        assert test.queue("q").dead == 1
