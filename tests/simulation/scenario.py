"""What a seed makes of the world: how the broker is set up, which queues there are, who publishes what.

Every seed leaves some features out, so that the others meet more often.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Any, Final

import msgspec

from remuda.broker.options import BrokerOptions, Sync
from remuda.model.message import Message
from remuda.model.queues.options import (
    Acknowledge,
    AutoDestroy,
    CommitWhen,
    LimitExceeded,
    OnRetry,
    Persistence,
    PutBack,
    QueueOptions,
    QueueType,
    Singleton,
)
from remuda.model.values.durations import DAY, HOUR, MILLISECOND, SECOND

START: Final = 1_750_000_000 * SECOND
ROOTS: Final = ("apples", "pears", "plums", "limes")
WORDS: Final = ("red", "green", "sour")
DEAD_LETTERS: Final = "dead-letters"
ACTIONS: Final = (
    ("publish", 30),
    ("answer", 34),
    ("take", 22),
    ("pass_time", 16),
    ("subscribe", 7),
    ("unsubscribe", 3),
    ("set_credit", 2),
    ("pull", 14),
    ("declare", 2),
    ("configure", 2),
    ("set_status", 3),
    ("reprocess", 2),
    ("clear", 1),
    ("move", 2),
    ("declare_exchange", 1),
    ("bind", 2),
    ("publish_through", 6),
    ("forget", 1),
    ("remove_queue", 0.4),
    ("checkpoint", 3),
    ("seal", 2),
    ("collect", 1.5),
    ("crash", 3),
    ("arm_crash", 5),
    ("reopen", 1),
)
ALWAYS_ON: Final = frozenset({"publish", "answer", "take", "pass_time", "subscribe", "pull"})


AIMS: Final[tuple[dict[str, Any], ...]] = (
    {"type": QueueType.PUSH},
    {"type": QueueType.PULL},
    {"type": QueueType.PUSH, "confirmations": 2},
    {"acknowledge": Acknowledge.NONE},
    {"acknowledge": Acknowledge.JUST_REQUEST},
    {"commit_when": CommitWhen.SENT},
    {"commit_when": CommitWhen.ACKNOWLEDGED},
    {"commit_when": CommitWhen.NONE},
    {"put_back": PutBack.NO},
    {"put_back": PutBack.PRIORITY, "put_back_delay": 50 * MILLISECOND},
    {"delay_between_messages": 100 * MILLISECOND},
    {"client_limit": 2},
    {"message_size_limit": 60},
    {"message_limit": 10},
    {"message_limit": 10, "limit_exceeded": LimitExceeded.DELETE_OLDEST},
    {"message_timeout": 5 * SECOND, "expired_queue": "late"},
    {"dead_letter_queue": DEAD_LETTERS, "delivery_limit": 1},
    {"unique_ids": True},
    {"persistence": Persistence.MEMORY},
    {"auto_destroy": AutoDestroy.EMPTY},
)


class Aim:
    """What half of the seeds have more of, so that it meets: a few options, and a few things that are done."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._options = {name: value for one in random.sample(AIMS, 4) for name, value in one.items()}
        self.actions = frozenset(random.sample([name for name, _ in ACTIONS if name not in _DISTURBS], 5))
        self.fills = random.random() < 0.75
        """Whether the disk is often full."""

    def take(self, values: dict[str, Any]) -> None:
        """Most queues have its options."""
        if self._random.random() < 0.7:
            values.update(self._options)
        if values.get("confirmations", 1) != 1:
            values["type"] = QueueType.PUSH

    def name(self) -> str | None:
        """Of what is done, much is done to a few queues."""
        return self._random.choice((ROOTS[0], "channel-a", None, None))


_DISTURBS: Final = frozenset({"crash", "arm_crash", "reopen", "remove_queue", "collect", "seal"})


@dataclass(frozen=True)
class Features:
    """Which of the rarer things this seed's messages and queues have."""

    limits: bool
    deadlines: bool
    delays: bool
    unique: bool
    compacter: bool
    memory: bool
    destroys: bool
    channels: bool
    several_confirmations: bool
    clock_jumps_back: bool
    dead_letters: bool
    priorities: bool


class Scenario:
    """All random choices that do not depend on what happened so far."""

    def __init__(
        self, random: Random, rules: Random | None = None, aim: Aim | None = None, *, merges: bool = False
    ) -> None:
        self.random = random
        self.merges = merges
        """Whether rules want fewer messages of a key than are published."""
        self.aim = aim
        self.rules = rules
        """Chooses rules of flow, where queues have some."""
        self.routes: Random | None = None
        """Chooses when to publish through routers, where there are some."""
        self.features = Features(*(random.random() < 0.5 for _ in Features.__dataclass_fields__))
        if aim is not None:
            self.features = Features(*(random.random() < 0.8 for _ in Features.__dataclass_fields__))
        if rules is not None:
            self.features = replace(self.features, several_confirmations=False)
        self.plain = random.random() < 0.3 and aim is None
        """Whether queues have few rules and are mostly pulled from, which is where the core takes short cuts."""
        self.sync = random.choice((Sync.ALWAYS, Sync.ALWAYS, Sync.OS))
        self.broker = BrokerOptions(
            sync=self.sync,
            default_queue=random.choice((None, None, None, "rest")),
            queue_defaults=self.queue_options("defaults") if random.random() < 0.2 else QueueOptions(),
            compact=random.random() < 0.9,
            success_retention=random.choice((0, 10 * SECOND, DAY)),
            dead_retention=random.choice((0, 30 * SECOND, DAY)),
            segment_bytes=random.choice((1_500, 6_000, 30_000, 1 << 20)),
        )
        self.window = random.choice((3, 20, 1000))
        """How many messages are sent ahead to a consumer."""
        self.slice = random.choice((1, 2, 1000))
        """How much of what is due is done at once."""
        self.full_chance = random.choice((0.0, 0.0, 0.0, 0.05, 0.3))
        self.fault_chance = random.choice((0.0, 0.0, 0.0, 0.003, 0.02))
        if aim is not None and aim.fills:
            self.full_chance = 0.3
        self.unnoticed = 0.1 if aim is None else 0.6
        """How often time passes before anybody attends to what became due."""
        self.commits_late = random.choice((0.0, 0.3, 0.7))
        self.steps = random.choice((40, 80, 80, 160))
        kept = [(name, weight) for name, weight in ACTIONS if name in ALWAYS_ON or random.random() < 0.75 or aim]
        self._actions = [name for name, _ in kept]
        rare = {"subscribe", "declare", "configure", "set_status", "declare_exchange", "remove_queue", "clear"}
        factors = {**dict.fromkeys(rare, 0.1), "pull": 6} if self.plain else {}
        if aim is not None:
            factors = {name: 1 + 8 / weight for name, weight in kept if name in aim.actions}
            factors["remove_queue"] = 8
        self._weights = [weight * factors.get(name, 1) for name, weight in kept]
        self._published = 0
        self.opening = ["declare"] * random.randint(0, 6) + ["subscribe"] * (0 if self.plain else random.randint(0, 8))
        """What is done first, so that there is someone to deliver to."""
        if aim is not None:
            self.opening += ["declare_exchange"] * 2

    def action(self) -> str:
        if self.rules is not None and self.rules.random() < 0.04:
            return "pause_key"
        if self.routes is not None and self.routes.random() < 0.15:
            return "route"
        return self.random.choices(self._actions, self._weights)[0]

    # Queues

    def queue_options(self, name: str) -> QueueOptions:
        random, features = self.random, self.features
        some = self._chance
        kind = random.choice((QueueType.ROUND_ROBIN, QueueType.ROUND_ROBIN, QueueType.PUSH, QueueType.PULL))
        if self.plain and random.random() < 0.9:
            acknowledge = random.choice((Acknowledge.WAIT, Acknowledge.JUST_REQUEST))
            timeout = random.choice((SECOND, HOUR))
            return self._ruled({"type": kind, "acknowledge": acknowledge, "acknowledge_timeout": timeout})
        values: dict[str, Any] = {
            "type": kind,
            "acknowledge": random.choice(
                (Acknowledge.WAIT, Acknowledge.WAIT, Acknowledge.JUST_REQUEST, Acknowledge.NONE)
            ),
            "acknowledge_timeout": random.choice((SECOND, 15 * SECOND, HOUR)),
            "commit_when": random.choice(tuple(CommitWhen)),
            "put_back": random.choice(tuple(PutBack)),
            "put_back_delay": some(0.3 if features.delays else 0, random.choice((50 * MILLISECOND, 20 * SECOND)), 0),
            "delay_between_messages": some(0.1, 100 * MILLISECOND, 0),
            "client_limit": some(0.1, 2, 0),
            "message_size_limit": some(0.1, 60, 0),
            "queue_size": random.choice((0, 3, 500)),
        }
        if features.limits and some(0.6, True, False):
            values["message_limit"] = random.choice((1, 3, 10, 40))
            values["limit_exceeded"] = random.choice(tuple(LimitExceeded))
        if features.deadlines and some(0.5, True, False):
            values["message_timeout"] = random.choice((200 * MILLISECOND, 5 * SECOND, HOUR))
            values["expired_queue"] = random.choice((None, "late", name))
        if features.dead_letters:
            values["dead_letter_queue"] = random.choice((None, DEAD_LETTERS, "late", name))
            values["delivery_limit"] = random.choice((0, 0, 1, 3))
        if features.unique:
            values["unique_ids"] = some(0.6, True, False)
        if features.memory and some(0.4, True, False):
            values["persistence"] = Persistence.MEMORY
        if features.destroys and some(0.4, True, False):
            values["auto_destroy"] = random.choice(tuple(AutoDestroy))
        if features.several_confirmations and kind is QueueType.PUSH:
            values["confirmations"] = random.choice((0, 1, 2, 3))
        if self.aim is not None:
            self.aim.take(values)
        return self._ruled(values)

    def _ruled(self, values: dict[str, Any]) -> QueueOptions:
        """Options, with rules of flow where this seed has them."""
        rules = self.rules
        if rules is None or rules.random() < 0.3:
            return QueueOptions(**values)
        if values["acknowledge"] is Acknowledge.NONE:
            values["acknowledge"] = Acknowledge.WAIT
        values["ordered"] = rules.random() < 0.4
        values["on_retry"] = rules.choice(tuple(OnRetry))
        values["fair"] = rules.random() < 0.4
        values["flow_key"] = rules.choice(("key", "key", "header:trace"))
        if rules.random() < 0.3:
            values["concurrency"] = rules.choice((1, 3, 5))
        if rules.random() < 0.3:
            values["rate"] = rules.choice(("5/s", "20/s burst 4", "10/min burst 3"))
        if rules.random() < 0.3:
            values["rate_per_key"] = rules.choice(("5/s", "20/min burst 3"))
        if rules.random() < 0.3:
            values["limits"] = (f"one={rules.choice((1, 2, 4))}",)
        elif rules.random() < 0.3:
            values["limits"] = (f"two={rules.choice(('5/s burst 2', '1/s'))}",)
        if rules.random() < 0.2:
            values["weights"] = ("a=3",)
        if rules.random() < 0.4 and not values["ordered"]:
            values["concurrency_per_key"] = rules.choice((1, 2))
            values["key_limits"] = rules.choice(((), (), ("a=3",), ("b=1/s burst 2",)))
        if self.merges:
            self._merge(values, rules)
        return QueueOptions(**values)

    @staticmethod
    def _merge(values: dict[str, Any], rules: Random) -> None:
        """One message of a key instead of many."""
        match rules.randrange(8):
            case 0 | 1:
                values["debounce"] = rules.choice((SECOND, 5 * SECOND))
                values["max_wait"] = rules.choice((0, 8 * SECOND))
            case 2:
                values["throttle"] = rules.choice((SECOND, 30 * SECOND))
            case 3 | 4 | 5:
                values["singleton"] = rules.choice((Singleton.REFUSE, Singleton.SKIP, Singleton.REPLACE))

    def channel_options(self, name: str) -> QueueOptions:
        prefixes = self.random.sample([*ROOTS, *(f"{root}.{word}" for root in ROOTS for word in WORDS)], 2)
        changed = {"topics": tuple(prefixes), "expired_queue": None}
        return self.queue_options(name).changed(changed)

    def changes(self, options: QueueOptions) -> dict[str, Any]:
        """Some options of a live queue, set anew."""
        other = self.queue_options("late")
        names = [
            "acknowledge_timeout", "put_back", "message_limit", "limit_exceeded", "message_timeout",
            "message_size_limit", "acknowledge", "delay_between_messages", "client_limit", "delivery_limit",
            "dead_letter_queue",
        ]  # fmt: skip
        if options.type is QueueType.PUSH and self.features.several_confirmations:
            other = msgspec.structs.replace(other, confirmations=self.random.randrange(4))
            names.append("confirmations")
        if self.rules is not None:
            names.remove("acknowledge")
            names += ["rate", "rate_per_key", "fair"]
            names += [] if options.acknowledge is Acknowledge.NONE else ["concurrency", "limits"]
        chosen = self.random.sample(names, self.random.randint(1, 3))
        if self.rules is not None and options.acknowledge is not Acknowledge.NONE and self.rules.random() < 0.3:
            chosen += self._rules_of_keys()
        durations = {
            "acknowledge_timeout", "message_timeout", "delay_between_messages", "debounce", "max_wait", "throttle"
        }  # fmt: skip
        values = {name: getattr(other, name) for name in chosen}
        # Bare numbers are seconds where people write them.
        return {name: f"{value}us" if name in durations else value for name, value in values.items()}

    def _rules_of_keys(self) -> list[str]:
        """Rules of keys that are switched on or off on a live queue, as far as they do not contradict each other."""
        assert self.rules is not None
        names = ["ordered", "on_retry", "flow_key", "concurrency_per_key", "key_limits", "weights"]
        chosen = [name for name in names if self.rules.random() < 0.3]
        if "ordered" in chosen or "key_limits" in chosen:
            chosen = [*dict.fromkeys([*chosen, "ordered", "concurrency_per_key", "key_limits"])]
        if self.merges and self.rules.random() < 0.5:
            chosen += ["debounce", "max_wait", "throttle", "singleton"]
        return chosen

    def name(self) -> str:
        """A queue or channel, which may exist."""
        aimed = None if self.aim is None else self.aim.name()
        if aimed is not None:
            return aimed
        if self.plain:
            return self.random.choice((ROOTS[0], ROOTS[0], ROOTS[1]))
        return self.random.choice((*ROOTS, *ROOTS, "rest", "late", DEAD_LETTERS, "channel-a", "channel-b"))

    # Messages

    def batch(self, now: int) -> list[Message]:
        if self.random.random() < (0.8 if self.plain else 0.2):
            return self._keyed([Message(self.topic(), b"%d" % self.random.randrange(1000), priority=self.priority())])
        count = self.random.choice((1, 1, 1, 2, 3, 5, 12, 50))
        shared = self.message(now) if self.random.random() < 0.5 else None
        return self._keyed([self._numbered(shared or self.message(now)) for _ in range(count)])

    def _keyed(self, batch: list[Message]) -> list[Message]:
        """Messages with keys, and some that count as several, where queues have rules of flow."""
        rules = self.rules
        if rules is None:
            return batch
        made = []
        for message in batch:
            headers = dict(message.headers)
            if rules.random() < 0.1:
                headers["remuda-flow-weight"] = "3"
            if rules.random() < 0.1:
                headers["remuda-flow-key"] = rules.choice("abd")
            key = message.key if message.object is not None else rules.choice((None, "a", "a", "b", "c"))
            made.append(msgspec.structs.replace(message, key=key, headers=headers))
        return made

    def message(self, now: int) -> Message:
        random, features = self.random, self.features
        topics: tuple[str, ...] = ()
        if random.random() < 0.25:
            topics = tuple(self.topic() for _ in range(random.randint(1, 3)))
        return Message(
            name=self.topic(),
            body=b"",
            topics=topics,
            priority=self.priority(),
            headers={} if random.random() < 0.7 else {"trace": str(random.randrange(3))},
            mime_type=random.choice(("application/octet-stream", "application/octet-stream", "text/plain")),
            timestamp=None if random.random() < 0.8 else now - random.randrange(SECOND),
            expires=self._later(now, 0.25 if features.deadlines else 0),
            due=self._later(now, 0.25 if features.delays else 0),
            object=random.choice((None, "fruit")) if features.compacter else None,
            key=random.choice((None, "a", "b")) if features.compacter else None,
        )

    def priority(self) -> int:
        if self.random.random() < 0.7:
            return 0
        return self.random.randrange(32) if self.features.priorities else 10

    def topic(self) -> str:
        root = self.random.choice(ROOTS[:2] if self.plain else ROOTS)
        return root if self.random.random() < 0.6 else f"{root}.{self.random.choice(WORDS)}"

    def _numbered(self, message: Message) -> Message:
        """The message with a body of its own, and sometimes an id of its own."""
        self._published += 1
        random = self.random
        if message.key is not None and random.random() < 0.7:
            body = random.choice((b"one", b"two"))
        else:
            body = b"%d-" % self._published + b"x" * random.choice((0, 3, 10, 80))
        own = ""
        if random.random() < (0.5 if self.features.unique else 0.1):
            own = f"own-{random.randrange(12)}" if self.features.unique else f"own-{self._published}"
        return Message(
            **{**{name: getattr(message, name) for name in message.__struct_fields__}, "body": body, "id": own}
        )

    # Time

    def pause(self) -> int:
        """How the clock moves on."""
        random = self.random
        if self.features.clock_jumps_back and random.random() < 0.1:
            return -random.choice((SECOND, HOUR, 3 * DAY))
        longest = random.choice((MILLISECOND, 200 * MILLISECOND, 2 * SECOND, 2 * SECOND, 30 * SECOND, 2 * HOUR))
        return random.randint(1, longest)

    def _later(self, now: int, chance: float) -> int | None:
        if self.random.random() >= chance:
            return None
        return now + self.random.choice((-SECOND, 1, 100 * MILLISECOND, 5 * SECOND, HOUR))

    def _chance(self, chance: float, yes: Any, no: Any) -> Any:
        return yes if self.random.random() < chance else no
