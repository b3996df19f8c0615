"""Names of queues however an application is started; prefixes; queues that are left over (B2, B3)."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import remuda
from remuda import Bus, handles
from remuda.model.errors import InvalidOption
from remuda.model.queues.system_queues import UNROUTED

APP = """
from remuda import Bus
bus = Bus("data")

@bus.subscribe("order.placed")
def ship(body: int) -> None:
    print("shipped", body, flush=True)

if __name__ == "__main__":
    print([handler.queue for handler in bus.handlers], flush=True)
    bus.publish("order.placed", 1)
    bus.close()
"""


def python(folder: Path, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(Path(remuda.__file__).parent.parent)}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


class TestMain:
    def test_the_queue_is_the_same_however_the_file_is_started(self, tmp_path: Path) -> None:
        """B2: what `python app.py` publishes, `remuda run app:bus` handles."""
        (tmp_path / "app.py").write_text(APP)
        assert python(tmp_path, "app.py").strip() == "['app.ship']"
        assert python(tmp_path, "-m", "app").strip() == "['app.ship']"
        assert python(tmp_path, "-m", "remuda", "run", "app:bus", "--until-idle").split() == ["shipped", "1"] * 2

    def test_a_package_has_its_own_name_also_when_its_folder_is_started(self, tmp_path: Path) -> None:
        """B2"""
        (tmp_path / "shop").mkdir()
        (tmp_path / "shop" / "__main__.py").write_text(APP)
        assert python(tmp_path, "-m", "shop").strip() == "['shop.ship']"
        assert python(tmp_path, "shop").strip() == "['shop.ship']"

    def test_what_is_typed_into_the_console_of_an_editor_replaces_its_handler(self, tmp_path: Path) -> None:
        """B2: its prompt runs in a program that has a file."""
        (tmp_path / "console.py").write_text(
            "from remuda import Bus\nbus = Bus()\n"
            "for text in 'ab':\n"
            "    typed = f\"@bus.subscribe('x')\\ndef handle(body: int) -> str: return '{text}'\"\n"
            "    exec(compile(typed, '<stdin>', 'exec'), globals())\n"
            "print(bus.send('x', 1), len(bus.handlers))"
        )
        assert python(tmp_path, "console.py").strip() == "['b'] 1"

    def test_a_cell_that_is_run_again_replaces_its_handler(self) -> None:
        """B2"""
        program = (
            "from remuda import Bus\nbus = Bus()\n"
            "for text in 'ab':\n"
            "    exec(f\"@bus.subscribe('x')\\ndef handle(body: int) -> str: return '{text}'\", globals())\n"
            "print(bus.send('x', 1), len(bus.handlers))"
        )
        assert python(Path.cwd(), "-c", program).strip() == "['b'] 1"


class TestMethods:
    def test_inherited_ones_take_the_subclasss_name(self) -> None:
        """B2"""

        class Base:
            @handles("order.placed")
            def ship(self, body: int) -> None: ...

        class Fast(Base):
            pass

        class Slow(Base):
            pass

        bus = Bus()
        bus.subscribe_class(Fast())
        bus.subscribe_class(Slow())
        assert [handler.queue for handler in bus.handlers] == ["Fast.ship", "Slow.ship"]

    def test_static_and_class_methods_are_honoured(self) -> None:
        """B2"""
        seen: list[str] = []

        class Orders:
            @staticmethod
            @handles("a")
            def first(body: str) -> None:
                seen.append(f"first {body}")

            @handles("b")
            @staticmethod
            def second(body: str) -> None:
                seen.append(f"second {body}")

            @classmethod
            @handles("c")
            def third(cls, body: str) -> None:
                seen.append(f"third {body}")

        bus = Bus()
        bus.subscribe_class(Orders())
        for topic in "abc":
            bus.send(topic, "x")
        assert seen == ["first x", "second x", "third x"]
        assert sorted(handler.queue for handler in bus.handlers) == ["Orders.first", "Orders.second", "Orders.third"]

    def test_an_object_without_marked_methods_is_refused(self) -> None:
        """B2"""
        with pytest.raises(InvalidOption, match="@handles"):
            Bus().subscribe_class(object())


class TestOrphans:
    def test_are_told_at_start_with_the_commands_that_help(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """B13"""
        old = Bus(tmp_path / "data")
        old.subscribe("x", queue="old.name")(lambda body: None)
        old.publish("x", 1)
        old.close()
        new = Bus(tmp_path / "data")
        new.subscribe("x", queue="new.name")(lambda body: None)
        with caplog.at_level(logging.WARNING, "remuda.bus"):
            new.run(until_idle=True)
            new.close()
        told = [record.getMessage() for record in caplog.records]
        assert len(told) == 1
        assert "queue old.name has 1 message and a subscription to x but no handler here" in told[0]
        assert f"remuda move {tmp_path / 'data'} old.name NEW_QUEUE" in told[0]
        assert "--remove old.name" in told[0]

    def test_that_hold_and_take_nothing_are_not_told(self, caplog: pytest.LogCaptureFixture) -> None:
        """B13"""
        bus = Bus()
        bus.broker.create_queue("mine", {"type": "pull"})
        bus.run(until_idle=True)
        bus.close()
        assert [record for record in caplog.records if record.levelname != "INFO"] == []


class TestPrefix:
    def test_keeps_environments_apart(self, tmp_path: Path) -> None:
        """B3"""
        seen: list[tuple[str, Any]] = []

        def make(prefix: str) -> Bus:
            bus = Bus(tmp_path / "data", prefix=prefix)
            bus.subscribe("order.*", queue="ship")(lambda body: seen.append((prefix, body)))
            return bus

        for prefix in ("test.", "live."):
            bus = make(prefix)
            bus.publish("order.placed", prefix)
            bus.run(until_idle=True)
            bus.close()
        assert seen == [("test.", "test."), ("live.", "live.")]

    def test_reaches_callbacks_failover_and_operators(self) -> None:
        """B3, B7, B9"""
        bus = Bus(prefix="test.", settings={"message.failover.q": "later", "message.retry.max.q": 0})
        answers: list[int] = []

        @bus.subscribe("ask", queue="q")
        def ask(body: int) -> int:
            if body < 0:
                raise ValueError
            return body

        bus.subscribe("answer", queue="answer")(lambda body: answers.append(body))
        with bus.testing() as test:
            test.publish("ask", 1, callback="answer")
            test.publish("ask", -1)
            test.run()
            assert answers == [1]
            assert test.queue("later").waiting == 1
            assert bus.clear("later") == 1
            assert test.call("ask", 5) == 5
            test.publish("nobody")
            test.run()
            assert len(test.dead_letters(UNROUTED)) == 1

    def test_may_come_from_the_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """B3"""
        monkeypatch.setenv("REMUDA_MESSAGE_PREFIX", "live.")
        assert Bus().prefix == "live."

    @pytest.mark.parametrize("wrong", [5, "*.", "\n", ".x"])
    def test_that_is_no_beginning_of_a_topic_is_refused(self, wrong: Any) -> None:
        """B3"""
        with pytest.raises(InvalidOption):
            Bus(prefix=wrong)
