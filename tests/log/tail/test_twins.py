"""What is there in C and in Python does the same with every value, hostile ones among them. Each way runs in a process
of its own."""

from __future__ import annotations

from pathlib import Path

from tests.log.tail.test_native import BEGIN, WAYS, run

CHECKS = (
    BEGIN
    + """
from remuda.broker.checks import is_plain_pull, plain_publish
from remuda.model.message import Message
from remuda.model.messages import Messages, of_plain, with_id
from remuda.model.values.texts import is_plain_name

told = []
def tell(verb, *args, **named):
    try:
        given = verb(*args, **named)
    except (TypeError, ValueError, OverflowError, LookupError, AttributeError) as error:
        # Not in the same words, but from the same calls.
        told.append("refused" if not isinstance(error, LookupError) else "empty")
    else:
        told.append(repr(given))
        return given

# What is ordinary.
texts = ["", "a", "b c", "\\x7f", "\\n", "é", "x" * 255, "x" * 256, "\\ud800", b"a", None, 5, True]
texts.append(type("T", (str,), {})("t"))
for value in texts:
    told.append(is_plain_name(value))
odd = [None, 5, -1, 2**70, 31, 32, True, "", "é", "a", (), ("a",), [], b"", 1.5, object]
odd += [{}, {"a": "b"}, {"a": "é"}, {"a": 1}, {1: "a"}]
for name in Message.__struct_fields__:
    for value in odd:
        message = Message(**{"name": "n", "body": b"b", name: value})
        told.append(repr(of_plain(message)))
told.append(repr(of_plain(Message("n", b"b", headers={"a": "b"}, priority=3, created=5))))
for wrong in (None, 5, "text"):
    tell(is_plain_name, wrong)
plain = Messages([b"b"], "n")
usual = ["q", 1, False, "none", 0]
for at in range(5):
    for value in [*odd, *texts, 1, 1 << 62, False, "none", "no" + "ne", "all", 0, 0.0]:
        tell(is_plain_pull, *usual[:at], value, *usual[at + 1:])
asked = [Message("n", b"b"), None, None, None, None, None]
for at in range(6):
    for value in [*odd, *texts, Message("é", b"b"), [Message("n", b"b")], plain]:
        tell(plain_publish, *asked[:at], value, *asked[at + 1:])
for wrong in ([], [plain], [plain, 1.5, 1, 1], [plain, 5, "x", 1], [None, 1, 1, 1]):
    tell(with_id, *wrong)
for first in (0, 1024, 1 << 61, (1 << 63) - 1024, (1 << 63) - 1):
    told.append(repr(with_id(Messages([b"b"], "n", headers={"a": "b"}, priority=3, wire=b"w"), first, 1024, 99)))
print(json.dumps(told))
"""
)


def test_checks_of_any_value_say_the_same_in_both_languages(built: str, tmp_path: Path) -> None:
    in_c, in_python = (run(CHECKS, way, built, tmp_path / way) for way in WAYS)
    assert len(in_c) == len(in_python) > 600
    assert [pair for pair in zip(in_c, in_python, strict=True) if pair[0] != pair[1]] == []
