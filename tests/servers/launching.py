"""Starting servers that refuse to run as root.

Whoever starts a process as another user makes Python fork, and the fork of a process that has reserved much memory is
refused where memory is not to be promised twice. So a small process changes the user, and then becomes the server.
"""

from __future__ import annotations

import os
import pwd
import sys
from pathlib import Path

_LAUNCH = """
import ctypes, os, signal, sys
user, group, ends, program, *arguments = sys.argv[1:]
if user:
    os.setgroups([])
    os.setgid(int(group))
    os.setuid(int(user))
if ends:
    try:
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)
    except (OSError, AttributeError):
        pass
os.execv(program, [program, *arguments])
"""


def not_as_root(folder: Path, program: Path, *arguments: str, ends_with_us: bool = False) -> list[str]:
    """The command that runs a program, as nobody if this is root. The folder is made that user's, and what is in it.

    With `ends_with_us` the program is told to end when the thread that started it does."""
    user = group = ""
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody")
        user, group = str(nobody.pw_uid), str(nobody.pw_gid)
        for path in (folder, *folder.rglob("*")):
            os.chown(path, nobody.pw_uid, nobody.pw_gid, follow_symlinks=False)
    return [sys.executable, "-S", "-c", _LAUNCH, user, group, "yes" if ends_with_us else "", str(program), *arguments]
