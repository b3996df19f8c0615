"""A Python for Spark that is there at once: every process that Spark starts is a fork of one that has all loaded.

Spark starts a Python for each stream, and for each step of planning and writing, and most of what such a process does
is to load PySpark. For a stream it allows ten seconds, which on a busy machine is not enough.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

_RUN_AS_MAIN: Final = (
    "pyspark.sql.streaming.python_streaming_source_runner", "pyspark.sql.connect.streaming.worker.foreach_batch_worker",
    "pyspark.daemon",
)  # fmt: skip
_LOADED: Final = (
    *_RUN_AS_MAIN, "pyspark.worker", "pyspark.sql.worker.create_data_source", "pyspark.sql.worker.lookup_data_sources",
    "pyspark.sql.worker.plan_data_source_read", "pyspark.sql.worker.write_into_data_source",
    "pyspark.sql.worker.commit_data_source_write", "pyspark.sql.worker.python_streaming_sink_runner",
    "pyspark_remuda", "remuda.spark.source.directory_log", "remuda.spark.source.stream_reader", "remuda.spark.sink",
)  # fmt: skip
_CLIENT: Final = """\
#!{python} -IS
import json, os, signal, socket, sys

def be_real():
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])

link = socket.socket(socket.AF_UNIX)
try:
    if sys.argv[1] != "-m":
        be_real()
    link.connect({place!r})
except (IndexError, OSError):
    be_real()
wish = json.dumps({{"argv": sys.argv[2:], "environment": dict(os.environ), "folder": os.getcwd()}}).encode()
socket.send_fds(link, [len(wish).to_bytes(8, "big")], [0, 1, 2])
link.sendall(wish)
process = int.from_bytes(link.recv(8), "big")
if not process:
    be_real()
signal.signal(signal.SIGTERM, lambda *_: os.kill(process, signal.SIGTERM))
os._exit(int.from_bytes(link.recv(8) or b"\\x01", "big"))
"""


def preloaded_python() -> Path:
    """The path of an executable that does as this Python does, for as long as this process lives."""
    return _preloaded(os.getpid())


@functools.cache
def _preloaded(process: int) -> Path:
    held = contextlib.ExitStack()
    atexit.register(held.close)
    return held.enter_context(forking_python(Path(tempfile.mkdtemp(prefix="remuda-python-"))))


@contextlib.contextmanager
def forking_python(folder: Path) -> Iterator[Path]:
    """An executable in a folder of its own that does as this Python does; the folder goes with it."""
    folder.mkdir(mode=0o700, exist_ok=True)
    place = folder / "socket"
    client = folder / "python"
    client.write_text(_CLIENT.format(python=sys.executable, place=str(place)))
    client.chmod(0o755)
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(str(place))  # before anybody comes, who then waits until all is loaded
        door.listen(64)
        server = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, str(door.fileno()), str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=[door.fileno()],
            env={"PYTHONHASHSEED": "0", **os.environ, "OMP_NUM_THREADS": "1"},
        )
    assert server.stdin is not None
    try:
        yield client
    finally:
        server.stdin.close()  # which ends it, as the end of this process does
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(60)
        server.kill()
        server.wait(60)


def serve(door: socket.socket) -> None:
    """Fork whatever is asked for, until the process that began this one ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for that one
    for name in _LOADED:
        with contextlib.suppress(ImportError):  # as of Spark Connect, where that is not installed
            importlib.import_module(name)
    for name in _RUN_AS_MAIN:
        sys.modules.pop(name, None)
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while sys.stdin not in select.select([sys.stdin, door], [], [])[0]:
        link, _ = door.accept()
        if os.fork() == 0:
            door.close()
            _watch(link)
        link.close()


def _watch(link: socket.socket) -> None:
    """In a process of its own: fork the one that is wanted, and tell how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    head, files, _, _ = socket.recv_fds(link, 8, 3)
    wish = b""
    while len(wish) < int.from_bytes(head, "big"):
        wish += link.recv(1 << 16)
    child = os.fork()
    if child == 0:
        link.close()
        _become(json.loads(wish), files)
    for file in files:
        os.close(file)
    os.close(0)
    os.close(1)
    link.sendall(child.to_bytes(8, "big"))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with contextlib.suppress(OSError):
        link.sendall((code if code >= 0 else 128 - code).to_bytes(8, "big"))
    os._exit(0)


def _become(wish: dict[str, Any], files: array.array[int] | list[int]) -> None:
    code = 1
    try:
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)
        os.environ.clear()
        os.environ.update(wish["environment"])
        os.chdir(wish["folder"])
        module, *arguments = wish["argv"]
        wanted = [wish["folder"], *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        sys.path[:0] = [path for path in wanted if path and path not in sys.path]
        sys.argv = [module, *arguments]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code & 255)


def main(number: int, folder: str) -> None:
    try:
        with socket.socket(fileno=number) as door:
            serve(door)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
