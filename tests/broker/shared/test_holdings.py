"""What a guest tells its callers of answers that it had to repeat (S5, L2)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from remuda import Message, open_broker
from remuda.broker.embedded.runtime import Runtime
from remuda.broker.shared.guest.open_state import OpenState
from remuda.broker.shared.guest.request import Request
from remuda.broker.shared.guest.takeover import Takeover
from remuda.broker.shared.wire.wire_frames import Carried
from remuda.log.disk.directory import DirectoryDisk
from remuda.model.operations.commands import Settle
from remuda.model.settlement import Outcome, Settlement
from tests.conformance.kit import pulled


def said_again(path: Path, holdings: OpenState, command: Settle) -> tuple[int, int]:
    """What an answer settles that is repeated to a host which was started anew, and how many messages wait there."""
    runtime = Runtime(DirectoryDisk(path))
    try:
        succession = Takeover(runtime, holdings, "guest")
        request = Request(1, b"", lambda raw: raw)
        request.command, request.again, request.expected = command, True, holdings.expected(command)
        succession.restore()
        succession.carry_out([request])
        return request.pending.result, runtime.info("orders").waiting
    finally:
        runtime.close()


@pytest.mark.parametrize(
    ("kept", "outcome", "expected"),
    [
        (True, Outcome.ACK, (2, 0)),
        (False, Outcome.ACK, (0, 2)),
        (True, Outcome.RELEASE, (2, 2)),
    ],
)
def test_l2_an_answer_is_not_called_kept_if_its_messages_will_be_delivered_again(
    tmp_path: Path, kept: bool, outcome: Outcome, expected: tuple[int, int]
) -> None:
    with open_broker(tmp_path / "broker", shared=False) as broker:
        broker.create_queue("orders", type="pull")
        for _ in range(2):
            broker.publish(Message("orders", b"body"))
        delivery = pulled(broker, count=2)
        if kept:
            delivery.answer(Settlement(outcome))
        shutil.copytree(tmp_path / "broker", tmp_path / "copy", ignore=shutil.ignore_patterns("lock"))
        found = delivery._dispatch
        assert found.lease is not None
        holdings = OpenState(broker.runtime.clock)
        carried = Carried("orders", found.consumer, 1, found.lease, found.runs, found.attempts, found.deadline)
        holdings.hold(carried, pulled=True)
    answer = Settle("orders", found.lease, Settlement(outcome, consumer=found.consumer))
    assert said_again(tmp_path / "copy", holdings, answer) == expected
