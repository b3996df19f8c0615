"""One reader of options, one voice for errors: what is wrong, where it stands, what is allowed, what was meant (B3)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from remuda.broker.options import BrokerOptions
from remuda.broker.rabbitmq.support import SUPPORT, How, refuse
from remuda.broker.toml import read_toml
from remuda.bus.settings.settings import Settings
from remuda.model.errors import InvalidOption, Unsupported
from remuda.model.queues.options import QueueOptions, as_written
from remuda.model.values.texts import nearest, no_queue
from remuda.worker.config import WorkerConfig

TOML = """
message.threads = 4

[message.retry]
max = 3  # attempts
"intervals" = "1s"
[message]
"queue.size" = 10
"""


def test_b3_a_setting_is_told_by_file_and_line(tmp_path: Path) -> None:
    file = tmp_path / "remuda.toml"
    file.write_text(TOML.replace("[message]", "[other]").replace("max = 3", "max = -3"))
    with pytest.raises(InvalidOption) as caught:
        Settings.load(file=file, environment={})
    assert str(caught.value) == f"{file}, line 5: message.retry.max must be at least 0, not -3"
    file.write_text("[message]\nthreds = 3\n")
    with pytest.raises(InvalidOption) as caught:
        Settings.load(file=file, environment={})
    said = f"{file}, line 2: unknown setting 'message.threds'; did you mean 'message.threads'?"
    assert str(caught.value) == said


def test_w1_a_workers_setting_is_told_by_file_and_line(tmp_path: Path) -> None:
    file = tmp_path / "worker.toml"
    file.write_text('input_queue = "in"\n\nthreds = 3\n')
    with pytest.raises(InvalidOption) as caught:
        WorkerConfig.load(file, {})
    assert str(caught.value) == f"{file}, line 3: unknown setting 'threds'; did you mean 'threads'?"


@pytest.mark.parametrize(
    "text", ["\x00 = 1", "a = ", "[", "a = 1\na = 2", "a.b = 1\n[a.b]\n", '"""', "x = '''\na = 1\n'''\ny ="]
)
def test_a_file_that_is_not_toml_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    file = tmp_path / "some.toml"
    file.write_text(text)
    with pytest.raises(
        InvalidOption, match=r"^the settings file .*some\.toml is not valid TOML: .*(line \d|end of document)"
    ) as caught:
        read_toml(file)
    assert "\n" not in str(caught.value)


def test_a_name_within_a_text_leads_nobody_astray(tmp_path: Path) -> None:
    file = tmp_path / "some.toml"
    file.write_text('a = 1\nb."c d".e = 2\n[x]\n y = 3\n')
    tables, where = read_toml(file)
    assert tables == {"a": 1, "b": {"c d": {"e": 2}}, "x": {"y": 3}}
    lines = [where(name) for name in ("a", "b.c d.e", "x.y", "nowhere")]
    assert lines == [f"{file}, line 1", f"{file}, line 2", f"{file}, line 4", str(file)]


@pytest.mark.parametrize(
    ("read", "said"),
    [
        (lambda: QueueOptions.parse(Message_Limit=1), "unknown queue option 'Message_Limit'; did you mean"),
        (lambda: BrokerOptions.parse(synk="os"), "unknown broker option 'synk'; did you mean 'sync'?"),
        (lambda: BrokerOptions.parse(zzz=1), "unknown broker option 'zzz'; the options are auto_queue_creation, "),
        (lambda: Settings.load({"message.thread": 1}, environment={}), "code: unknown setting 'message.thread'; did"),
        (lambda: Settings.load(environment={"REMUDA_MESSAGE_THREDS": "1"}), "did you mean 'REMUDA_MESSAGE_THREADS'?"),
        (lambda: WorkerConfig.load(None, {}, input_queue="a", thread=1), "code: unknown setting 'thread'; did you"),
    ],
)
def test_every_reader_says_which_name_was_meant(read: Any, said: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        read()
    assert said in str(caught.value)


def test_the_three_nearest_queues_are_named() -> None:
    names = ["orders", "orders.eu", "order", "Border", "mail"]
    assert nearest("ordrs", names) == ["orders", "order", "Border"]
    assert no_queue("ordrs", names) == "there is no queue 'ordrs'; did you mean 'orders' or 'order' or 'Border'?"
    assert no_queue("nope", ["mail"]).endswith("the first publish, a subscriber or create_queue makes one")


def test_options_are_written_as_they_are_read() -> None:
    options = QueueOptions.parse(type="push", acknowledge_timeout="250ms", topics=["a.b"], expired_queue="late")
    assert QueueOptions.parse(as_written(options)) == options
    assert as_written(options)["acknowledge_timeout"] == "250ms"


def test_no_option_is_forgotten_on_rabbitmq(monkeypatch: pytest.MonkeyPatch) -> None:
    """F7: what has no place in the list is refused by name, never silently ignored."""
    assert SUPPORT.keys() == set(QueueOptions.__struct_fields__)
    monkeypatch.delitem(SUPPORT, "client_limit")
    refuse(QueueOptions())
    with pytest.raises(Unsupported, match=r"no equivalent of client_limit=5; leave it out\. Nothing was changed"):
        refuse(QueueOptions(client_limit=5))
    assert {name for name, how in SUPPORT.items() if how is How.REFUSED} == {
        "delay_between_messages", "unique_ids", "confirmations", "flow_key", "ordered", "on_retry",
        "concurrency", "concurrency_per_key", "limits", "rate", "rate_per_key", "key_limits", "fair",
        "weights", "debounce", "max_wait", "throttle", "singleton",
    }  # fmt: skip
