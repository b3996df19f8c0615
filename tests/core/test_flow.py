"""Order, concurrency, rate and fairness per key, decided by the core alone (F1, F2, F3, F5)."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from remuda.core.core import Core
from remuda.core.recovery.snapshot import load, readable, save
from remuda.model.errors import Conflict, InvalidOption
from remuda.model.ids import Snowflakes
from remuda.model.queues.options import QueueOptions
from remuda.model.records import Appended
from remuda.model.settlement import Outcome
from remuda.model.values.durations import SECOND
from tests.core.flow_checks import Checked
from tests.core.kit import Bench, offsets


class Flowing(Bench):
    """A queue under rules, and one consumer with room for everything."""

    def __init__(self, rules: Mapping[str, Any], *, credit: int = 1000, batch: int = 1000) -> None:
        super().__init__({"acknowledge_timeout": "1h", **rules})
        self.subscribe("c", batch=batch, credit=credit)

    def headers(self, offset: int) -> Mapping[str, str]:
        """As they are in the log."""
        records = (record for effects in self.effects for record in effects.records)
        stored = [message for record in records if isinstance(record, Appended) for message in record.messages]
        return stored[offset].headers

    def keyed(self, keys: Sequence[str], **columns: Any) -> None:
        """Publish one message for each letter, which is its key."""
        self.publish(*["x"] * len(keys), key=list(keys), **columns)

    @property
    def out(self) -> list[int]:
        """Offsets that went out, in order."""
        return [offset for dispatch in self.sent for offset in offsets(dispatch)]

    def settle(self, offset: int, outcome: Outcome = Outcome.ACK, **more: Any) -> int:
        lease = next(one for one in reversed(self.sent) if offset in offsets(one))
        return self.answer(lease, outcome, [(offset, 1)], **more)


def again(bench: Bench) -> Core:
    """The same core from a snapshot."""
    fresh = Core(Snowflakes(1))
    saved = save(bench.core)
    assert readable(saved)
    load(fresh, saved)
    return fresh


def test_f1_one_of_a_key_at_a_time_in_the_order_of_publishing() -> None:
    bench = Flowing({"ordered": True})
    bench.keyed("aabab")
    assert bench.out == [0, 2]
    bench.settle(0)
    assert bench.out == [0, 2, 1]
    bench.settle(2)
    assert bench.out == [0, 2, 1, 4]
    bench.settle(1)
    assert bench.out == [0, 2, 1, 4, 3]


@pytest.mark.parametrize(("on_retry", "next_out"), [("hold", []), ("pass", [1])])
def test_f1_a_retry_holds_its_key_or_lets_the_next_go_on(on_retry: str, next_out: list[int]) -> None:
    bench = Flowing({"ordered": True, "on_retry": on_retry})
    bench.keyed("aab")
    assert bench.out == [0, 2]
    bench.settle(0, Outcome.RETRY, delay=5 * SECOND)
    assert bench.out == [0, 2, *next_out]
    for offset in next_out:
        bench.settle(offset)
    bench.wait(6)
    assert bench.out == [0, 2, *next_out, 0], "it is tried again"
    bench.settle(0)
    assert sorted(set(bench.out)) == [0, 1, 2]


def test_f1_a_message_that_ends_lets_its_key_go_on() -> None:
    bench = Flowing({"ordered": True})
    bench.keyed("aa")
    bench.settle(0, Outcome.DEAD)
    assert bench.out == [0, 1]


def test_f1_a_priority_does_not_overtake_within_a_key() -> None:
    bench = Flowing({"ordered": True}, credit=1, batch=1)
    bench.keyed("aaa", priority=[0, 9, 31])
    for offset in (0, 1, 2):
        assert bench.out[-1] == offset
        bench.settle(offset)


def test_f1_messages_without_a_key_are_one_line() -> None:
    bench = Flowing({"ordered": True})
    bench.publish("x", "y")
    assert bench.out == [0]


def test_f1_the_key_may_be_a_header_and_the_publisher_may_name_it() -> None:
    bench = Flowing({"ordered": True, "flow_key": "header:tenant"})
    bench.publish("x", "x", "x", key="same", headers=[{"tenant": "a"}, {"tenant": "b"}, {"tenant": "a"}])
    assert bench.out == [0, 1]
    bench.publish("x", headers={"tenant": "c", "remuda-flow-key": "b"})
    assert bench.out == [0, 1]


BODIES = [
    ('{"order": {"customer": "ann"}}', 0), ('{"order": {"customer": "bob"}}', 1), ('{"order": {"customer": "ann"}}', 0),
    ('{"order": 3}', 2), ("no JSON", 2), ('{"order": [1]}', 2),
]  # fmt: skip


@pytest.mark.parametrize("how", ["live", "replayed", "restored"])
def test_f1_the_key_may_stand_in_the_body(how: str) -> None:
    """It is read once, when the message is published, and kept as a header of the log."""
    bench = Flowing({"ordered": True, "flow_key": "body:order.customer"})
    texts = [text for text, _ in BODIES]
    bench.publish(*texts, mime_type="application/json", headers=[{"trace": "1"}] * len(texts))
    assert bench.out == [0, 1, 3], "those without such a value share one line"
    assert bench.headers(0) == {"trace": "1", "remuda-body:order.customer": "ann"}
    assert bench.headers(3) == {"trace": "1"}
    if how != "live":
        bench.core = bench.restarted() if how == "replayed" else again(bench)
        bench.core.resume(bench.now)
        bench.drain()
        bench.subscribe("d", batch=10, credit=10)
        assert bench.out[3:] == [0, 1, 3]
    bench.publish(
        '{"order": {"customer": 12}}', mime_type="application/json", headers={"remuda-body:order.customer": "bob"}
    )
    assert bench.headers(6)["remuda-body:order.customer"] == "12", "what a publisher says there does not count"


def test_f2_a_key_may_have_a_limit_of_its_own() -> None:
    bench = Flowing({"concurrency_per_key": 1, "key_limits": {"premium": 3, "slow": "1/min burst 1"}})
    bench.keyed(["premium"] * 5 + ["other"] * 2 + ["slow"] * 2)
    assert sorted(bench.out) == [0, 1, 2, 5, 7]
    bench.settle(7)
    assert len(bench.out) == 5, "its rate holds the slow one"
    bench.wait(61)
    assert bench.out[-1] == 8


@pytest.mark.parametrize("how", ["live", "replayed", "restored"])
def test_f2_a_message_may_say_how_many_of_its_key_may_run(how: str) -> None:
    bench = Flowing({"concurrency_per_key": 1})
    bench.publish(*"xxxx", key="a", headers={"remuda-flow-concurrency": "3"})
    bench.publish(*"xx", key="b")
    bench.publish("x", key="b", headers={"remuda-flow-concurrency": "many"})
    assert sorted(bench.out) == [0, 1, 2, 4]
    if how != "live":
        bench.core = bench.restarted() if how == "replayed" else again(bench)
        bench.core.resume(bench.now)
        bench.drain()
        bench.sent.clear()
        bench.subscribe("d", batch=10, credit=10)
        assert sorted(offset > 3 for offset in bench.out) == [False, False, False, True]
    bench.publish("x", key="a", headers={"remuda-flow-concurrency": "1"})
    bench.settle(next(offset for offset in bench.out if offset < 4))
    assert len(bench.out) == 4, "the newest message's word stands"


@pytest.mark.parametrize("how", ["live", "replayed", "restored"])
@pytest.mark.parametrize("rule", ["rate", "rate_per_key", "limits", "key_limits"])
def test_f3_a_message_may_count_as_several(rule: str, how: str) -> None:
    value: Any = "1/s burst 1"
    bench = Flowing({rule: {"a": value} if "limits" in rule else value})
    bench.publish("x", key="a")
    bench.publish("x", "x", key="a", headers=[{"remuda-flow-weight": "5"}, {"remuda-flow-weight": "-1"}])
    assert bench.out == [0]
    bench.settle(0)
    if how != "live":
        bench.core = bench.restarted() if how == "replayed" else again(bench)
        bench.core.resume(bench.now)
        bench.drain()
        bench.subscribe("d", batch=10, credit=10)
        bench.wait(0.5)
        assert bench.out == [0]
    bench.wait(1.1)
    assert bench.out[-1] == 1
    for _ in range(4):
        bench.wait(1)
        assert bench.out[-1] == 1, "it counts as five"
    bench.wait(1.1)
    assert bench.out[-1] == 2


def test_f2_concurrency_of_a_queue_and_of_its_keys() -> None:
    bench = Flowing({"concurrency": 3, "concurrency_per_key": 2})
    bench.keyed("aaabb")
    assert sorted(bench.out) == [0, 1, 3]
    bench.settle(3)
    assert sorted(bench.out) == [0, 1, 3, 4], "the third of its key waits"
    bench.settle(0)
    assert sorted(bench.out) == [0, 1, 2, 3, 4]


def test_f7_a_key_that_only_runs_is_shown_by_its_name_after_a_change_of_rules() -> None:
    bench = Flowing({"ordered": True})
    bench.keyed("a")
    bench.configure(ordered=False, concurrency_per_key=2)
    keyed = bench.core.queues["q"].keyed
    assert keyed is not None
    assert [(key.running, key.newest) for key in keyed.known()] == [(1, 0)]


def test_f2_lowering_a_limit_cancels_nothing() -> None:
    bench = Flowing({"concurrency": 3})
    bench.publish(*"abcde")
    bench.configure(concurrency=1)
    bench.settle(0)
    bench.settle(1)
    assert bench.out == [0, 1, 2]
    bench.settle(2)
    assert bench.out == [0, 1, 2, 3]


def test_f2_a_lost_consumer_gives_its_slots_back() -> None:
    bench = Flowing({"ordered": True})
    bench.keyed("aab")
    bench.subscribe("d", batch=10)
    bench.unsubscribe("c")
    assert bench.sent[-1].consumer == "d"
    assert sorted(bench.out[-2:]) == [0, 2]


def test_f2_queues_share_a_limit_in_turn() -> None:
    bench = Flowing({"limits": {"mail": 1}})
    for name in ("r", "s"):
        bench.declare(name, {"limits": {"mail": 5}, "acknowledge_timeout": "1h"})
        bench.subscribe("c", queue=name, batch=10)
    for name in ("q", "r", "s"):
        bench.publish(*"abcd", name=name)
    served = []
    for _ in range(12):
        one = bench.sent[-1]
        served.append(one.queue)
        assert one.count == 1
        bench.answer(one, Outcome.ACK)
    assert Counter(served) == {"q": 4, "r": 4, "s": 4}
    assert set(served[:3]) == {"q", "r", "s"}


@pytest.mark.parametrize("how", ["leaves", "is removed"])
def test_f2_a_queue_that_goes_leaves_its_slots_to_the_others(how: str) -> None:
    bench = Flowing({"limits": {"mail": 1}})
    bench.declare("r", {"limits": {"mail": 1}})
    bench.subscribe("c", queue="r")
    bench.publish("a")
    bench.publish("b", name="r")
    assert [one.queue for one in bench.sent] == ["q"]
    if how == "leaves":
        bench.configure(limits={})
    else:
        bench.remove("q")
    assert bench.sent[-1].queue == "r"


@pytest.mark.parametrize("how", ["live", "replayed", "restored"])
@pytest.mark.parametrize("rule", ["rate", "rate_per_key", "limits", "key_limits"])
def test_f7_a_rate_that_is_raised_counts_from_now_on(rule: str, how: str) -> None:
    """What was started ahead counts as before: three hours ahead are three seconds ahead."""

    def paced(value: str) -> dict[str, Any]:
        return {rule: {"a": value} if "limits" in rule else value}

    bench = Flowing(paced("1/h burst 1"))
    bench.publish("x", "x", key="a", headers=[{"remuda-flow-weight": "3"}, {}])
    bench.configure(**paced("1/s burst 1"))
    if how != "live":
        bench.core = bench.restarted() if how == "replayed" else again(bench)
        bench.core.resume(bench.now)
        bench.drain()
        bench.subscribe("d", batch=10, credit=10)
    started = len(bench.out)
    bench.wait(2.9)
    assert len(bench.out) == started
    bench.wait(0.2)
    assert len(bench.out) == started + 1


def test_f3_a_rate_waits_and_drops_nothing() -> None:
    bench = Flowing({"rate": "10/s burst 2"})
    bench.publish(*"abcde")
    assert bench.out == [0, 1]
    bench.wait(0.1)
    assert bench.out == [0, 1, 2]
    bench.wait(0.09)
    assert bench.out == [0, 1, 2]
    bench.wait(0.01)
    assert bench.out == [0, 1, 2, 3]
    assert bench.core.next_wake() <= bench.now + 100_000


def test_f3_a_rate_per_key_holds_just_that_key() -> None:
    bench = Flowing({"rate_per_key": "1/s burst 1"})
    bench.keyed("aab")
    assert bench.out == [0, 2]
    assert bench.core.next_wake() == bench.now + SECOND
    bench.wait(1)
    assert bench.out == [0, 2, 1]


@pytest.mark.parametrize("how", ["replay", "snapshot"])
def test_f3_a_restart_brings_no_second_burst(how: str) -> None:
    bench = Flowing({"rate": "100/s burst 3", "rate_per_key": "1/s burst 1", "limits": {"m": "2/s burst 4"}})
    bench.keyed("aabc")
    assert bench.out == [0, 2, 3]
    fresh = bench.restarted() if how == "replay" else again(bench)
    bench.core = fresh
    if how == "snapshot":
        fresh.resume(bench.now)
    bench.drain()
    bench.sent.clear()
    bench.now += 1000
    bench.subscribe("d", batch=10)
    assert bench.out == []
    for _ in range(40):
        bench.wait(0.1)
    assert sorted(bench.out) == [0, 1, 2, 3]


def test_f5_a_tenant_delays_another_by_one_turn() -> None:
    bench = Flowing({"fair": True}, credit=1, batch=1)
    bench.keyed("a" * 1000 + "b")
    bench.settle(0)
    assert bench.out == [0, 1000]


def test_f5_thousands_of_tenants_have_the_same_share_however_much_each_has_waiting() -> None:
    bench = Bench({"fair": True, "type": "pull"})
    keys = [*(f"t{row}" for row in range(2000)), *(f"t{row}" for row in range(20) for _ in range(200))] * 2
    random.Random(7).shuffle(keys)
    bench.publish(*["x"] * len(keys), key=keys)
    served: Counter[str] = Counter()
    for turn in (1, 2):
        for _ in range(20):
            taken = bench.pull(100)
            served.update(keys[offset] for offset in offsets(taken))
            bench.answer(taken, Outcome.ACK)
        assert set(served.values()) == {turn}
        assert len(served) == 2000


def test_f5_turns_go_by_weight_and_absence_earns_nothing() -> None:
    bench = Flowing({"fair": True, "weights": {"gold": 3}}, credit=1, batch=1)
    bench.publish(*["x"] * 400, key=["plain"] * 200 + ["gold"] * 200)
    for _ in range(100):
        bench.settle(bench.out[-1])
    gold = sum(offset >= 200 for offset in bench.out)
    assert 72 <= gold <= 78
    bench.publish(*["x"] * 50, key="late")
    for _ in range(100):
        bench.settle(bench.out[-1])
    late = sum(offset >= 400 for offset in bench.out)
    assert 18 <= late <= 22, "one in five turns, and none for the time before"


def test_rules_are_switched_on_and_off_while_messages_wait() -> None:
    bench = Flowing({}, credit=1, batch=1)
    bench.core.registry._facts_of = lambda offset: None
    bench.keyed("aab")
    bench.configure(ordered=True)
    assert bench.out == [0]
    assert bench.line() == [1, 2]
    bench.configure(ordered=False)
    bench.settle(0)
    assert bench.out == [0, 1]


def test_a_pull_takes_by_the_rules() -> None:
    bench = Bench({"ordered": True, "type": "pull"})
    bench.publish("x", "y", "z", key=["a", "a", "b"])
    first = bench.pull(5)
    assert sorted(offsets(first)) == [0, 2]
    assert bench.pull(5) is None
    with pytest.raises(Conflict, match="leave newest out"):
        bench.pull(1, newest=True)
    bench.answer(first, Outcome.ACK)
    assert offsets(bench.pull(5)) == [1]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"ordered": True, "acknowledge": "none"}, "ordered counts what is in flight"),
        ({"rate": "fast"}, "rate: 'fast' is not a rate; write it like 100/s"),
        ({"rate": "0/s"}, "lets nothing through"),
        ({"rate": 5}, "is not a rate"),
        ({"limits": {"a": 0}}, "limits of 'a' must be a whole number, 1 or more"),
        ({"limits": "a"}, "limits must map names to values"),
        ({"weights": {"a": "b"}}, "weights of 'a' must be a whole number, 1 or more"),
        ({"flow_key": "tenant"}, "flow_key must be 'key', 'header:NAME' or"),
        ({"flow_key": "body:"}, "'body:NAME.NAME'"),
        ({"flow_key": "body:a..b"}, "'body:NAME.NAME'"),
        ({"key_limits": {"a": -1}}, "key_limits of 'a' must be a whole number, 1 or more"),
        ({"ordered": True, "key_limits": {"a": 2}}, "one message of a key at a time"),
        ({"key_limits": {"a": 2}, "acknowledge": "none"}, "key_limits counts what is in flight"),
        ({"ordered": 1}, "ordered must be true or false"),
        ({"on_retry": "wait"}, "on_retry must be one of auto, hold, pass"),
        ({"fair": True, "type": "push", "confirmations": 2}, "confirmations contradict"),
    ],
)
def test_impossible_rules_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        QueueOptions.parse(given)
    assert said in str(caught.value)


RULES = [
    {"ordered": True},
    {"ordered": True, "put_back": "priority", "put_back_delay": "300ms"},
    {"ordered": True, "on_retry": "pass", "put_back": "priority"},
    {"concurrency": 4, "concurrency_per_key": 2, "fair": True},
    {"rate": "20/s burst 3", "rate_per_key": "5/s burst 2"},
    {"ordered": True, "rate": "20/s burst 3", "concurrency": 5},
    {"fair": True, "message_timeout": "30s", "weights": {"a": 3}},
    {"ordered": True, "acknowledge": "just-request", "message_limit": 30, "limit_exceeded": "delete-oldest"},
    {"ordered": True, "type": "push", "delay_between_messages": "10ms"},
    {"concurrency_per_key": 1, "key_limits": {"a": 3}, "on_retry": "hold"},
    {"debounce": "700ms", "max_wait": "2s"},
    {"throttle": "1s"},
    {"singleton": "replace", "ordered": True},
    {"singleton": "skip", "concurrency": 2},
]


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("rules", RULES, ids=lambda rules: "+".join(rules))
def test_f1_f2_f3_f5_hold_whatever_happens(rules: dict[str, Any], seed: int) -> None:
    """Consumers come, go, fail and answer late; the core is restarted from its records or its snapshot; nothing
    starves."""
    chance = random.Random(seed)
    bench = Bench({"acknowledge_timeout": "5s", **rules})
    check = Checked(rules)
    seen, consumers = 0, list[str]()

    def look() -> None:
        nonlocal seen
        for effects in bench.effects[seen:]:
            check.read(effects.records)
        seen = len(bench.effects)

    def answer(outcome: Outcome, delay: int | None, *, whole: bool) -> None:
        dispatch = chance.choice([one for one in bench.sent if one.lease in bench.core.queues["q"].leases])
        if dispatch.hand_over:
            bench.take(dispatch)
        chosen = None if whole else [(chance.choice(offsets(dispatch)), 1)]
        bench.answer(dispatch, outcome, chosen, delay=delay)

    for _ in range(200):
        match chance.randrange(9):
            case 0 | 1 | 2:
                keys = [chance.choice("aaabcd") for _ in range(chance.randrange(1, 6))]
                due = bench.now + SECOND if chance.random() < 0.1 else None
                bench.publish(*keys, key=keys, due=due)
            case 3 if len(consumers) < 2:
                consumers.append(f"c{chance.randrange(1000000)}")
                bench.subscribe(consumers[-1], batch=chance.randrange(1, 5), credit=chance.randrange(1, 20))
            case 4 if consumers:
                bench.unsubscribe(consumers.pop(chance.randrange(len(consumers))))
            case 5 | 6 | 7 if bench.core.queues["q"].leases:
                outcome = chance.choice(
                    [Outcome.ACK, Outcome.ACK, Outcome.RETRY, Outcome.NACK, Outcome.DEAD, Outcome.RELEASE]
                )
                delay = chance.choice([None, SECOND]) if outcome is Outcome.RETRY else None
                answer(outcome, delay, whole=chance.random() < 0.3)
            case _:
                bench.wait(chance.random() * 2)
        if chance.random() < 0.1:
            bench.reprocess()
        if chance.random() < 0.05:
            if chance.random() < 0.5:
                bench.core = bench.restarted()
            else:
                bench.core = again(bench)
                bench.core.resume(bench.now)
            bench.drain()
            consumers.clear()
        look()
    bench.subscribe("last", batch=5, credit=50)
    for _ in range(3000):
        if not bench.core.queues["q"].size:
            break
        if bench.core.queues["q"].leases:
            answer(Outcome.ACK, None, whole=True)
        bench.wait(0.05)
        look()
    queue = bench.core.queues["q"]
    assert not queue.size
    assert queue.keys.size == queue.parked.size if queue.keyed is not None else not queue.keys.size
    assert queue.ready.size == 0
    assert queue.ready.by_rank == (0, 0)


# F4


def test_f4_debounce_sends_the_last_of_a_key_when_it_is_quiet() -> None:
    bench = Flowing({"debounce": "5s"})
    for seconds in (0, 3, 3):
        bench.wait(seconds)
        receipt = bench.publish("x", key="a")
    assert receipt.by_key == {0: "replaced"}
    bench.publish("y", key="b")
    bench.wait(4.9)
    assert bench.out == []
    bench.wait(0.1)
    assert bench.out == [2, 3]
    assert bench.core.info("q").dead == 0, "what was replaced is no failure"


@pytest.mark.parametrize("how", ["live", "replay", "snapshot"])
def test_f4_nobody_waits_longer_than_max_wait(how: str) -> None:
    bench = Flowing({"debounce": "5s", "max_wait": "12s"})
    for _ in range(4):
        bench.publish("x", key="a")
        bench.wait(3)
        if how != "live":
            bench.core = bench.restarted() if how == "replay" else again(bench)
            bench.core.resume(bench.now)
            bench.drain()
            bench.subscribe("c", batch=10)
    assert set(bench.out) == {3}


def test_f4_a_message_that_did_not_wait_for_quiet_is_no_reason_to_hurry() -> None:
    """One that was reprocessed waits for no quiet, so the next does not come too late for max_wait."""
    bench = Flowing({"debounce": "5s", "max_wait": "8s", "type": "pull"})
    bench.unsubscribe("c")
    bench.publish("x", key="a")
    bench.wait(6)
    bench.answer(bench.pull(1), Outcome.DEAD)
    bench.wait(60)
    bench.reprocess()
    bench.publish("y", key="a")
    assert [piece.due - bench.now for piece in bench.core.queues["q"].delayed] == [5 * SECOND]


def test_f4_debounce_within_one_batch() -> None:
    bench = Flowing({"debounce": "1s"})
    assert bench.publish(*"xxx", key=["a", "b", "a"]).by_key == {0: "skipped", 2: "replaced"}
    bench.wait(1)
    assert sorted(bench.out) == [1, 2]


@pytest.mark.parametrize("how", ["live", "replay", "snapshot"])
def test_f4_throttle_takes_the_first_of_a_key(how: str) -> None:
    bench = Flowing({"throttle": "10s"})
    assert bench.publish("x", key="a").by_key == {}
    bench.settle(0)
    bench.wait(9)
    if how != "live":
        bench.core = bench.restarted() if how == "replay" else again(bench)
        bench.subscribe("c", batch=10)
    assert bench.publish("x", "x", key=["a", "b"]).by_key == {0: "skipped"}
    bench.wait(1)
    assert bench.publish("x", key="a").by_key == {}
    assert bench.out == [0, 2, 3]


def test_f4_a_singleton_is_refused_skipped_or_replaces_the_one_that_waits() -> None:
    bench = Flowing({"singleton": "refuse"}, credit=1, batch=1)
    assert bench.publish("x", "y", "z", key=["a", "b", "a"]).refusals.keys() == {2}
    bench.settle(0)
    assert not bench.publish("x", key="a").refusals

    bench = Flowing({"singleton": "skip"}, credit=1, batch=1)
    assert bench.publish("x", "y", key=["a", "a"]).by_key == {1: "skipped"}
    bench.settle(0, Outcome.RETRY, delay=SECOND)
    assert bench.publish("x", key="a").by_key == {0: "skipped"}, "it waits for its retry"
    bench.wait(1)
    bench.settle(0)
    assert bench.publish("x", key="a").by_key == {}

    bench = Flowing({"singleton": "replace"}, credit=1, batch=1)
    bench.publish("x", key="a")
    assert bench.publish("y", key="a").by_key == {}, "the first runs, the second waits"
    assert bench.publish("z", key="a").by_key == {0: "replaced"}
    bench.settle(0)
    assert bench.out == [0, 2]


def test_f4_the_next_of_a_key_is_wanted_when_the_first_was_pulled_and_answered() -> None:
    bench = Bench({"singleton": "skip", "type": "pull"})
    for offset in range(3):
        assert bench.publish("x", key="a").by_key == {}
        bench.answer(bench.pull(1), Outcome.ACK)
        assert bench.core.queues["q"].size == 0, offset


def test_f4_the_publisher_is_told_by_row_also_where_others_are_refused() -> None:
    bench = Bench({"singleton": "replace", "message_size_limit": 1, "type": "pull"})
    receipt = bench.publish("long", "a", "b", key=["x", "y", "y"])
    assert (list(receipt.refusals), receipt.by_key) == ([0], {1: "skipped", 2: "replaced"})


@pytest.mark.parametrize("rule", [{"debounce": "5s"}, {"singleton": "replace"}, {"singleton": "skip"}])
@pytest.mark.parametrize("limit", [{"message_limit": 2}, {"byte_limit": 2}])
@pytest.mark.parametrize("full", ["reject-new", "delete-oldest"])
def test_f4_what_takes_no_room_is_not_refused_and_evicts_nothing(
    rule: dict[str, Any], limit: dict[str, Any], full: str
) -> None:
    """F4, Q6: it is skipped, or takes the place of the one that waits."""
    bench = Bench({"type": "pull", "limit_exceeded": full, **rule, **limit})
    bench.publish("x", "y", key=["a", "b"])
    receipt = bench.publish("z", "z", key="b")
    assert not receipt.refusals
    bench.wait(6)
    skips = rule.get("singleton") == "skip"
    assert list(offsets(bench.pull(5))) == ([0, 1] if skips else [0, 3])
    assert bench.core.info("q").dead == 0


def test_f4_a_rule_of_one_queue_is_no_rule_of_another() -> None:
    bench = Flowing({"singleton": "skip"}, credit=1, batch=1)
    bench.declare("audit", {"topics": ["q"], "type": "pull"})
    bench.publish("x", "x", key="a")
    assert offsets(bench.pull(5, queue="audit")) == [0, 1]
    assert bench.core.queues["q"].size == 1


def test_f4_messages_without_a_key_are_all_wanted() -> None:
    bench = Flowing({"singleton": "skip"})
    assert bench.publish("x", "x").by_key == {}


def test_f4_rules_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(InvalidOption, match="choose one"):
        QueueOptions.parse(debounce="1s", throttle="1s")


def test_f5_keys_that_are_idle_cost_nothing() -> None:
    bench = Flowing({"fair": True, "rate_per_key": "100/s"}, credit=100_000)
    for at in range(0, 20_000, 1000):
        bench.publish(*["x"] * 1000, key=[f"{number}" for number in range(at, at + 1000)])
        bench.wait(1)
        for dispatch in bench.sent:
            bench.answer(dispatch, Outcome.ACK)
        bench.sent.clear()
    queue = bench.core.queues["q"]
    assert queue.keyed is not None
    assert sum(1 for _ in queue.keyed.known()) + queue.keyed.singles.size < 3000
    assert (queue.size, queue.keys.size) == (0, 0)
