"""P5: Java starts with options that suit the work, and with classes that an earlier session left, whoever else does."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from remuda.spark.session import jvm
from remuda.spark.session.java import write_shim
from remuda.spark.session.jvm import ClassArchive, java_options
from remuda.spark.source.spark_log import is_small

EXTRA = "spark.driver.extraJavaOptions"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("SPARK_HOME", "SPARK_CONF_DIR", "SPARK_DIST_CLASSPATH", "HADOOP_CONF_DIR", "YARN_CONF_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "remuda" / "spark"


def java_home(folder: Path, version: str = "17.0.1", script: str = "exit 0") -> Path:
    (folder / "bin").mkdir(parents=True, exist_ok=True)
    (folder / "release").write_text(f'JAVA_VERSION="{version}"\n')
    (folder / "bin" / "java").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "bin" / "java").chmod(0o755)
    return folder


def archive_of(home: Path) -> ClassArchive:
    archive = ClassArchive.of(home, {})
    assert archive is not None
    return archive


def run(archive: ClassArchive, folder: Path, home: Path) -> int:
    shim = write_shim(folder, home, archive.left) / "bin" / "java"
    return subprocess.run([shim, *archive.options()], check=False).returncode


RECORDS = 'for one; do case "$one" in -XX:ArchiveClassesAtExit=*) echo classes > "${one#*=}";; esac; done; exit '


def test_p5_classes_are_recorded_once_and_then_used(tmp_path: Path, cache: Path) -> None:
    home = java_home(tmp_path / "java", script=f"{RECORDS}0")
    first = archive_of(home)
    assert first.left is not None
    assert first.options()[0] == f"-XX:ArchiveClassesAtExit={first.left[0]}"
    assert archive_of(home).options() == [], "one session records, others beside it start without"
    assert run(first, tmp_path / "shim", home) == 0
    assert [path.name for path in cache.iterdir()] == [first.path.name]
    later = archive_of(home)
    assert later.left is None
    assert later.options()[0] == f"-XX:SharedArchiveFile={first.path}"


def test_p5_what_a_java_left_that_failed_is_not_used(tmp_path: Path, cache: Path) -> None:
    home = java_home(tmp_path / "java", script=f"{RECORDS}3")
    assert run(archive_of(home), tmp_path / "shim", home) == 3
    assert list(cache.iterdir()) == []


def test_p5_another_java_has_other_classes(tmp_path: Path, cache: Path) -> None:
    before = archive_of(java_home(tmp_path / "java")).path
    assert archive_of(java_home(tmp_path / "java", "17.0.2")).path != before
    assert archive_of(java_home(tmp_path / "other")).path != before


def test_p5_a_recording_that_never_ended_is_begun_anew(tmp_path: Path, cache: Path) -> None:
    home = java_home(tmp_path / "java")
    first = archive_of(home)
    assert first.left is not None
    os.utime(first.left[0], (0, 0))
    assert archive_of(home).left is not None


def test_p5_a_cache_that_cannot_be_written_is_done_without(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert ClassArchive.of(java_home(tmp_path / "java"), {}) is None


def test_p5_a_disk_without_room_is_left_alone(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jvm, "_ROOM", 1 << 80)
    archive = archive_of(java_home(tmp_path / "java"))
    assert (archive.left, archive.options()) == (None, [])


def test_p5_another_class_path_has_no_archive(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = java_home(tmp_path / "java")
    assert ClassArchive.of(home, {"spark.driver.extraClassPath": "more.jar"}) is None
    monkeypatch.setenv("HADOOP_CONF_DIR", "/etc/hadoop")
    assert ClassArchive.of(home, {}) is None


def test_p5_a_collector_that_the_user_names_is_the_only_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS"):
        monkeypatch.delenv(name, raising=False)
    assert "-XX:+UseParallelGC" in java_options({}, None, quick=False)
    assert "UseParallelGC" not in java_options({EXTRA: "-Xss4m -XX:+UseG1GC"}, None, quick=False)
    monkeypatch.setenv("JDK_JAVA_OPTIONS", "-XX:+UseZGC")
    assert "UseParallelGC" not in java_options({}, None, quick=False)


def test_p5_a_log_is_small_by_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        (tmp_path / f"{number}").write_bytes(bytes(1000))
    assert is_small(str(tmp_path), str(tmp_path / "no lake yet"), "")
    assert not is_small("amqp://localhost/")
    monkeypatch.setattr("remuda.spark.source.spark_log._FEW_BYTES", 2999)
    assert not is_small(str(tmp_path))
    monkeypatch.setattr("remuda.spark.source.spark_log._FEW_BYTES", 3000)
    monkeypatch.setattr("remuda.spark.source.spark_log._FEW_FILES", 2)
    assert not is_small(f"file://{tmp_path}")
