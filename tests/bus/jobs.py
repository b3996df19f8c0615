"""Handlers that run in processes of their own: they are found by name there, so they live at the top of a module."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sys
import threading
import time
from pathlib import Path

import msgspec

from remuda import Attempt, Bus, Message, Middleware, Response


class Marks(Middleware):
    """Leaves a mark on whatever is published."""

    def before_publish(self, message: Message) -> Message:
        headers = {**message.headers, "marks": message.headers.get("marks", "") + "+"}
        return msgspec.structs.replace(message, headers=headers)


bus = Bus("memory://", middleware=[Marks()])
"""Which bus a handler publishes through does not matter in a process: its parent does it."""


def note(path: str, text: str) -> None:
    with open(path, "a") as file:
        file.write(text + "\n")


def notes(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def write(job: dict[str, str]) -> str:
    """Say who handled it."""
    note(job["path"], f"{job.get('name', '')} {os.getpid()}")
    return job.get("name", "")


async def write_async(job: dict[str, str]) -> str:
    await asyncio.sleep(0)
    return write(job)


def die_if_told(job: dict[str, str], attempt: Attempt) -> None:
    note(job["path"], f"{job['name']} {attempt}")
    match job.get("how"):
        case "exit":
            os._exit(7)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "abort":
            os.abort()
        case "sys.exit":
            sys.exit(3)
        case "interrupt":
            raise KeyboardInterrupt
        case "memory":
            eat_memory()
        case "once" if attempt == 1:
            os._exit(1)


def eat_memory() -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limit = used + (256 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    hoard = [bytearray(1 << 20) for _ in range(100_000)]
    raise AssertionError(f"{len(hoard)} MB were to be had")


def sleep(job: dict[str, str]) -> None:
    note(job["path"], "began")
    time.sleep(float(job["seconds"]))
    note(job["path"], "ended")


def wait_if_told(job: dict[str, str]) -> None:
    while "until" in job and not Path(job["until"]).exists():
        time.sleep(0.01)
    write(job)


def deadlock(job: dict[str, str]) -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def fork_and_return(job: dict[str, str]) -> str:
    """Both the original and the copy come back from here."""
    pid = os.fork()
    note(job["path"], f"{job['name']} {'copy' if pid == 0 else 'original'}")
    if pid:
        os.waitpid(pid, 0)
    return "copy" if pid == 0 else "original"


def fork_and_die(job: dict[str, str], attempt: Attempt) -> None:
    """The copy lives on and keeps every pipe open, the original dies."""
    if attempt > 1:
        return
    if os.fork() == 0:
        time.sleep(5)
        os._exit(0)
    os._exit(9)


def publish(job: dict[str, str], response: Response) -> str:
    response.headers["by"] = "process"
    return bus.publish("job.published", {"from": "process"})


async def publish_async(job: dict[str, str]) -> str:
    return await bus.publish_async("job.published", {"from": "process"})


def publish_from_thread(job: dict[str, str]) -> None:
    """It comes back before its thread has published."""
    threading.Timer(0.2, lambda: bus.publish("job.published", {"from": "thread"})).start()


def ask_for_broker(job: dict[str, str]) -> None:
    bus.broker.queues()


def reply_or_die(job: dict[str, str], response: Response) -> str:
    """Reply, fail or die, as told."""
    note(job["path"], job["name"])
    match job.get("how"):
        case "exit":
            os._exit(7)
        case "raise":
            raise ValueError(job["name"])
        case "sleep":
            time.sleep(60)
        case "odd":
            response.headers["odd"] = lambda: None  # type: ignore[assignment]
    return job["name"] * int(job.get("times", "1"))


def die_later(job: dict[str, str]) -> None:
    """The call ends well. The process dies after it, when it comes to the function that the job names."""
    note(job["path"], job["name"])
    if "at" in job:
        sys.setprofile(lambda frame, event, _: (event, frame.f_code.co_name) == ("call", job["at"]) and os._exit(5))


def fork_and_interrupt(job: dict[str, str]) -> None:
    pid = os.fork()
    if pid == 0:
        raise KeyboardInterrupt
    note(job["path"], str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])))


class Fragile(msgspec.Struct):
    """Can bring down whoever decodes it."""

    path: str
    name: str
    how: str = ""

    def __post_init__(self) -> None:
        if self.how == "exit":
            os._exit(4)


def many_fragile(fragile: list[Fragile]) -> None:
    for each in fragile:
        note(each.path, each.name)


def many(jobs: list[dict[str, str]]) -> list[str]:
    return [write(job) for job in jobs]


def linger(path: str) -> None:
    note(path, "ran")
    time.sleep(3.0)


def fail(number: int) -> None:
    raise ValueError("no")


def double(number: int) -> int:
    return 2 * number


async def double_async(number: int) -> int:
    return 2 * number
