"""What is asked again counts when what was asked first does (L2, S5)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from remuda.broker import checks
from remuda.broker.embedded.pending import Pending
from remuda.broker.embedded.runtime import Runtime
from remuda.model.errors import Duplicate
from remuda.model.message import Message
from remuda.model.operations.commands import Command, DeclareQueue, Pull, Settle
from remuda.model.queues.options import read_options
from remuda.model.settlement import Outcome, Settlement
from tests.broker.kit import WatchedDisk


@pytest.fixture
def runtime(tmp_path: Path) -> Iterator[Runtime]:
    runtime = Runtime(WatchedDisk(tmp_path / "broker"))
    runtime.wait(runtime.submit(DeclareQueue("orders", read_options({"type": "pull"}))).ticket)
    yield runtime
    runtime.close()


def twice(runtime: Runtime, command: Command) -> Pending:
    """Ask twice, and wait for the second alone."""
    first, second = runtime.submit(command), runtime.submit(command)
    assert runtime.reached < first.ticket
    runtime.wait(second.ticket)
    assert runtime.reached >= first.ticket, "the second counts, and the first could still be lost"
    return second


def test_l2_a_batch_that_is_sent_again_counts_when_the_first_is_kept(runtime: Runtime) -> None:
    command = checks.publish(Message("orders", b"body"), None, None, None, None, None)
    second = twice(runtime, msgspec.structs.replace(command, producer="guest", sequence=1))
    assert second.result.repeated == 1
    assert runtime.info("orders").waiting == 1


def test_l2_q12_a_message_that_is_refused_as_a_duplicate_is_kept(runtime: Runtime) -> None:
    runtime.wait(runtime.submit(DeclareQueue("once", read_options({"type": "pull", "unique_ids": True}))).ticket)
    second = twice(runtime, checks.publish(Message("once", b"body", id="1"), None, None, None, None, None))
    assert type(second.result.refusals[0]) is Duplicate


def test_l2_an_answer_that_is_given_again_counts_when_the_first_is_kept(runtime: Runtime) -> None:
    runtime.submit(checks.publish(Message("orders", b"body"), None, None, None, None, None))
    held = runtime.submit(Pull("orders", "consumer", runtime.new_tag()))
    runtime.wait(held.ticket)
    answer = Settle("orders", held.result.lease, Settlement(Outcome.ACK, consumer="consumer"))
    assert twice(runtime, answer).result == 0
