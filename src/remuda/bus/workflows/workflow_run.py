"""A run with what it says to others, and hears from them: messages, groups, waits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from remuda.bus.handlers.context import child_headers
from remuda.bus.publishing import bodies
from remuda.bus.publishing import headers as names
from remuda.bus.publishing.message_checks import check_target
from remuda.bus.publishing.publish_options import PublishOptions, read_publish_options
from remuda.bus.workflows import numbers
from remuda.bus.workflows.definition import Family
from remuda.bus.workflows.errors import MembersFailed, StepFailed, WaitTimeout
from remuda.bus.workflows.history import StepRecord
from remuda.bus.workflows.link import Link
from remuda.bus.workflows.mailbox import RENEWED, Waiter
from remuda.bus.workflows.run import FOREVER, RecordedRun, Steps
from remuda.bus.workflows.told import topic_for
from remuda.bus.workflows.work import NO_BODY, Call, Chain, Work, bound, from_bytes, read_policy, to_bytes
from remuda.model.errors import InvalidOption
from remuda.model.message import Message
from remuda.model.notes import Note
from remuda.model.values.durations import Duration
from remuda.model.values.option_reading import read_duration
from remuda.model.values.texts import read_optional_text, read_text, shown

CANVAS_TOPIC = "workflow.remuda.canvas"


class MemberResult(msgspec.Struct, frozen=True):
    """What became of a member of a group."""

    ok: bool
    value: Any = None
    error_type: str | None = None
    error: str | None = None


class Run(RecordedRun):
    """What a workflow's function gets first."""

    def __init__(self, family: Family, link: Link, place: Note, message: Message, *, is_async: bool) -> None:
        super().__init__(link, place, message, family.name, encoding=family.encoding, is_async=is_async)
        self._family = family

    def publish(self, topic: str, body: Any = None, **options: Any) -> Any:
        """Publish a message exactly once, and return its id: it is stored together with the record of this step."""
        check_target("topic", topic)
        return self._do(self._publishing(self._open(topic, "publish"), topic, body, options))

    def call(
        self, topic: str, body: Any = None, *, result: Any = Any, timeout: Duration | None = None, **options: Any
    ) -> Any:
        """Publish a message, wait until it is handled, wherever that is, and return what its handler returned. Raises
        `StepFailed` if it ended without success, and `WaitTimeout` if it took longer."""
        check_target("topic", topic)
        for name in ("callback", "failure_callback"):
            if name in options:
                raise InvalidOption(f"run.call takes no {name}: the answer comes to the run")
        bodies.read_wanted("result", result)
        return self._do(self._calling(self._open(topic, "call"), topic, body, result, _length(timeout), options))

    def group(
        self,
        members: Iterable[Work | tuple[str, Any] | str],
        *,
        policy: str | int = "all",
        timeout: Duration | None = None,
        name: str = "group",
    ) -> Any:
        """Publish many messages at once, and wait for them. Returns a `MemberResult` for each, in this order; raises
        `MembersFailed` if fewer succeeded than the policy asks for: `all`, `any`, or a number."""
        if isinstance(members, str | bytes) or not isinstance(members, Iterable):
            raise InvalidOption(f"members must be a list of (topic, body), not {shown(members)}")
        read_text("name", name)
        works = [_as_work(one, self._encoding) for one in members]
        if len(works) > numbers.MEMBERS:
            raise InvalidOption(f"a group has at most {numbers.MEMBERS} members, not {len(works)}")
        wanted = read_policy(policy, len(works))
        return self._do(self._grouping(self._open(name, "group"), name, works, wanted, _length(timeout)))

    def wait_for(
        self, topic: str, *, key: str | None = None, timeout: Duration | None = None, result: Any = Any
    ) -> Any:
        """Wait for a message under this topic with this key, for days if need be, and return its body. One that came
        since the run began counts. Raises `WaitTimeout` if none comes."""
        check_target("topic", topic)
        read_optional_text("key", key)
        full = self._family.prefix + topic
        if full not in self._family.topics_awaited:
            raise InvalidOption(
                f"workflow {self._workflow} waits for {shown(topic)}, which it does not declare; without that, a "
                f"message that comes before the wait would be missed: @bus.workflow(waits_for=({topic!r},))"
            )
        bodies.read_wanted("result", result)
        return self._do(self._waiting(self._open(topic, "wait"), full, key, result, _length(timeout)))

    # Machinery

    def _message_for(self, number: int, topic: str, body: Any, options: PublishOptions, row: int = 0) -> Message:
        inherited = child_headers(self._message.headers, self._message.id)
        named = options if options.id else msgspec.structs.replace(options, id=self._own_id(number, row))
        made = named.messages(self._family.prefix + topic, (body,), inherited, self._encoding, self._link.now())
        return made[0]

    def _own_id(self, number: int, row: int = 0) -> str:
        return f"{self._place.offset}.{self.history.epoch}.{number}.{row}@{self.id}"[:255]

    def _publishing(self, number: int, topic: str, body: Any, options: dict[str, Any]) -> Steps:
        found = self.history.get(number)
        if found is None:
            yield from self._look()
            message = self._message_for(number, topic, body, read_publish_options(options))
            found = yield from self.record(number, "publish", topic, message.id, others=[message])
        return found.value()

    def _told(self, number: int, row: int = 0) -> dict[str, str]:
        """The headers by which the run hears of a message's end, whatever that is."""
        own = self.history.epoch * numbers.EPOCH + numbers.member(number, row)
        topic = topic_for(self._place, own)
        return {names.CALLBACK: topic, names.FAILURE_CALLBACK: topic}

    def _calling(
        self, number: int, topic: str, body: Any, wanted: Any, limit: int | None, options: dict[str, Any]
    ) -> Steps:
        found = self.history.get(number)
        if found is None:
            yield from self._look()
            message = self._message_for(number, topic, body, read_publish_options(options))
            message = msgspec.structs.replace(message, headers={**message.headers, **self._told(number)})
            due = self._link.now() + (FOREVER if limit is None else limit)
            found = yield from self.record(number, "call", topic, {"due": due}, others=[message])
        answer = self.history.get(numbers.member(number, 0))
        was_recorded = self.history.get(numbers.outcome(number)) is not None
        if not was_recorded:
            if answer is not None:
                if answer.error is not None:
                    text = answer.body.decode("utf-8", "replace")
                    raise self.failure(number, StepFailed(topic, answer.error, text), True)
                return answer.value(wanted)
            left = found.value()["due"] - self._link.now()
            self.before_waiting()
            if left > 0:
                raise self._end(self.suspended(f"waiting for the answer to {topic}", left))
            yield from self.record(numbers.outcome(number), "timeout", topic, None)
        raise self.failure(number, WaitTimeout(f"no answer to {topic} came in time"), was_recorded)

    def _grouping(self, number: int, name: str, works: list[Work], policy: str | int, limit: int | None) -> Steps:
        count = len(works)
        found = self.history.get(number)
        if found is None:
            yield from self._look()
            members = [self._member(number, row, work) for row, work in enumerate(works)]
            due = self._link.now() + (FOREVER if limit is None else limit)
            found = yield from self.record(number, "group", name, {"due": due, "count": count}, others=members)
        told = found.value()
        count = told["count"]
        answers = [self.history.get(numbers.member(number, row)) for row in range(count)]
        decided = self.history.get(numbers.outcome(number))
        was_recorded = True
        if decided is not None:
            counted = set(decided.value())
            answers = [answer if row in counted else None for row, answer in enumerate(answers)]
        else:
            ended = [row for row, answer in enumerate(answers) if answer is not None]
            good = sum(answer is not None and answer.error is None for answer in answers)
            needed = count if policy == "all" else 1 if policy == "any" else int(policy)
            left = told["due"] - self._link.now()
            if len(ended) < count and (policy == "all" or good < needed) and left > 0:
                self.before_waiting()
                missing = count - len(ended) if policy == "all" else min(needed - good, count - len(ended))
                waits = self.suspended(f"waiting for {count - len(ended)} of {count} members of {name}", left)
                waits.awaits = self.history.count + missing
                raise self._end(waits)
            if len(ended) < count:
                self.before_waiting()
                was_recorded = False
                yield from self.record(numbers.outcome(number), "decided", name, ended)
        results = [_result(answer) for answer in answers]
        good = sum(one.ok for one in results)
        needed = count if policy == "all" else min(1, count) if policy == "any" else int(policy)
        if good < needed:
            first = next((one for one in results if not one.ok), None)
            why = "" if first is None else f"; the first: {first.error_type}: {first.error}"
            text = f"{good} of {count} members of {name} succeeded, of {needed} needed{why}"
            raise self.failure(number, MembersFailed(text, list(results)), was_recorded)
        return results

    def _member(self, number: int, row: int, work: Work) -> Message:
        told = self._told(number, row)
        inherited = {**child_headers(self._message.headers, self._message.id), **told}
        own = self._own_id(number, row)
        if isinstance(work, Call):
            body = b"null" if work.body is None else work.body
            topic = self._family.prefix + work.topic
            return Message(topic, body, id=own, mime_type=work.mime_type, headers=inherited)
        topic = self._family.prefix + CANVAS_TOPIC
        return Message(topic, to_bytes(work), id=own, mime_type=bodies.RAW, headers=inherited)

    def _waiting(self, number: int, topic: str, key: str | None, wanted: Any, limit: int | None) -> Steps:
        found = self.history.get(number)
        if found is None:
            yield from self._look()
            due = self._link.now() + (FOREVER if limit is None else limit)
            found = yield from self.record(number, "wait", topic.removeprefix(self._family.prefix), {"due": due})
        ended = self.history.get(numbers.outcome(number)) or self.history.get(numbers.signal(number))
        was_recorded = ended is not None
        if ended is None:
            self.before_waiting()
            own = self.history.beside(number, numbers.signal(number))
            waiter = Waiter(self._place.queue, self._place.offset, own, self._place.offset)
            left = found.value()["due"] - self._link.now()
            signal = yield self._link.mailbox("wait" if left > 0 else "leave", topic, key, waiter)
            if signal is not None:
                ended = yield from self.record(numbers.outcome(number), "came", topic, (signal.body, signal.mime_type))
            elif left > 0:
                raise self._end(self.suspended(f"waiting for {topic}", min(left, RENEWED)))
            else:
                ended = yield from self.record(numbers.outcome(number), "timeout", topic, None)
        if ended.kind == "timeout":
            raise self.failure(number, WaitTimeout(f"no message came under {topic} in time"), was_recorded)
        return ended.value(wanted)


def _length(timeout: Duration | None) -> int | None:
    return None if timeout is None else read_duration("timeout", timeout)


def _as_work(one: Any, encoding: str) -> Work:
    if isinstance(one, str):
        return Call(one)
    if isinstance(one, tuple) and len(one) == 2 and isinstance(one[0], str):
        return Call(one[0], *bodies.encode(one[1], encoding))
    if isinstance(one, Work):
        return one
    raise InvalidOption(f"a member must be (topic, body), a topic, call(…), chain(…) or group(…), not {shown(one)}")


def _result(answer: StepRecord | None) -> MemberResult:
    if answer is None:
        return MemberResult(False, None, "Unfinished", "it had not ended when the group was decided")
    if answer.error is not None:
        return MemberResult(False, None, answer.error, answer.body.decode("utf-8", "replace"))
    return MemberResult(True, answer.value())


def perform(run: Run, body: bytes) -> Any:
    """The workflow behind a published chain or group."""
    return _perform(run, from_bytes(body), NO_BODY)


def _perform(run: Run, work: Work, given: Any) -> Any:
    if isinstance(work, Call):
        value = given if work.body is None else bodies.decode(work.body, work.mime_type)
        return run.call(work.topic, None if value is NO_BODY else value)
    if isinstance(work, Chain):
        for part in work.parts:
            given = _perform(run, part, given)
        return given
    members = work.members if given is NO_BODY else [bound(one, *bodies.encode(given)) for one in work.members]
    results = run.group(members, policy=work.policy)
    return [one.value if one.ok else {"error": one.error, "error_type": one.error_type} for one in results]
