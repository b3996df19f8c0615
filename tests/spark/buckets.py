"""An S3 server on this machine's loopback, in a process of its own."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from unittest import mock

_PATIENCE = 120.0
_SERVER = """
import sys, threading
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple

turn, app = threading.Lock(), DomainDispatcherApplication(create_backend_app)

def in_turn(environ, start):  # or two that put a file only if there is none would both find none
    with turn:
        return [b"".join(app(environ, start))]

run_simple("127.0.0.1", int(sys.argv[1]), in_turn, threaded=True)
"""


@contextlib.contextmanager
def s3_server(bucket: str = "bucket") -> Iterator[dict[str, str]]:
    """The environment by which everybody finds it, which is this process's meanwhile. It has one bucket."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "-c", _SERVER, str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    address = f"http://127.0.0.1:{port}"
    given = {
        "AWS_ENDPOINT_URL": address,
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",  # for the readers that are not ours
    }
    try:
        _until_it_answers(server, urllib.request.Request(f"{address}/{bucket}", method="PUT"))
        with mock.patch.dict(os.environ, given):
            yield given
    finally:
        server.kill()
        server.wait()


def _until_it_answers(server: subprocess.Popen[bytes], request: urllib.request.Request) -> None:
    end = time.monotonic() + _PATIENCE
    while True:
        try:
            urllib.request.urlopen(request, timeout=10).close()
            return
        except OSError:
            assert server.poll() is None, "the S3 server has ended"
            assert time.monotonic() < end, "the S3 server does not answer"
            time.sleep(0.1)
