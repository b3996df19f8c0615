"""A directory that any number of processes have open: this one is its host or a guest, which may become the host."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from remuda.broker.embedded.clock import Clock
from remuda.broker.embedded.extensions import Extensions
from remuda.broker.embedded.locks.forks import closed_after_fork
from remuda.broker.embedded.locks.uninterrupted import Uninterrupted
from remuda.broker.embedded.runtime import Runtime
from remuda.broker.options import BrokerOptions
from remuda.broker.shared.directory import guest_presence
from remuda.broker.shared.directory.filesystems import check_local
from remuda.broker.shared.directory.guest_presence import Presence
from remuda.broker.shared.directory.host_lock import HostDisk, is_held
from remuda.broker.shared.directory.switched_backend import SwitchedBackend
from remuda.broker.shared.guest.guest import PATIENCE, Guest
from remuda.broker.shared.host.guest_connection import Connection
from remuda.broker.shared.host.host import Host, known_options
from remuda.broker.shared.wire import sockets
from remuda.broker.shared.wire.wire_frames import Hello
from remuda.log.disk.directory import SOCKET, DirectoryDisk
from remuda.model.errors import DirectoryInUse, HostNotResponding, RemudaError, StorageError, Unsupported

if TYPE_CHECKING:
    import socket

    from remuda.broker.embedded.delivering.attempts import AttemptMarks, FormerGuests
    from remuda.log.eventlog import EventLog

_log = logging.getLogger("remuda.shared")
_FIRST_PAUSE: Final = 0.001
_LONGEST_PAUSE: Final = 0.02
_OWN: Final = frozenset({"worker", "shared", "group", "force_network"})
"""Options that may differ between processes."""
_SURE: Final = 6
"""How often in a row the lock file must say that its holder does not share the directory before that is believed: a new
holder writes it a moment after it got the lock."""


class SharedDirectory(SwitchedBackend):
    """A backend: the engine while this process is the host, else a guest's connection to it."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        options: BrokerOptions | None = None,
        extensions: Extensions | None = None,
        clock: Clock | None = None,
        *,
        patience: float = PATIENCE,
    ) -> None:
        self.path = Path(os.path.abspath(path))
        self._options = options or BrokerOptions()
        self._extensions = extensions
        self._clock = clock
        self._group = self._options.group
        self._patience = patience
        check_local(self.path, force=self._options.force_network)
        self._prepare()
        try:
            self._open()
        except BaseException:
            self._closing.begin()
            raise

    def _prepare(self) -> None:
        self.closed = False
        self.stopped = Future[StorageError]()
        """Has the reason once the broker has stopped for good by itself."""
        self.runtime: Runtime | None = None
        """The engine, while this process is the host."""
        self.guest: Guest | None = None
        self._host: Host | None = None
        self._presence: Presence | None = None
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._changing = threading.Lock()
        self._closing = Uninterrupted(self._close)

    # Becoming the host or a guest

    def _open(self) -> None:
        closed_after_fork(self)  # first, since another thread may fork while this is being opened
        deadline = time.monotonic() + self._patience
        pause, alone = _FIRST_PAUSE, 0
        while True:
            if self._try_to_host():
                return
            guest = self.guest or self._new_guest()
            try:
                guest.connect()
                break
            except OSError as error:
                holder = DirectoryDisk(self.path, create=False).holder()
                alone = alone + 1 if holder.pid and not holder.shares else 0
                if alone > _SURE:
                    raise DirectoryInUse(
                        f"directory {str(self.path)!r} is open in process {holder.pid}, which does not share it; "
                        "nothing was changed. Stop that process, or open the directory there without shared=False"
                    ) from None
                if time.monotonic() > deadline:
                    raise HostNotResponding(
                        f"{self.describe(holder.pid)} does not answer: {error}. Nothing was changed. {self.remedy}"
                    ) from error
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        self._use(guest)
        self._thread = threading.Thread(target=self._follow, name="remuda-guest", daemon=True)
        self._thread.start()

    def _try_to_host(self, guest: Guest | None = None) -> bool:
        """Become the host, if there is none."""
        if is_held(self.path):
            return False
        disk = HostDisk(self.path, group=self._group)
        try:
            disk.lock()
        except DirectoryInUse:
            return False
        try:
            runtime = Runtime(
                disk,
                self._options,
                self._extensions,
                self._clock,
                survey=self._survey,
                tags=None if guest is None else guest.tags,
            )
        except BaseException:
            disk.unlock()
            raise
        host: Host | None = None
        try:
            runtime.fence = _Fence(disk, lambda error: runtime.engine.log.abandon(error))
            runtime.let_go_first = self._closing.begin
            runtime.stopped.add_done_callback(lambda done: self.stopped.set_result(done.result()))
            host = Host(runtime, disk.epoch)
            host.listen(disk.listener(_DirectoryGate(self.path, group=self._group)))
            host.start()
            if guest is not None:
                guest.hand_to(runtime)
            if self._presence is not None:
                host.note_attached(self._presence.token)
                self._presence.leave()
        except BaseException:
            if host is not None:
                host.stop()
            runtime.close()
            raise
        with self._changing:
            self.runtime, self._host = runtime, host
            self._use(runtime)
        return True

    def _survey(self) -> FormerGuests:
        return guest_presence.survey(self.path)

    def _new_guest(self) -> Guest:
        if self._extensions is not None and self._extensions != Extensions():
            raise Unsupported(
                f"directory {str(self.path)!r} is open in another process, where extensions would have to run: they "
                "cannot be set here. Open the directory in this process first, or with shared=False",
                "extensions",
            )
        guest = self.guest = Guest(_SocketTransport(self), patience=self._patience)
        self._presence = Presence(self.path, guest.token, group=self._group)
        self._presence.enter()
        return guest

    def _follow(self) -> None:
        """A guest's life: listen to the host, and when it ends, find the next host or become it."""
        guest = self.guest
        assert guest is not None
        self._compare_options(guest)
        try:
            self._go_on(guest)
        finally:
            guest.leave_line()

    def _go_on(self, guest: Guest) -> None:
        while not self._stop.is_set():
            guest.listen()
            pause = _FIRST_PAUSE
            while not self._stop.is_set():
                try:
                    if self._try_to_host(guest):
                        _log.info("this process now hosts %s", self.path)
                        return
                    guest.connect()
                    break
                except OSError:
                    pass
                except RemudaError as error:
                    # Such as a full disk: another process may still succeed, or this one a little later.
                    _log.error("%s has no host, and this process cannot become the host: %s", self.path, error)
                    pause = _LONGEST_PAUSE
                if self._stop.wait(pause):
                    return
                pause = min(2 * pause, _LONGEST_PAUSE)

    def _compare_options(self, guest: Guest) -> None:
        """Log which options differ from the host's, whose options apply."""
        assert guest.welcome is not None
        ours, theirs = known_options(self._options), guest.welcome.options
        differing = sorted(
            name
            for name in {*ours, *theirs}
            if name not in _OWN and name in ours and ours.get(name) != theirs.get(name)
        )
        if differing:
            _log.warning(
                "%s is open in process %d with other options, which apply: %s",
                self.path, guest.pid, ", ".join(f"{name}={theirs.get(name, 'default')}" for name in differing),
            )  # fmt: skip

    @property
    def hosts(self) -> bool:
        """Whether this process is the host."""
        return self.runtime is not None

    def __getattr__(self, name: str) -> Any:
        """Attributes of the engine, for administration: only a host has them."""
        runtime = self.__dict__.get("runtime")
        if name.startswith("__") or runtime is None:
            raise AttributeError(name)
        return getattr(runtime, name)

    # The end

    def close(self) -> None:
        """Release the directory. Another process, if there is one, takes over."""
        runtime = self.runtime
        if runtime is not None:
            runtime.dismissed = True
        threads = () if runtime is None else (runtime._timer.thread, runtime.upkeep.thread, runtime.notices.thread)
        if threading.current_thread() in threads:
            self._close()
            return
        self._closing.wait()

    def _close(self) -> None:
        self._stop.set()
        guest, thread = self.guest, self._thread
        if guest is not None and self.runtime is None:
            guest.close()
        if thread is not None and thread is not threading.current_thread():
            thread.join(10)
        with self._changing:
            if self.closed:
                return
            self.closed = True
            host, runtime = self._host, self.runtime
        try:
            if host is not None:
                host.stop()
                with contextlib.suppress(OSError):
                    os.unlink(self.path / SOCKET)
        finally:
            if runtime is not None:
                runtime.end()
            if self._presence is not None:
                self._presence.leave()

    def disown(self) -> None:
        """In a fork: release what belongs to the parent. This process opens the directory when it first needs it."""
        if self._host is not None:
            self._host.disown()
        if self.guest is not None:
            self.guest.disown()
        if self._presence is not None:
            self._presence.disown()
        if self.runtime is not None:
            self.runtime.disown()
        was_closed = self.closed
        self._prepare()
        if was_closed:
            self.closed = True
            return
        self._open_when_needed(self._open)

    def describe(self, pid: int) -> str:
        return f"process {pid or '(unknown)'}, which hosts directory {str(self.path)!r},"

    @property
    def remedy(self) -> str:
        return f"If it is frozen, `remuda takeover {self.path}` ends it and lets another process take over"


class _Fence:
    """Checks that the directory is still this process's own. If not, nothing more is written there, even on close."""

    def __init__(self, disk: DirectoryDisk, abandon: Callable[[BaseException], None]) -> None:
        self._disk = disk
        self._abandon = abandon

    def __call__(self) -> None:
        try:
            self._disk.check_epoch()
        except StorageError as error:
            self._abandon(error)
            raise


class _SocketTransport:
    """Connects a guest to the host of a directory through its socket."""

    def __init__(self, shared: SharedDirectory) -> None:
        self._shared = shared

    def connect(self) -> socket.socket:
        return sockets.connect(self._shared.path)

    def hello(self, token: str, epoch: int) -> Hello:
        from remuda.broker.shared.wire.wire_frames import VERSION

        return Hello(VERSION, token, os.getpid(), epoch=epoch)

    def describe(self, pid: int) -> str:
        return self._shared.describe(pid)

    @property
    def remedy(self) -> str:
        return self._shared.remedy

    def begin(self, lease: int, events: int) -> Callable[[int], None] | None:
        own = self._shared._presence
        return None if own is None else own.marks().track(lease, events).begin

    def reader(self, guest: Guest) -> EventLog:
        from remuda.log.readers.reader import Reader

        return Reader(DirectoryDisk.of_log(self._shared.path))


class _DirectoryGate:
    """Admits processes of the same user, or of the directory's group if that is allowed."""

    def __init__(self, path: Path, *, group: bool) -> None:
        self._path = path
        self._group = group

    def admit(self, connection: Connection, hello: Hello) -> None:
        if not hello.token.isalnum():
            raise StorageError("a guest's token must consist of letters and digits")
        peer = sockets.peer_of(connection.peer)
        if peer is None or peer[1] in (os.geteuid(), 0, os.stat(self._path).st_uid):
            return
        if self._group:  # the permissions of the socket let only its group connect
            return
        raise StorageError(
            f"directory {str(self._path)!r} is open for user {os.geteuid()}, not for user {peer[1]}; nothing was "
            "changed. Use it as its owner, or allow its group"
        )

    def lives(self, token: str) -> bool | None:
        return guest_presence.lives(self._path, token)

    def marks(self, token: str) -> AttemptMarks | None:
        found = guest_presence.marks_of(self._path, token)
        if not guest_presence.lives(self._path, token):
            guest_presence.clear(self._path, token)
        return found
