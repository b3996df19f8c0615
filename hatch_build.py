"""Builds what Remuda has in C, where there is a compiler. Without one, or if it fails, Remuda is Python alone."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDER = Path("src/remuda/native")
SUFFIX = sysconfig.get_config_var("EXT_SUFFIX") or ".so"
_SECONDS = 120


class NativeBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """What was built lies beside its source, for a checkout that is installed as it is, and goes into the wheel."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        for built in build(Path(self.root, FOLDER), Path(self.root, FOLDER)):
            build_data["pure_python"] = False
            build_data["infer_tag"] = True
            build_data["force_include"][str(built)] = f"remuda/native/{built.name}"


def build(sources: Path, folder: Path) -> list[Path]:
    """Compile every source, a module each, into the folder. None, with one line that says why, if one of them cannot be
    compiled; then old builds go too."""
    made = {source: folder / f"_{source.stem}{SUFFIX}" for source in sorted(sources.glob("*.c"))}
    unfinished = {source: folder / f"{target.name}.{os.getpid()}.tmp" for source, target in made.items()}
    try:
        if os.environ.get("REMUDA_PURE", "0") != "0":
            raise OSError("REMUDA_PURE asks for Python alone")
        if sys.implementation.name != "cpython" or sysconfig.get_config_var("Py_GIL_DISABLED"):
            raise OSError("this Python has no interpreter lock, or is not CPython")
        linker = shlex.split(sysconfig.get_config_var("LDSHARED") or "cc -shared")
        flags = ["-O2", *shlex.split(sysconfig.get_config_var("CCSHARED") or "-fPIC")]
        include = ["-I", sysconfig.get_path("include")]
        commands = [[*linker, *flags, *include, str(source), "-o", str(file)] for source, file in unfinished.items()]
        with ThreadPoolExecutor() as pool:
            for done in pool.map(_run, commands):
                if done.returncode:
                    raise OSError((done.stderr.strip() or f"{linker[0]} failed").splitlines()[0])
        for source, file in unfinished.items():
            os.replace(file, made[source])
        return list(made.values())
    except (OSError, subprocess.SubprocessError) as error:
        print(f"warning: remuda is installed without its part in C and works all the same: {error}", file=sys.stderr)
        for target in made.values():
            target.unlink(missing_ok=True)
        return []
    finally:
        for file in unfinished.values():
            file.unlink(missing_ok=True)


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
