"""A worker of workflows that is killed over and over: `python -m tests.faults.workflow_victim DIRECTORY EXECUTOR`."""

from __future__ import annotations

import os
import sys
import time
from functools import partial
from typing import Any

from remuda import Bus, Run

EFFECTS = os.environ.get("WORKFLOW_EFFECTS", os.devnull)
PAUSE = 0.004


def effect(text: str) -> str:
    """Something that lasts, one line each, however the process ends."""
    handle = os.open(EFFECTS, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(handle, f"{text}\n".encode())
    os.close(handle)
    time.sleep(PAUSE)
    return text


async def effect_async(text: str) -> str:
    return effect(text)


def order(run: Run, body: dict[str, Any]) -> list[Any]:
    name = body["name"]
    made = [run.step(effect, f"{name} charge", name="charge", undo=partial(undone, name))]
    run.sleep("20ms")
    made += run.gather(partial(effect, f"{name} left"), partial(effect, f"{name} right"))
    made.append(run.wait_for("approved", key=name))
    made += [one.value for one in run.group([("double", 1), ("double", 2)])]
    made.append(run.step(effect, f"{name} ship", name="ship"))
    if body["fails"]:
        raise RuntimeError("no truck")
    return made


async def order_async(run: Run, body: dict[str, Any]) -> list[Any]:
    name = body["name"]
    made = [await run.step(effect_async, f"{name} charge", name="charge", undo=partial(undone, name))]
    await run.sleep("20ms")
    made += await run.gather(partial(effect_async, f"{name} left"), partial(effect_async, f"{name} right"))
    made.append(await run.wait_for("approved", key=name))
    made += [one.value for one in await run.group([("double", 1), ("double", 2)])]
    made.append(await run.step(effect_async, f"{name} ship", name="ship"))
    if body["fails"]:
        raise RuntimeError("no truck")
    return made


def undone(name: str, value: str) -> None:
    effect(f"{name} undo")


def double(n: int) -> int:
    return 2 * n


def app(directory: str, executor: str) -> Bus:
    bus = Bus(directory)
    function: Any = order_async if executor == "asyncio" else order
    # Several at once, and each kill takes a few of them in the middle of something.
    bus.workflow(name="order", waits_for="approved", executor=executor, threads=3, retry="never")(function)
    bus.subscribe("double", queue="double", executor="threads", threads=2, retry=["10ms"] * 50)(double)
    return bus


def main() -> None:
    app(sys.argv[1], sys.argv[2]).run()


if __name__ == "__main__":
    main()
