"""`python -m tests.pairs [PLACE [FIRST [COUNT]]]`: all pairs of features at every place, or scenes by their number.

Places are `broker`, and those of the bus: `testing`, `memory`, `directory`, `shared` and `rabbitmq`.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from tests.pairs import bus, places, scenes
from tests.servers.rabbitmq import Janitor, end_node, start_node

Play = Callable[[int], bool]
"""Plays the scene of a number; returns whether the place offers what it is about."""


def at_broker(number: int) -> bool:
    scenes.Scene(number).play()
    return True


def at_bus(place: Callable[[], places.Place]) -> Play:
    return lambda number: bus.Scene(number, place()).play()


@contextmanager
def on_rabbitmq() -> Iterator[Play]:
    node = start_node()
    janitor = Janitor(node.url)

    def play(number: int) -> bool:
        janitor.wipe(used=False)
        return bus.Scene(number, places.OnRabbitMQ(node.url)).play()

    try:
        yield play
    finally:
        janitor.wipe()
        janitor.close()
        end_node(node)


def played(name: str, stack: ExitStack) -> tuple[Play, int, int]:
    """How scenes are played at a place, how many pairs there are, and how many scenes are all of them."""
    pairs, bus_pairs = len(scenes.PAIRS), len(bus.PAIRS)
    match name:
        case "broker":
            return at_broker, pairs, 4 * pairs
        case "testing":
            return at_bus(places.UnderTest), bus_pairs, 2 * bus_pairs
        case "memory":
            return at_bus(places.InMemory), bus_pairs, bus_pairs
        case "directory":
            return at_bus(places.InDirectory), bus_pairs, bus_pairs
        case "shared":
            return at_bus(places.Shared), bus_pairs, bus_pairs
        case "rabbitmq":
            return stack.enter_context(on_rabbitmq()), bus_pairs, bus_pairs
    raise SystemExit(f"there is no place {name!r}; they are broker, testing, memory, directory, shared and rabbitmq")


def main(arguments: list[str]) -> int:
    logging.disable(logging.CRITICAL)  # handlers fail on purpose
    names = arguments[:1] or ["broker", "testing", "memory", "directory", "shared", "rabbitmq"]
    first = int(arguments[1]) if len(arguments) > 1 else 0
    failed = 0
    for name in names:
        with ExitStack() as stack:
            play, pairs, count = played(name, stack)
            if len(arguments) > 1:
                count = int(arguments[2]) if len(arguments) > 2 else 1
            offered = broken = 0
            for number in range(first, first + count):
                try:
                    offered += play(number)
                except Exception as error:
                    broken += 1
                    text = error if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
                    print(f"{text}\n  again: python -m tests.pairs {name} {number}", flush=True)
            print(f"{name}: {count} scenes over {pairs} pairs, {offered} offered there, {broken} broken", flush=True)
            failed += broken
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
