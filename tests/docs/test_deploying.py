"""The unit files and manifests of docs/deploying.md are well formed, agree with each other, and start what they say."""

from __future__ import annotations

import configparser
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

import remuda

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "deploying.md").read_text()
UNITS = re.findall(r"^```ini\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
MANIFESTS = [
    manifest
    for block in re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    for manifest in yaml.safe_load_all(block)
]
BUS = re.search(r'Bus\("(/[^"]+)"\)', PAGE)
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(remuda.__file__).parent.parent)}


def unit(number: int) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None)
    parser.read_string(UNITS[number])
    return parser


def manifest(kind: str) -> dict[str, Any]:
    return next(found for found in MANIFESTS if found["kind"] == kind)


def pod() -> dict[str, Any]:
    spec: dict[str, Any] = manifest("Deployment")["spec"]["template"]["spec"]
    return spec


def container() -> dict[str, Any]:
    (only,) = pod()["containers"]
    return dict(only)


def commands() -> list[list[str]]:
    """Each call of remuda on the page, from its first word."""
    found = [unit(number)["Service"]["ExecStart"] for number in range(len(UNITS))]
    found += [shlex.join(container()["command"])]
    found += re.findall(r"^    (.*remuda .*)$", PAGE, re.MULTILINE)
    found += re.findall(r"`(kubectl [^`]*remuda [^`]*)`", PAGE)
    lines = [shlex.split(re.search(r"remuda [^']*", line)[0]) for line in found]  # type: ignore[index]
    assert len(lines) >= 7
    return lines


@pytest.mark.parametrize("line", commands(), ids=" ".join)
def test_a_command_and_its_options_exist(line: list[str]) -> None:
    words = line[1:3] if line[1] == "users" else line[1:2]
    done = subprocess.run(
        [sys.executable, "-m", "remuda", *words, "--help"],
        env=ENVIRONMENT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    known = set(re.findall(r"^\s+(--[\w-]+)", done.stdout, re.MULTILINE))
    assert {word for word in line if word.startswith("--")} <= known


def test_the_directory_is_on_the_volume() -> None:
    """Below it, not the volume itself, so that it can belong to the user alone."""
    assert BUS is not None
    home = str(Path(BUS[1]).parent)
    assert f"/var/lib/{unit(0)['Service']['StateDirectory']}" == home
    (mount,) = container()["volumeMounts"]
    assert mount["mountPath"] == home
    (volume,) = pod()["volumes"]
    assert volume["name"] == mount["name"]
    assert volume["persistentVolumeClaim"]["claimName"] == manifest("PersistentVolumeClaim")["metadata"]["name"]


def test_there_is_one_writer() -> None:
    deployment = manifest("Deployment")["spec"]
    assert (deployment["replicas"], deployment["strategy"]["type"]) == (1, "Recreate")
    assert manifest("PersistentVolumeClaim")["spec"]["accessModes"] == ["ReadWriteOncePod"]
    assert deployment["selector"]["matchLabels"] == deployment["template"]["metadata"]["labels"]


def test_whoever_stops_it_waits_longer_than_it_takes() -> None:
    service = unit(0)["Service"]
    asked = [shlex.split(service["ExecStart"]), container()["command"]]
    waited = [service["TimeoutStopSec"].removesuffix("s"), pod()["terminationGracePeriodSeconds"]]
    for line, seconds in zip(asked, waited, strict=True):
        assert int(line[line.index("--grace") + 1].removesuffix("s")) < int(seconds)


def test_probes_and_manifest_start_and_stop_an_application(tmp_path: Path) -> None:
    """The container's command runs; each probe passes once it is up, and fails before; SIGTERM ends it well."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (tmp_path / "app.py").write_text(
        f"from remuda import Bus\nbus = Bus({str(tmp_path / 'data')!r})\n\n"
        "@bus.subscribe('order.placed')\ndef ship(number: int) -> None: ...\n"
    )

    def here(command: list[str]) -> list[str]:
        program = {"remuda": [sys.executable, "-m", "remuda"], "python": [sys.executable]}[command[0]]
        return [*program, *(word.replace(":8321", f":{port}") for word in command[1:])]

    def passes(probe: str) -> bool:
        asked = here(container()[probe]["exec"]["command"])
        return subprocess.run(asked, capture_output=True, timeout=60, check=False).returncode == 0

    probes = ("startupProbe", "livenessProbe", "readinessProbe")
    assert not any(passes(probe) for probe in probes)
    with subprocess.Popen(here(container()["command"]), cwd=tmp_path, env=ENVIRONMENT) as process:
        try:
            end = time.monotonic() + 120
            while not all(passes(probe) for probe in probes):
                assert process.poll() is None
                assert time.monotonic() < end
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            process.kill()
