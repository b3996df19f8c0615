"""Topic names (T1, B10): dotted words. The root is the word before the first dot."""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

from remuda.model.errors import InvalidMessage

MAX_TOPIC_BYTES: Final = 255
WILDCARDS: Final = frozenset({"*", "#"})
"""In a pattern `*` stands for one word and `#` for any number; inside a word they are ordinary characters."""


def root(topic: str) -> str:
    return topic.partition(".")[0]


def check_topic(topic: str) -> None:
    """Raise `InvalidMessage` for a topic that no queue could be named after."""
    if not topic or not root(topic):
        raise InvalidMessage(f"topic {topic!r} has no root before its first dot; nothing was stored")
    if len(topic.encode("utf-8", "surrogatepass")) > MAX_TOPIC_BYTES:
        raise InvalidMessage(f"topic {topic[:40]!r}… is longer than {MAX_TOPIC_BYTES} bytes; nothing was stored")
    if not topic.isprintable():
        raise InvalidMessage(f"topic {topic!r} contains unprintable characters; nothing was stored")


def stem_of(prefix: str) -> str:
    """The topic that a channel's prefix covers with all below it: `fruit` for `fruit` and `fruit.*`; empty for all."""
    return prefix.removesuffix(".*").removesuffix("*").rstrip(".")


def has_prefix(topic: str, prefix: str) -> bool:
    """Whether `topic` is `prefix` or lies below it: `fruit`, or `fruit.*`, covers `fruit.sour`, not `fruits.x`."""
    stem = stem_of(prefix)
    return not stem or topic == stem or topic.startswith(stem + ".")


class TopicPrefix(NamedTuple):
    """Topics by their beginning, in any case, as a search asks for them.

    `fruit` and `fruit.*` are the topic itself and all below it; `fru*` is every topic that begins with these letters.
    """

    stem: str
    below: bool

    @classmethod
    def parse(cls, text: str) -> TopicPrefix | None:
        """None for `*` and `.*`, which every topic fits."""
        stem = text.casefold()
        below = stem.endswith(".*") or not stem.endswith("*")
        stem = stem.removesuffix(".*").rstrip(".") if below else stem.rstrip("*")
        return cls(stem, below) if stem else None

    def covers(self, topic: str) -> bool:
        folded = topic.casefold()
        if not self.below:
            return folded.startswith(self.stem)
        return folded == self.stem or folded.startswith(self.stem + ".")


@lru_cache(maxsize=4096)
def matches(pattern: str, topic: str) -> bool:
    """Whether `topic` fits a pattern in which `*` is one word and `#` is zero or more."""
    return _match(split_topic(pattern), split_topic(topic))


def split_topic(text: str) -> list[str]:
    """The words of a topic or a pattern; an empty one has none, so `*` does not fit it."""
    return text.split(".") if text else []


def _match(pattern: list[str], words: list[str]) -> bool:
    # One row of the usual table: reached[i] says whether the words so far fit the first i parts of the pattern.
    reached = [True] + [False] * len(pattern)
    for index, part in enumerate(pattern):
        reached[index + 1] = reached[index] and part == "#"
    for word in words:
        before, reached = reached, [False] * (len(pattern) + 1)
        for index, part in enumerate(pattern):
            if part == "#":
                reached[index + 1] = reached[index] or before[index + 1]
            else:
                reached[index + 1] = before[index] and part in ("*", word)
    return reached[-1]
