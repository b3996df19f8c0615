"""Escape codes and marks in what others wrote are shown, never obeyed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from remuda import Message, open_broker
from remuda.cli import main, output

HOSTILE = "\U000e0041\x1b[2J\x1b]0;owned\x07\u202egnp.exe\u2066\r\nnext\x9b31m\u200b"
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\U000e0000-\U000e007f]")


@pytest.mark.parametrize("as_json", [False, True])
def test_b_no_command_lets_a_message_write_to_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], as_json: bool
) -> None:
    with open_broker(tmp_path, sync="os") as broker:
        broker.create_queue("q", type="pull")
        far = (2**63 - 1, -(2**63), 2**62)
        for number in range(3):
            message = Message(
                f"q.{HOSTILE}", HOSTILE.encode(), f"{number}-{HOSTILE}", headers={HOSTILE: HOSTILE},
                timestamp=far[number], due=far[2] if number == 2 else None, expires=far[0],
            )  # fmt: skip
            broker.publish(message, queue="q")
        delivery = broker.pull("q")
        assert delivery is not None
        delivery.dead(reason=HOSTILE, detail=HOSTILE)
    more = ["--json"] if as_json else []
    for words in (
        ["messages", tmp_path, "q"],
        ["message", tmp_path, "0", "--offset"],
        ["message", tmp_path, f"1-{HOSTILE}"],
        ["message", tmp_path, f"2-{HOSTILE}"],
        ["log", "tail", tmp_path],
        ["log", "tail", tmp_path, "--events"],
        ["queues", tmp_path],
        ["check", tmp_path],
    ):
        with pytest.raises(SystemExit) as ended:
            main([*map(str, words), *more])
        assert ended.value.code == 0
        shown = capsys.readouterr().out
        assert shown
        assert OBEYED.search(shown) is None, (words, ascii(shown))
        if as_json:
            for line in shown.splitlines():
                json.loads(line)


def test_an_error_is_shown_safely_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with open_broker(tmp_path, sync="os"):
        pass
    with pytest.raises(SystemExit):
        main(["messages", str(tmp_path), HOSTILE])
    assert OBEYED.search(capsys.readouterr().err.rstrip("\n")) is None


def test_what_is_safe_is_left_as_it_is() -> None:
    assert output.safe("größer → 日本語 ✓") == "größer → 日本語 ✓"
    assert output.safe("a\tb\nc\x1b") == "a\\tb\\nc\\x1b"
    assert output.safe("a\nb", lines=True) == "a\nb"


def test_bodies_that_only_look_like_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bodies = [b"[" * 100_000, b'{"a":' * 50_000, b"1" * 5000, b"1e400", b'"\\ud800"', b"\xff\xfe", b""]
    with open_broker(tmp_path, sync="os") as broker:
        broker.create_queue("q", type="pull")
        for number, body in enumerate(bodies):
            broker.publish(Message("q", body, f"m{number}", mime_type="application/json"), queue="q")
    for words in (["messages", tmp_path, "q"], ["message", tmp_path, "m0"], ["log", "tail", tmp_path]):
        for more in ([], ["--json"]):
            with pytest.raises(SystemExit) as ended:
                main([*map(str, words), *more])
            assert ended.value.code == 0
            shown = capsys.readouterr().out.splitlines()
            assert shown
            assert not more or all(map(json.loads, shown))


def test_json_may_hold_a_path_that_is_not_text(capsys: pytest.CaptureFixture[str]) -> None:
    output.json({"index": "a\udcff\x1b", "size": 1})
    assert capsys.readouterr().out == '{"index":"a\\udcff\\u001b","size":1}\n'


def test_closed_standard_streams_are_no_crash(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_broker(tmp_path, sync="os"):
        pass
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(SystemExit) as ended:
        main(["publish", str(tmp_path), "a", "-"])
    assert ended.value.code == 1
    assert "standard input is closed" in capsys.readouterr().err
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(SystemExit) as ended:
        main(["queues", str(tmp_path), "--json"])
    sys.stdout.close()
    assert ended.value.code == 0


def test_an_argument_that_is_not_text_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["users", "add", str(tmp_path / "users.txt"), "ada", "--password", "correct horse", "--read", "\udcff"]
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert (ended.value.code, capsys.readouterr().err) == (1, "error: '\\udcff' is not UTF-8; nothing was done\n")


def test_a_table_of_many_rows_is_printed_quickly(capsys: pytest.CaptureFixture[str]) -> None:
    count = 5000
    rows = ((f"queue.{number}.\x1b東" + "x" * 300 * (number == 7), number) for number in range(count))
    began = time.process_time()
    output.table(["queue", "waiting"], rows, right=["waiting"])
    assert time.process_time() - began < count * 0.002
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == count + 2
    assert lines[0].startswith(" queue ")
    assert lines[2].startswith(" queue.0.\\x1b東 ")
    assert "x…" in lines[9]
    assert lines[9].endswith(" 7")
    assert max(map(len, lines)) <= 200


@pytest.mark.parametrize("as_json", [False, True])
def test_letters_that_the_terminal_lacks_are_shown_by_their_codes(tmp_path: Path, as_json: bool) -> None:
    """U3: also where output is ASCII alone, and what programs read stays JSON."""
    with open_broker(tmp_path, sync="os") as broker:
        broker.create_queue("größe", type="pull")
    command = [sys.executable, "-m", "remuda", "queues", str(tmp_path), *(["--json"] if as_json else [])]
    shown = subprocess.run(
        command, capture_output=True, env={**os.environ, "PYTHONIOENCODING": "ascii"}, timeout=60, check=False
    )
    assert (shown.returncode, shown.stderr) == (0, b"")
    if as_json:
        assert [one["queue"] for one in json.loads(shown.stdout)] == ["größe"]
    else:
        assert rb"gr\xf6\xdfe" in shown.stdout
