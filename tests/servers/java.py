"""RabbitMQ's own client for Java, as the Java example of CAP's documentation uses it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_JARS = Path("/usr/share/java")
_NEEDED = ("amqp-client.jar", "slf4j-api.jar")


@contextmanager
def cap_client(url: str, topic: str, body: str, callback: str) -> Iterator[subprocess.Popen[str]]:
    """A program that publishes a message as a Java system does. It prints the message's id, and the answer that it
    receives in a group queue of its own: to whom, in which place, under which name, and the body."""
    jars = [_JARS / name for name in _NEEDED]
    if shutil.which("javac") is None or not all(jar.exists() for jar in jars):
        if os.environ.get("CI") == "true":
            pytest.fail("CI skips nothing: tools/setup.sh installs a JDK and RabbitMQ's client for Java")
        pytest.skip("there is no JDK with RabbitMQ's client for Java here; tools/setup.sh installs both")
    source = Path(__file__).with_name("CapClient.java")
    command = ["java", "-cp", ":".join(map(str, jars)), str(source), url.rstrip("/"), topic, body, callback]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def printed(process: subprocess.Popen[str]) -> list[str]:
    """What it prints until it ends well."""
    out, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    return out.splitlines()
