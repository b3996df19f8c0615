"""Which tests of the conformance suite are not for RabbitMQ, and why."""

from __future__ import annotations

DELAYED = "RabbitMQ does not tell how many messages wait for their time"
UNTOLD = "what RabbitMQ itself parks is found among the dead letters; the log does not hear of it"
LIMIT = "RabbitMQ counts what waits, and a quorum queue also takes what is on its way at that moment"
NUMBERS = "messages are numbered by their ids, which are not neighbours"
PARKED = "RabbitMQ tells how many dead letters there are, not of which state"
TIME = "what waits for its time is not reached"
DIFFERS = {
    "test_q9_put_back_delay[answer_no]": DELAYED,
    "test_q9_put_back_delay[stay_silent]": DELAYED,
    "test_q9_put_back_delay_of_a_lost_consumer": DELAYED,
    "test_q9_delayed_messages_fill_the_queue": LIMIT,
    "test_q16_the_answer_tells_what_remains": "RabbitMQ counts what waits, not by priority",
    "test_q5_a_message_waits_no_longer_than_message_timeout": UNTOLD,
    "test_q5_expired_messages_can_go_to_a_named_queue": UNTOLD,
    "test_q5_a_put_back_does_not_extend_the_deadline": UNTOLD,
    "test_q5_a_message_may_bring_its_own_deadline": "RabbitMQ ends what expired when it comes to the head of its queue",
    "test_q5_a_delay_past_the_deadline_ends_at_the_deadline": "what waits for its time ends when that comes",
    "test_q5_the_named_queue_is_created_when_it_is_missing": "it is made together with the queue that names it",
    "test_q7_holds_for_messages_from_other_queues": "sizes are looked at when a message is published",
    "test_m6_reprocess_a_selection[selection6-back6]": NUMBERS,
    "test_m6_parked_messages_are_listed_and_chosen_by_state_and_reason": NUMBERS,
    "test_m7_by_id_or_by_offset": NUMBERS,
    "test_l8_from_any_offset": NUMBERS,
    "test_q17_memory_queues_lose_their_messages_and_nothing_else": "they are lost with RabbitMQ, not with this process",
    "test_m6_parked_messages_survive_a_restart": PARKED,
    "test_forgotten_messages_are_gone": PARKED,
    "test_clear_all_takes_delayed_ones_too_and_leaves_what_is_in_flight": TIME,
    "test_b22_a_move_takes_what_waits_with_all_it_carries": TIME,
    "test_b22_what_waits_for_a_retry_is_chosen_by_its_reason": TIME,
    "test_b22_failed_messages_go_to_the_front": "RabbitMQ puts no message before others; the verb is refused by name",
    "test_b22_clear_keeps_history_and_says_who": TIME,
    "test_b22_reprocess_keeps_history_and_says_who": TIME,
    "test_q6_reject_new": LIMIT,
    "test_q6_a_batch_fills_the_queue_to_the_brim": LIMIT,
    "test_q6_what_is_in_flight_counts": LIMIT,
    "test_q6_exact_under_parallel_producers": LIMIT,
    "test_q6_errors_are_raised_where_they_are_awaited": LIMIT,
    "test_q19_message_timed_out": UNTOLD,
    "test_q6_delete_oldest": UNTOLD,
    "test_q6_delete_oldest_is_exact_under_parallel_producers": "what RabbitMQ evicts it parks a moment later",
    "test_q6_delete_oldest_spares_high_priority_while_it_can": "RabbitMQ evicts from the head, whatever the priority",
    "test_q6_nothing_in_flight_is_evicted": LIMIT,
    "test_q6_a_queue_full_of_messages_in_flight_refuses": LIMIT,
    "test_q6_the_limit_holds_after_a_restart": LIMIT,
    "test_q3_a_missing_answer_puts_back_on_time": "on time to 150 ms is more than a server over a network promises",
    "test_release_may_wait": "it looks into the log within 300 ms, which takes longer over a network",
}
"""Where RabbitMQ differs, as the tables of docs/rabbitmq.md say."""

REFUSED_WHOLLY = {
    "TestPush": "type",
    "TestConfirmations": "confirmations",
    "TestUniqueIds": "unique_ids",
    "TestPace": "delay_between_messages",
    "TestFlow": "ordered",
}
"""Classes all of which need what is refused; `test_refusals.py` proves that it is."""

ELSEWHERE = {"TestCompacter": "what repeats is told by the log, and delivered"}

DOOR = (
    "test_a_field_of_the_wrong_kind_is_refused_and_hurts_nothing", "test_an_unknown_or_impossible_option_is_refused",
    "test_columns_of_another_length_are_refused", "test_a_body_that_is_not_bytes_is_refused",
)  # fmt: skip
"""Tests of the door, which is the same for every broker and is proven with the embedded one."""

REFUSED = frozenset(
    {
        "auto_destroy", "byte_limit", "commit_when", "concurrency", "concurrency_per_key", "confirmations", "debounce",
        "delay_between_messages", "expired_queue", "fair", "flow_key", "group", "keep", "limit_exceeded", "limits",
        "max_priority", "max_wait", "message_limit", "message_timeout", "newest", "on_retry", "ordered", "persistence",
        "priority", "rate", "rate_per_key", "single_active_consumer", "singleton", "throttle", "type", "unique_ids",
        "weights",
    }
)  # fmt: skip
"""Features that are refused, as the tables of docs/rabbitmq.md say."""


def reason_to_skip(cls: str, name: str) -> str | None:
    """Why a test of the suite is not for RabbitMQ; None if it is."""
    if cls in REFUSED_WHOLLY:
        return f"refused: {REFUSED_WHOLLY[cls]}"
    if name.partition("[")[0] in DOOR:
        return "the door is the same for every broker"
    return ELSEWHERE.get(cls) or DIFFERS.get(name)
